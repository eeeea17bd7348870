"""A rehearsal's folder: only rehearsals are ever removed, and margins grow with the scale."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from jobs.problem import Refusal
from scheduler.rehearsal.folder import Rehearsal, clear, reopen, settings_for, write_settings
from scheduler.rehearsal.run import prepare, read_base
from scheduler.store import events, jobs
from scheduler.wake import Waker, wake
from tests.lab.patience import PATIENCE_SECONDS

if TYPE_CHECKING:
    from pathlib import Path

BASE = {"pools": [{"name": "kaggle", "platform": "local", "setup": "10m", "stop_margin": "1h"}]}


def rehearsal_in(folder: Path, scale: float = 3_600.0) -> Rehearsal:
    return Rehearsal(folder, epoch=1_000_000, hours=168, scale=scale, origin=5.0)


def test_a_folder_with_anything_else_in_it_is_never_removed(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(Refusal, match="not empty"):
        clear(tmp_path)
    assert (tmp_path / "thesis.tex").exists()


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "week").write_text("")
    with pytest.raises(Refusal, match="not a folder"):
        clear(tmp_path / "week")


def test_an_earlier_rehearsal_is_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "week"
    clear(folder)
    write_settings(rehearsal_in(folder), settings_for(rehearsal_in(folder), BASE))
    (folder / "week.json").write_text("{}")
    clear(folder)
    assert list(folder.iterdir()) == []


def test_a_rehearsal_is_reopened_with_the_clock_it_was_begun_with(tmp_path: Path) -> None:
    write_settings(rehearsal_in(tmp_path), settings_for(rehearsal_in(tmp_path), BASE))
    assert reopen(tmp_path) == rehearsal_in(tmp_path)


@pytest.mark.parametrize("content", [None, "", "clock = 3", "[clock]\nepoch = 'x'"])
def test_nothing_to_resume_is_said_in_one_sentence(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "rehearsal.toml").write_text(content)
    with pytest.raises(Refusal, match="without --resume"):
        reopen(tmp_path)


def test_margins_are_raised_to_what_a_machine_needs_and_never_lowered(tmp_path: Path) -> None:
    fast = settings_for(rehearsal_in(tmp_path, 3_600.0), BASE)["pools"][0]
    slow = settings_for(rehearsal_in(tmp_path, 1.0), BASE)["pools"][0]
    assert int(fast["setup"][:-1]) > 600
    assert (slow["setup"], slow["stop_margin"]) == ("600s", "3600s")


def test_a_rehearsal_deploys_to_folders_of_its_own_and_to_nobodys_server(tmp_path: Path) -> None:
    options = {"host": "deploy@griffith", "path": "/opt/models", "restart": "eliasctl restart $MODEL"}
    earnest = {"name": "griffith", "kind": "ssh", "automatic": True, "first": "uam", "options": options}
    (target,) = settings_for(rehearsal_in(tmp_path), {**BASE, "targets": [earnest]})["targets"]
    assert target == {**earnest, "kind": "directory", "options": {"path": str(tmp_path / "served" / "griffith")}}


def test_a_command_wakes_the_daemon_and_learns_when_none_listens(tmp_path: Path) -> None:
    woken = threading.Event()
    assert not wake(tmp_path)
    waker = Waker(tmp_path, woken.set)
    assert wake(tmp_path)
    assert woken.wait(PATIENCE_SECONDS)
    waker.close()
    assert not wake(tmp_path)


def test_all_that_is_prepared_happened_when_the_rehearsal_began(tmp_path: Path) -> None:
    """Its clock starts last: what corpus and queue write before has no time of a clock that does not run yet."""
    (tmp_path / "text.md").write_text("\n\n".join(f"Text number {number} of a few." for number in range(50)))
    (tmp_path / "models.toml").write_text(
        '[[jobs]]\nname = "uff-main"\nrole = "main"\ncommand = ["{python}"]\ntarget_step = 9\nsteps_per_hour = 9\n'
        "mixture = {}\n"
    )
    (tmp_path / "own.toml").write_text(
        'models = ["models.toml"]\n[corpus]\nsources = ["text.md"]\n[[pools]]\nname = "desk"\nplatform = "local"\n'
    )
    folder = tmp_path / "week"
    clear(folder)
    app = prepare(rehearsal_in(folder), read_base(tmp_path / "own.toml"), seed=0)
    with app.database.read() as tx:
        found = events.tail(tx)
        (job,) = jobs.everything(tx)
    app.database.close()
    assert {"corpus.built", "job.added", "job.changed"} <= {event.kind for event in found}
    assert {event.at for event in found} == {1_000_000}
    assert job.spec.mixture is not None
    assert (folder / "artifacts" / "corpus" / job.spec.mixture.corpus).is_dir(), "it is pinned to what was built"
    assert app.settings.clock.stopped_at is None
