"""One daemon at a time may act, and what an earlier one still wants to write is refused."""

import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import text

from jobs.spec import JobSpec
from scheduler.store import jobs, lease
from scheduler.store.engine import Database
from scheduler.store.errors import Fenced
from scheduler.store.lease import AlreadyRunning, FileLock

SPEC = JobSpec(name="ufm", role="manager", command=("train",), target_step=100, steps_per_hour=10.0)


def let_it_expire(database: Database) -> None:
    with database.write() as tx:
        tx.execute(text("UPDATE lease SET until = 1"))


def test_one_holder_at_a_time(database: Database) -> None:
    first = lease.acquire(database, "first", 60)
    assert first is not None
    assert first.epoch == 1
    assert lease.acquire(database, "second", 60) is None
    with database.read() as tx:
        assert lease.current(tx) == first


def test_the_lease_runs_by_the_clock_of_the_database(database: Database) -> None:
    taken = lease.acquire(database, "first", 60)
    assert taken is not None
    clock = "strftime('%s', 'now')" if database.path else "extract(epoch FROM clock_timestamp())"
    with database.read() as tx:
        now = int(tx.execute(text(f"SELECT {clock}")).scalar_one())
    assert 50 < taken.until - now <= 60


def test_a_lease_that_is_over_is_taken_under_a_new_epoch_and_the_old_holder_is_fenced(database: Database) -> None:
    first = lease.acquire(database, "first", 60)
    assert first is not None
    let_it_expire(database)
    with database.read() as tx:
        assert lease.current(tx) is None
    second = lease.acquire(database, "second", 60)
    assert second is not None
    assert second.epoch == first.epoch + 1
    with pytest.raises(Fenced, match="epoch 1 has ended"):
        lease.renew(database, first, 60)

    def write_late(epoch: int) -> None:
        with database.write() as tx:
            jobs.add(tx, SPEC, 0)
            lease.fence(tx, epoch)

    with pytest.raises(Fenced):
        write_late(first.epoch)
    with database.write() as tx:
        lease.fence(tx, second.epoch)
        assert jobs.everything(tx) == []


def test_a_lease_that_is_over_but_not_taken_can_be_renewed(database: Database) -> None:
    first = lease.acquire(database, "first", 60)
    assert first is not None
    let_it_expire(database)
    renewed = lease.renew(database, first, 60)
    assert renewed.epoch == first.epoch
    assert lease.acquire(database, "second", 60) is None


def test_the_same_holder_takes_its_lease_again_under_a_new_epoch(database: Database) -> None:
    first = lease.acquire(database, "first", 60)
    again = lease.acquire(database, "first", 60)
    assert first is not None
    assert again is not None
    assert again.epoch == first.epoch + 1


def test_a_released_lease_is_free_at_once_and_fences_the_one_who_left(database: Database) -> None:
    first = lease.acquire(database, "first", 60)
    assert first is not None
    lease.release(database, first)
    with pytest.raises(Fenced), database.write() as tx:
        lease.fence(tx, first.epoch)
    second = lease.acquire(database, "second", 60)
    assert second is not None
    lease.release(database, first)
    with database.read() as tx:
        assert lease.current(tx) == second


def test_a_second_daemon_of_the_host_does_not_start(tmp_path: Path) -> None:
    path = tmp_path / "daemon.lock"
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            (
                "import pathlib, sys\n"
                "from scheduler.store.lease import FileLock\n"
                "held = FileLock(pathlib.Path(sys.argv[1]))\n"
                "print('held', flush=True)\n"
                "sys.stdin.read()\n"
            ),
            str(path),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(AlreadyRunning) as caught:
            FileLock(path)
        assert caught.value.pid == holder.pid
        assert str(holder.pid) in str(caught.value)
        holder.kill()
    with FileLock(path):
        pass
    with FileLock(path):
        pass


def test_the_daemon_of_a_folder_is_the_same_after_a_restart_and_no_other_machine_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Host name and path may be alike on two machines, and a folder may be copied; the boot never is."""
    folder, copy = tmp_path / "state", tmp_path / "copy"
    folder.mkdir()
    first = lease.holder_of(folder)
    assert lease.holder_of(folder) == first
    copy.mkdir()
    assert lease.holder_of(copy).split()[1] != first.split()[1]
    (copy / "instance").write_text((folder / "instance").read_text())
    monkeypatch.setattr(lease, "_BOOT", tmp_path / "boot")
    (tmp_path / "boot").write_text("another-boot\n")
    assert lease.holder_of(folder) != first


def test_an_identity_that_was_cut_off_while_it_was_written_is_made_anew(tmp_path: Path) -> None:
    (tmp_path / "instance").write_text("")
    first = lease.holder_of(tmp_path)
    assert lease.holder_of(tmp_path) == first
    assert len(first.split()[1]) > 16
