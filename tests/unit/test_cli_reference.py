"""docs/cli.md against the code: every command and exit code is in it, and it names nothing that is not there."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from scheduler.cli.root import COMMANDS, tree
from scheduler.cli.shell.exits import MEANINGS, Exit


def commands() -> Iterator[tuple[str, Any]]:
    """Yield every command that does something, with its words."""
    root = tree()
    for name in COMMANDS:
        found: Any = root.get_command(cast("Any", None), name)
        inner = getattr(found, "commands", {})
        if not inner or found.invoke_without_command:
            yield f"schedctl {name}", found
        for word, command in inner.items():
            yield f"schedctl {name} {word}", command


ALL = dict(commands())


@pytest.fixture(scope="module")
def reference(repository: Path) -> str:
    return (repository / "docs" / "cli.md").read_text(encoding="utf-8")


def test_there_are_commands() -> None:
    assert len(ALL) > 30


@pytest.mark.parametrize("words", sorted(ALL))
def test_every_command_is_in_the_reference(words: str, reference: str) -> None:
    assert re.search(rf"`{words}[` ]", reference)


def test_the_reference_names_only_commands_that_exist(reference: str) -> None:
    cells = re.findall(r"^\| `(schedctl(?: [a-z]+(?:-[a-z]+)*)+)", reference, flags=re.MULTILINE)
    assert set(cells) == set(ALL)


@pytest.mark.parametrize("words", sorted(ALL))
def test_every_option_of_the_reference_exists(words: str, reference: str) -> None:
    command = ALL[words]
    known = {option for param in command.params for option in param.opts}
    rows = re.findall(rf"^\| `{words}( (?![a-z])[^`]*)?` \|", reference, flags=re.MULTILINE)
    named = {option for row in rows for option in re.findall(r"(?<![\w-])--?[a-z][a-z-]*", row)}
    assert named <= known


@pytest.mark.parametrize("words", sorted(ALL))
def test_the_help_of_every_command_has_an_example_and_a_summary(words: str) -> None:
    command = ALL[words]
    assert command.help
    name = words.removeprefix("schedctl ")
    assert re.search(rf"Examples?:\n  schedctl.* ?{name}", command.epilog), command.epilog


@pytest.mark.parametrize("words", sorted(ALL))
def test_every_command_takes_the_shared_options(words: str) -> None:
    known = {option for param in ALL[words].params for option in param.opts}
    assert {"--config", "--json", "--no-color", "--debug"} <= known


@pytest.mark.parametrize("words", sorted(ALL))
def test_every_option_and_argument_is_explained(words: str) -> None:
    assert [param.name for param in ALL[words].params if not param.help] == []


def test_exit_codes_are_listed_as_they_are(reference: str) -> None:
    rows = re.findall(r"^\| (\d+) \| (\w+) \| (.*) \|$", reference, flags=re.MULTILINE)
    assert rows == [(str(int(code)), code.name, meaning) for code, meaning in MEANINGS.items()]
    assert set(MEANINGS) == set(Exit)
