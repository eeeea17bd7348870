"""Exit codes: the table is right about classes that exist, the nearest base decides, and every code is reachable."""

import re
from collections.abc import Iterator
from importlib import import_module
from pkgutil import walk_packages
from typing import Any

import pytest
import typer

from config.errors import ConfigError, Problem
from jobs.problem import NotFound, ProblemsFound, Refusal
from platforms.artifacts.base import Missing, StoreError
from platforms.base import Misconfigured, Refused, Unreachable
from scheduler.cli.shell.context import GlobalOptions
from scheduler.cli.shell.exits import Exit, UsageFault, Violations, code_of, codes, report
from scheduler.core.job import Done, IllegalArrow
from scheduler.daemon import LostLeadership
from scheduler.store import errors as store
from scheduler.store.jobs import UnknownJob
from scheduler.store.lease import AlreadyRunning
from scheduler.store.runs import UnknownRun

PROBLEM = Problem("config.toml", "zone", '"x"', "there is no such time zone", "use UTC")


def test_every_name_in_the_table_is_an_exception() -> None:
    for address in codes():
        module, _, name = address.rpartition(".")
        assert issubclass(getattr(import_module(module), name), BaseException), address


# Programs that run elsewhere, and rooms that let no error of their own out: the planner falls back to a simpler layer,
# an adapter turns everything into PlatformError.
_ELSEWHERE = r"\.(payload|migrations|emulators|planner|__main__)\b|^platforms\.(?!artifacts)\w+\."

# Errors that are caught in their own room and so reach no command.
INNER = {
    "jobs.nouns.values.BadTable",
    "jobs.nouns.values.BadValue",
    "jobs.environment.tool.NoWheel",
    "jobs.payload.store.manifest.BadManifest",
    "jobs.problem.UserError",
    "jobs.nouns.keys.Wrong",
    "jobs.scores.ScoresError",
    "jobs.scores.VotesError",
    "platforms.bundle.BadArchive",
    "platforms.relay._UnusableDocument",
    "scheduler.cli.commands.top._Left",
    "scheduler.service.outside.child_process.ChildFailed",
    "scheduler.store.codec._OtherType",
    "scheduler.service.versions.model_sync.NoScores",
    "scheduler.store.schema.WrongType",
    "scheduler.web.actors.ActionRefused",
}


def our_exceptions() -> Iterator[type[Exception]]:
    """Yield every exception class of the four packages, but for those that cannot leave their room."""
    for package in ("scheduler", "platforms", "config", "jobs"):
        for module in walk_packages(import_module(package).__path__, f"{package}."):
            if re.search(_ELSEWHERE, module.name):
                continue
            for kind in vars(import_module(module.name)).values():
                if isinstance(kind, type) and issubclass(kind, Exception) and kind.__module__ == module.name:
                    yield kind


def test_every_exception_of_ours_has_a_code() -> None:
    """Without one it would be shown as a bug: put it into exits.toml, or into INNER when no command can meet it."""

    def address(kind: type) -> str:
        return f"{kind.__module__}.{kind.__qualname__}"

    uncoded = {
        address(kind) for kind in our_exceptions() if not {address(base) for base in kind.__mro__} & set(codes())
    }
    assert uncoded - INNER == set()


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ZeroDivisionError("x"), Exit.BUG),
        (typer.BadParameter("x"), Exit.USAGE),
        (UsageFault("a", "b", "c"), Exit.USAGE),
        (ConfigError([PROBLEM]), Exit.CONFIG),
        (ProblemsFound([PROBLEM]), Exit.CONFIG),
        (store.StoreFailure("a", "b", "c", "d"), Exit.DATABASE),
        (store.newer_database("a", "2", "1"), Exit.DATABASE),
        (UnknownJob("x", ()), Exit.NOT_FOUND),
        (UnknownRun("x"), Exit.NOT_FOUND),
        (NotFound("a", "b", "c"), Exit.NOT_FOUND),
        (Refusal("x"), Exit.REFUSED),
        (store.Stale("a", "b", "c"), Exit.REFUSED),
        (IllegalArrow("hold", Done(1)), Exit.REFUSED),
        (Refusal("a", "b", "c"), Exit.REFUSED),
        (Refused("kaggle", "launch", "no"), Exit.PLATFORM),
        (Unreachable("kaggle", "find", "no"), Exit.PLATFORM),
        (Misconfigured("kaggle", "load", "no"), Exit.PLATFORM),
        (Missing("read", "k", "no"), Exit.PLATFORM),
        (StoreError("put", "k", "no"), Exit.PLATFORM),
        (FileNotFoundError(2, "no such file"), Exit.PLATFORM),
        (LostLeadership("x"), Exit.LEADERSHIP),
        (store.Fenced(3), Exit.LEADERSHIP),
        (Violations("a", "b", "c"), Exit.VIOLATIONS),
        (KeyboardInterrupt(), Exit.INTERRUPTED),
        (BrokenPipeError(), Exit.BROKEN_PIPE),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_an_error_has_the_code_of_its_nearest_kind(error: BaseException, code: Exit) -> None:
    assert code_of(error) is code


def test_a_second_daemon_has_the_code_of_leadership(tmp_path: Any) -> None:
    assert code_of(AlreadyRunning(tmp_path / "lock", 7)) is Exit.LEADERSHIP


def test_every_problem_is_a_line_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert report(ConfigError([PROBLEM, PROBLEM]), GlobalOptions()) == Exit.CONFIG
    out, err = capsys.readouterr()
    line = 'schedctl: config.toml: zone = "x": there is no such time zone; use UTC\n'
    assert (out, err) == ("", line * 2)


def test_messages_are_cleaned_of_terminal_commands(capsys: pytest.CaptureFixture[str]) -> None:
    report(Refused("kaggle", "launch", "\x1b[31mno\x1b[0m\x07"), GlobalOptions())
    assert capsys.readouterr().err == "schedctl: kaggle: launch failed: no\n"


def test_an_error_as_json_has_the_promised_keys(capsys: pytest.CaptureFixture[str]) -> None:
    report(NotFound("unknown pool", "x is none", "See: schedctl pools"), GlobalOptions(json=True))
    assert capsys.readouterr().err == (
        '{"error": {"exit_code": 5, "kind": "NotFound", "message": "unknown pool: x is none. See: schedctl pools", '
        '"remedy": "See: schedctl pools", "problems": []}}\n'
    )
