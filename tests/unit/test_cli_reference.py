"""The commands against their reference: docs hold what the code says, and every command explains itself."""

import re
from pathlib import Path
from typing import Any

import pytest

from scheduler.cli.root import COMMANDS, tree
from scheduler.cli.shell.command import load_command
from scheduler.cli.shell.exits import Exit, meanings
from tests.lab.reference import PARTS, commands, written

ALL = dict(commands())


def test_there_are_commands() -> None:
    assert len(ALL) > 30


def test_the_documents_hold_what_the_code_says(repository: Path) -> None:
    """Else: make reference."""
    pages = {page: page.read_text(encoding="utf-8") for page in sorted((repository / "docs").rglob("*.md"))}
    assert [page.name for page, text in pages.items() if written(text) != text] == []
    parts = re.findall(r"<!-- (\w+): make reference -->", "".join(pages.values()))
    assert sorted(parts) == sorted(PARTS)


@pytest.mark.parametrize("page", ["events", "log", "outcomes"])
def test_every_name_of_a_generated_table_has_a_meaning(repository: Path, page: str) -> None:
    """The names come from the code, the meanings are written by hand into the page: docs/reference."""
    text = (repository / "docs/reference" / f"{page}.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([^`]+)` \|(?:.*\|)? *([^|]*?) *\|$", text, re.MULTILINE)
    assert len(rows) > 20
    assert [name for name, meaning in rows if not meaning] == []


def test_every_command_has_a_row_with_all_that_it_takes() -> None:
    rows = "\n".join(PARTS["commands"]())
    named = re.findall(r"^- `((?:[a-z]+(?:-[a-z]+)*(?: |(?=`)))+)", rows, flags=re.MULTILINE)
    assert {f"schedctl {words.strip()}" for words in named} == set(ALL)
    assert "`queue hold [JOB...] [--reason TEXT] [--all]`" in rows
    assert "`queue edit JOB [FILE] [--set KEY=VALUE]... [--force]`" in rows


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


def test_every_exit_code_has_a_meaning() -> None:
    assert set(meanings()) == set(Exit)


def test_a_command_that_is_loaded_later_has_the_summary_of_its_help() -> None:
    groups = [name for name, (where, _) in COMMANDS.items() if where.startswith("groups:")]
    assert len(groups) > 10
    for name in groups:
        group: Any = load_command(tree().commands[name])
        for word, stub in group.commands.items():
            command = load_command(stub)
            assert stub.get_short_help_str(300) == command.get_short_help_str(300), f"{name} {word}"
