"""The use cases behind the commands, where the commands alone do not reach."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jobs.nouns.pool import Pool
from jobs.nouns.quota import CalendarQuota, FirstUseQuota, MoneyQuota, RollingQuota
from jobs.nouns.window import DAY, HOUR, Calendar
from jobs.problem import Refusal
from jobs.spec import JobSpec
from platforms.artifacts.base import StoreUnreachable
from platforms.artifacts.directory import DirectoryStore
from platforms.base import Checked
from scheduler.core.ledger import EntryKind, LedgerEntry
from scheduler.core.quota import Meter, ObservedLimit
from scheduler.core.run import Lane, Reserved, Run, Stopping
from scheduler.host import doctor
from scheduler.service.facts import verification
from scheduler.service.quota.usage import meters
from scheduler.service.requests import checkpoint_files, sessions
from scheduler.store import checkpoints, jobs, ledger, limits, runs
from scheduler.store.engine import Database

NOW = 1_790_000_000
KEY = "uff-uff-main-0001"


class BrokenStore(DirectoryStore):
    """A store that cannot be written."""

    def put(self, key: str, data: bytes) -> None:
        """Fail."""
        raise StoreUnreachable("put", key, "the disk is gone")


def spend(database: Database, pool: str, start: int, end: int, price: int = 0) -> None:
    """Charge a pool with an interval that no run of ours explains."""
    entry = LedgerEntry(EntryKind.ADJUST, pool, None, start, end, NOW, price_microdollars_per_hour=price, evidence="x")
    with database.write() as tx:
        ledger.append(tx, [entry])


def meter_of(database: Database, pool: Pool) -> Meter:
    """Return the meter of a pool's only quota."""
    with database.read() as tx:
        (found,) = meters(tx, {pool.name: pool}, NOW)
    return found


def test_a_calendar_quota_resets_with_its_window(database: Database) -> None:
    spend(database, "a", NOW - HOUR, NOW)
    quota = CalendarQuota("day", 4 * HOUR, Calendar("day"), "docs", "2026-11-21")
    found = meter_of(database, Pool("a", "local", "x", (quota,)))
    assert (found.used, found.held, found.free, found.unit) == (HOUR, 0, 3 * HOUR, "seconds")
    assert found.resets_at == found.end == found.start + DAY
    assert (found.source, found.as_of) == ("docs", "2026-11-21")


def test_what_a_platform_said_last_is_the_limit_and_its_source(database: Database) -> None:
    quota = CalendarQuota("day", 4 * HOUR, Calendar("day"))
    with database.write() as tx:
        for at, limit in ((NOW - 20, HOUR), (NOW - 10, 2 * HOUR)):
            limits.observe(tx, "a", ObservedLimit("day", at - DAY, NOW + DAY, limit, at, "the quota page"))
    found = meter_of(database, Pool("a", "local", "x", (quota,)))
    assert (found.limit, found.source, found.as_of) == (2 * HOUR, "the quota page", "2026-09-21")


def test_a_rolling_quota_gives_back_when_its_oldest_use_leaves(database: Database) -> None:
    pool = Pool("a", "local", "x", (RollingQuota("24 h", 4 * HOUR),))
    assert meter_of(database, pool).resets_at is None
    spend(database, "a", NOW - 20 * HOUR, NOW - 19 * HOUR)
    spend(database, "a", NOW - 2 * HOUR, NOW - HOUR)
    found = meter_of(database, pool)
    assert (found.used, found.resets_at) == (2 * HOUR, NOW + 4 * HOUR)


def test_a_first_use_quota_resets_only_when_a_use_has_opened_it(database: Database) -> None:
    pool = Pool("a", "local", "x", (FirstUseQuota("span", 4 * HOUR),))
    assert meter_of(database, pool).resets_at is None
    spend(database, "a", NOW - 5 * HOUR, NOW - 4 * HOUR)
    found = meter_of(database, pool)
    assert (found.used, found.resets_at) == (HOUR, NOW + 19 * HOUR)


def test_money_is_counted_in_microdollars(database: Database) -> None:
    spend(database, "a", NOW - HOUR, NOW, price=750_000)
    pool = Pool("a", "local", "x", (MoneyQuota("month", 60_000_000, Calendar("month")),))
    found = meter_of(database, pool)
    assert (found.unit, found.used, found.free) == ("microdollars", 750_000, 59_250_000)


def test_a_stop_counts_even_when_the_session_cannot_be_told(world: Database, tmp_path: Path) -> None:
    asked = sessions.stop(world, BrokenStore(tmp_path), KEY, "why", NOW, "tester")
    assert not asked.flag_written
    with world.read() as tx:
        assert isinstance(runs.get(tx, KEY).state, Stopping)


def test_a_run_that_is_being_launched_cannot_be_stopped_yet(world: Database, artifacts: DirectoryStore) -> None:
    run = Run("uff-ucm-0001", "kaggle", (Lane(0, "ucm", 1, (0,), None),), NOW, NOW + 9, NOW + 9, Reserved(NOW))
    with world.write() as tx:
        jobs.note_launch(tx, "ucm", "kaggle")
        runs.insert(tx, run, NOW)
    with pytest.raises(Refusal, match="schedctl queue hold ucm"):
        sessions.stop(world, artifacts, run.key, "why", NOW, "tester")


def test_lines_survive_however_they_were_cut(world: Database) -> None:
    text = b"uff-main| one\nufm| two\n[agent lane 1] three\nuff-main| f\xc3\xbcnf\nlast"
    with world.read() as tx:
        run = runs.get(tx, KEY)
    for length in range(1, len(text) + 1):
        pieces = [text[at : at + length] for at in range(0, len(text), length)]
        assert b"".join(sessions.lines(pieces)) == text
        assert list(sessions.lane_lines(pieces, run, 0)) == [b"one\n", b"f\xc3\xbcnf\n"]
        assert list(sessions.lane_lines(pieces, run, 1)) == [b"two\n", b"[agent lane 1] three\n"]


def only_verdict(database: Database, artifacts: DirectoryStore) -> tuple[str, ...]:
    """Return the findings about the one checkpoint of the world."""
    with database.read() as tx:
        records = checkpoint_files.select(tx, "ulm")
    (verdict,) = verification.verify(artifacts, records)
    return verdict.findings


def test_verify_names_what_is_missing(world: Database, artifacts: DirectoryStore, home: Path) -> None:
    assert only_verdict(world, artifacts) == ()
    with world.read() as tx:
        (record,) = checkpoints.newest(tx, "ulm")
    artifacts.delete(f"jobs/ulm/blobs/{record.manifest.components[0].sha256}")
    artifacts.delete(record.manifest.key)
    assert only_verdict(world, artifacts) == ("its manifest is missing", "weights.npz is missing")


def test_verify_tells_a_manifest_that_was_changed(world: Database, artifacts: DirectoryStore) -> None:
    with world.read() as tx:
        (record,) = checkpoints.newest(tx, "ulm")
    document = json.loads(artifacts.read(record.manifest.key))
    artifacts.put(record.manifest.key, json.dumps({**document, "trained_seconds": 1}).encode())
    assert only_verdict(world, artifacts) == ("its manifest differs from the recorded one",)
    artifacts.put(record.manifest.key, b"{")
    (finding,) = only_verdict(world, artifacts)
    assert finding.startswith("its manifest is damaged: not JSON")


def test_a_job_is_pulled_at_the_step_that_was_asked_for(world: Database) -> None:
    with world.read() as tx:
        assert checkpoint_files.choose(tx, "ulm", None).step == 500
        with pytest.raises(Refusal, match="but at 500"):
            checkpoint_files.choose(tx, "ulm", 400)


@pytest.fixture
def crowded(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Another distribution that brings a package named jobs."""
    owners = {"jobs": ["job-board"], "config": ["uff-scheduler"], "rich": ["rich"]}
    monkeypatch.setattr(doctor, "packages_distributions", lambda: owners)
    return iter(())


def test_doctor_names_the_owner_of_a_package_of_our_name(crowded: None) -> None:
    found = doctor.check_names()
    assert (found.grade, found.found) == ("bad", "jobs also comes from job-board")


@pytest.mark.parametrize(
    ("off", "grade"), [(0, "ok"), (-100, "ok"), (121, "bad"), (-3_600, "bad")], ids=["0", "-100", "121", "-3600"]
)
def test_doctor_compares_the_clocks(off: int, grade: str) -> None:
    assert doctor.check_clock(NOW + off, NOW).grade == grade


@pytest.mark.parametrize(("free", "grade"), [(2 << 30, "ok"), (1 << 29, "warning"), (1 << 20, "bad")])
def test_doctor_looks_at_the_room_left(free: int, grade: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Usage:
        def __init__(self) -> None:
            self.free = free

    monkeypatch.setattr("shutil.disk_usage", lambda path: Usage())
    assert doctor.check_disk(tmp_path / "not" / "there" / "yet").grade == grade


def test_doctor_reports_a_check_that_breaks(tmp_path: Path) -> None:
    def breaks() -> Any:
        raise StoreUnreachable("put", "k", "the disk is gone", "Mount it")

    assert doctor.examine({"store": breaks}) == {"store": Checked("bad", "the disk is gone", "Mount it")}


def test_a_deferral_that_will_pass_is_no_obstacle(database: Database) -> None:
    from scheduler.service.facts.snapshot import load_snapshot
    from scheduler.service.requests.questions import obstacles

    small = Pool("a", "local", "x", (CalendarQuota("none left", 1, Calendar("day")),), vram_gib=8)
    with database.write() as tx:
        for name, pools in (("waits", ()), ("never", ("b",))):
            jobs.add(tx, JobSpec(name, "main", ("x",), 100, 10.0, pools=pools, not_before=NOW + DAY), NOW)
    with database.read() as tx:
        snapshot = load_snapshot(tx, {"a": small}, NOW, 7 * DAY)
    found = obstacles(snapshot, {"waits", "never"})
    assert {name: reason.code for name, reason in found.items()} == {"never": "no_allowed_pool"}


def test_the_service_may_write_where_a_slurm_pool_of_this_machine_does(home: Path, schedctl: Any) -> None:
    settings = home / "etc" / "uff-scheduler" / "config.toml"
    settings.parent.mkdir(parents=True)
    pools = {
        "here": 'folder = "/shared/uff"',
        "there": 'folder = "/far/uff", host = "me@login", known_hosts = "/etc/known_hosts"',
        "home": 'folder = "~/uff"',
    }
    tables = (
        f'[[pools]]\nname = "{name}"\nplatform = "slurm"\noptions = {{ {text} }}\n' for name, text in pools.items()
    )
    settings.write_text("models = []\n" + "".join(tables))
    schedctl("service", "install", "--root", str(home))
    unit = (home / "etc/systemd/system/uff-scheduler.service").read_text()
    (writable,) = [line for line in unit.splitlines() if line.startswith("ReadWritePaths=")]
    assert writable.endswith(" /shared/uff")
    assert "/far/uff" not in writable
    assert "~" not in writable
