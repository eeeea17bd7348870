"""The keys of `top`: a job is chosen, explained, held, released, weighed; its log is read; others are filtered away."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scheduler.cli.commands.top import View
from scheduler.cli.parts.screen import read_overview, sections
from scheduler.cli.shell.context import Cli
from scheduler.core.job import Held, Queued
from scheduler.store import jobs
from scheduler.store.engine import Database
from tests.lab.patience import until

NAMES = ["uff-main", "ufm", "ucm", "urm"]


@pytest.fixture
def view(world: Database) -> Iterator[View]:
    cli = Cli()
    yield View(cli, "place")
    cli.close()


def press(view: View, *keys: str) -> View:
    for key in keys:
        view.press(key, NAMES)
    return view


def state(database: Database, name: str) -> Any:
    with database.read() as tx:
        return jobs.get(tx, name).state


def test_arrows_choose_a_job_and_stay_on_the_list(view: View) -> None:
    assert press(view, "down").chosen == "uff-main"
    assert press(view, "j", "j").chosen == "ucm"
    assert press(view, "down", "down", "down").chosen == "urm"
    assert press(view, "k", "up").chosen == "ufm"


def test_a_hold_is_asked_for_and_a_release_is_not(view: View, world: Database) -> None:
    press(view, "j", "j", "j", "h")
    assert view.question() == "Hold ucm? y or n"
    press(view, "n")
    assert isinstance(state(world, "ucm"), Queued)
    press(view, "h", "y")
    assert isinstance(state(world, "ucm"), Held)
    assert view.question().startswith("ucm is held")
    press(view, "r")
    assert isinstance(state(world, "ucm"), Queued)
    press(view, "r")
    assert "cannot release ucm: it is queued" in view.question()


def test_a_weight_is_typed_and_a_wrong_one_is_refused_in_words(view: View, world: Database) -> None:
    press(view, "j", "p", "4", "5", "\x7f", "\r")
    with world.read() as tx:
        assert jobs.get(tx, "uff-main").spec.weight == 4
    press(view, "p", "x", "\r")
    assert "x is no priority" in view.question()
    press(view, "p", "7", "esc")
    with world.read() as tx:
        assert jobs.get(tx, "uff-main").spec.weight == 4


def test_filters_leave_the_jobs_that_are_asked_for(view: View) -> None:
    def shown() -> list[str]:
        found = read_overview(view.cli)
        return [
            row[1]
            for one in sections(found, view.cli.out, view.order, view.keeps)
            if one.title == "Jobs"
            for row in one.rows
        ]

    assert shown() == NAMES
    press(view, "f")
    assert (view.filter, shown()) == ("running", ["uff-main", "ufm"])
    press(view, "f")
    assert (view.filter, shown()) == ("waiting", ["ucm"])
    press(view, "f")
    assert (view.filter, shown()) == ("held or failed", ["urm"])
    press(view, "f", "/", "u", "f", "\r")
    assert (view.filter, view.name, shown()) == ("all", "uf", ["uff-main", "ufm"])
    press(view, "esc")
    assert (view.over, shown()) == (False, NAMES)
    press(view, "esc")
    assert view.over


def test_explain_tells_how_a_job_trains_and_what_it_needs(view: View) -> None:
    found = read_overview(view.cli)
    assert "the log of its newest session" in "\n".join(press(view, "?").lines(found, "UTC"))
    press(view, "esc", "j", "e")
    told = "\n".join(view.lines(found, "UTC"))
    assert "120 live, of 1,000 steps" in told
    assert "loss      2.25" in told
    view.chosen = "urm"
    assert "action    by tester: data are being cleaned: schedctl queue release urm" in "\n".join(
        view.lines(found, "UTC")
    )


def test_the_log_of_the_newest_session_is_followed_beside_the_drawing(view: View, home: Path) -> None:
    press(view, "j", "l")
    assert view.page == "log"
    until(lambda: "step 2" in view.log.copy(), "the log is read")
    assert list(view.log) == ["uff-uff-main-0001 on kaggle", "step 1", "step 2"]  # the other lane's lines are its own
    with (home / "state/sessions/kaggle/uff-uff-main-0001/output.log").open("ab") as more:
        more.write(b"ufm| step 8\nuff-main| step 3\n")
    until(lambda: view.log[-1] == "step 3", "the log grows")
    followed = view.left
    press(view, "esc")
    assert followed.is_set()  # nobody reads on for nobody
    view.chosen = "ucm"
    press(view, "l")
    assert list(view.log) == ["It has no session whose log can be read."]
