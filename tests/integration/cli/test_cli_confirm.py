"""What cannot be undone with a word asks first; what was kept can still be listed and copied."""

import io
from pathlib import Path

import pytest

from scheduler.core.job import Cancelled
from scheduler.store import events, jobs
from scheduler.store.engine import Database
from tests.integration.cli.conftest import Schedctl

ASKING = [("queue", "cancel", "--all"), ("queue", "remove", "ulm"), ("queue", "restart", "ulm")]


def changes(database: Database) -> int:
    with database.read() as tx:
        return events.newest_id(tx)


@pytest.mark.parametrize("words", ASKING, ids=" ".join)
def test_without_a_terminal_nothing_is_done_unless_yes_is_given(
    schedctl: Schedctl, world: Database, words: tuple[str, ...]
) -> None:
    before = changes(world)
    for more in ((), ("--json",)):
        told = schedctl(*words, *more)
        assert (told.code, told.out) == (6, "")
        assert "add --yes" in told.err
    assert changes(world) == before
    assert schedctl(*words, "--yes").code == 0
    assert changes(world) > before


@pytest.mark.parametrize("words", ASKING, ids=" ".join)
@pytest.mark.parametrize(("typed", "code"), [("y\n", 0), ("Yes\n", 0), ("n\n", 6), ("\n", 6), ("", 6), ("what\n", 6)])
def test_at_a_terminal_a_person_is_asked(
    schedctl: Schedctl,
    world: Database,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    typed: str,
    code: int,
) -> None:
    before = changes(world)
    monkeypatch.setattr("sys.stdin", io.StringIO(typed))
    for stream in ("stdin", "stderr"):
        monkeypatch.setattr(f"sys.{stream}.isatty", lambda: True, raising=False)
    told = schedctl(*words)
    assert told.code == code, told.err
    assert "? " in told.err
    assert "[y/N] " in told.err
    assert (changes(world) > before) is (code == 0)


def test_the_question_says_what_will_happen(schedctl: Schedctl, world: Database) -> None:
    assert "Cancel 4 jobs (ucm, uff-main, ufm, urm)? 2 sessions will save and end" in schedctl(*ASKING[0]).err
    assert "Remove ulm from the queue? Its runs, hours and checkpoints stay" in schedctl(*ASKING[1]).err
    assert "Begin ulm again at step 0? It is at step 500" in schedctl(*ASKING[2]).err
    for words in (("queue", "remove", "nobody"), ("queue", "restart", "nobody")):
        assert schedctl(*words).code == 5  # asked about nothing that is not there


def test_named_jobs_are_cancelled_without_a_question(schedctl: Schedctl, world: Database) -> None:
    assert schedctl("queue", "cancel", "ucm").code == 0


def test_who_cancelled_everything_learns_how_to_take_it_back(schedctl: Schedctl, world: Database) -> None:
    cancelled = schedctl("queue", "cancel", "--all", "--yes", "--json").document["jobs"]
    told = schedctl("queue", "release", "--all")
    names = sorted(job["name"] for job in cancelled)
    assert told.code == 0
    (line,) = [line for line in told.err.splitlines() if "stay cancelled" in line]
    command = line.partition("schedctl ")[2].split()
    assert sorted(command[2:]) == names
    assert schedctl(*command).code == 0
    with world.read() as tx:
        assert not [record for record in jobs.everything(tx) if isinstance(record.state, Cancelled)]
    assert "cancelled" not in schedctl("queue", "release", "--all").err


def test_what_a_removed_job_saved_is_listed_checked_and_copied(
    schedctl: Schedctl, world: Database, tmp_path: Path
) -> None:
    before = schedctl("--json", "checkpoints", "list", "ulm").document
    assert before["checkpoints"]
    assert schedctl("queue", "remove", "ulm", "--yes").code == 0
    assert schedctl("--json", "checkpoints", "list", "ulm").document == before
    assert schedctl("--json", "checkpoints", "retention", "ulm").document["checkpoints"]
    assert schedctl("--json", "runs", "list", "--job", "ulm").document["runs"]
    assert schedctl("checkpoints", "verify", "ulm").code == 0
    assert schedctl("checkpoints", "pull", "ulm", str(tmp_path / "copy")).code == 0
    assert any((tmp_path / "copy").iterdir())
    for words in (("list",), ("retention",), ("verify",), ("pull",)):
        folder = (str(tmp_path / "other"),) if words == ("pull",) else ()
        assert schedctl("checkpoints", *words, "nobody", *folder).code == 5


@pytest.mark.parametrize(
    ("typed", "suggested", "never"),
    [
        ("start", "", "restart"),
        ("move-out", "", "remove"),
        ("restrat", "'restart'", "remove"),
        ("cancle", "'cancel'", "remove"),
        ("relase", "'release'", "remove"),
    ],
)
def test_a_word_is_not_answered_with_something_destructive_that_was_not_meant(
    schedctl: Schedctl, world: Database, typed: str, suggested: str, never: str
) -> None:
    told = schedctl("queue", typed, "ufm")
    assert told.code == 2
    assert suggested in told.err
    assert never not in told.err


def test_resume_says_that_work_goes_on(schedctl: Schedctl, world: Database) -> None:
    schedctl("pause", "--why", "no power on Sunday")
    told = schedctl("resume").out
    assert told.startswith("Resumed: new sessions start again. (Until now, since ")
    assert "no power on Sunday" in told
