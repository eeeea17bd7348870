"""Examples of the help: each is understood as it stands, and a file of one's own that it names is shown beside it."""

import re
import shlex
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from scheduler.cli.root import COMMANDS, tree
from scheduler.cli.shell.command import CliCommand, load_command
from scheduler.cli.shell.exits import Exit
from scheduler.store.engine import Database
from tests.integration.cli.conftest import SETTINGS
from tests.lab.typed import Typed

# These go on for ever, change this machine, want a terminal, or ask somebody far away: their words are parsed only.
_PARSED_ONLY = re.compile(
    r"schedctl (--config \S+ )?(daemon|web serve|port$|mcp|rehearse|top$|service (un)?install(?!.*--dry-run)|"
    r"service status|db move|doctor kaggle|runs logs .*-f|queue edit ufm$)"
)
# Names of what only a person's own weeks bring, and states that a job is in at another time: an example may well
# meet a refusal with a reason, never a complaint about its words or its files.
_HONEST = {Exit.OK, Exit.NOT_FOUND, Exit.REFUSED, Exit.VIOLATIONS}


def _helps() -> Iterator[str]:
    root = tree()
    yield root.epilog or ""
    for name in COMMANDS:
        found: Any = load_command(root.commands[name])
        yield found.epilog or ""
        yield from (load_command(inner).epilog or "" for inner in getattr(found, "commands", {}).values())


HELPS = tuple(_helps())
EXAMPLES = sorted({line.strip() for text in HELPS for line in text.splitlines() if line.startswith("  schedctl")})


def _files_shown(example: str) -> dict[str, str]:
    """Return what the help with this example says that files hold."""
    text = next(text for text in HELPS if f"  {example}" in text.splitlines())
    blocks = re.findall(r"^where (\S+) holds:\n((?:    .*(?:\n|$))+)", text, re.MULTILINE)
    return {name: re.sub(r"^    ", "", lines, flags=re.MULTILINE) for name, lines in blocks}


def _words(example: str, folder: Path) -> list[str]:
    """Return an example's words as a shell splits them, with places of the whole machine moved below ``folder``."""
    dated = example.replace("$(date +%F)", "2026-11-21")
    words = shlex.split(dated, comments=True)[1:]
    return [re.sub(r"^(/etc|/backups|~)/", lambda found: f"{folder}/{found[1].strip('/~')}/", word) for word in words]


@pytest.fixture
def typed(
    world: Database, home: Path, schedctl: Callable[..., Typed], monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], Typed]:
    """Type an example in a folder with what its help shows, and what people have at the places that it names."""
    with_texts = SETTINGS + '[corpus]\nsources = ["stdlib"]\n'
    (home / "config.toml").write_text(with_texts)
    settings = with_texts.replace('"models.toml"', f'"{home}/models.toml"').replace('"state"', f'"{home}/state"')
    for name in ("new.toml", "etc/uff-scheduler/config.toml", "out/week/rehearsal.toml"):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(settings)
    (home / "uff-ufm-0007-result.zip").write_bytes(b"what a person brings back")
    (home / "backups").mkdir()
    (home / "garden" / "episodes").mkdir(parents=True)
    (home / "texts").mkdir()
    (home / "texts" / "train-0.jsonl").write_text('{"text": "once upon a time"}\n')
    (home / "items.jsonl").write_text('{"id": "one", "prompt": "Hello"}\n')
    monkeypatch.chdir(home)
    monkeypatch.setenv("HOME", str(home))

    def type_it(example: str) -> Typed:
        for name, text in _files_shown(example).items():
            (home / name).write_text(text)
        if "~/trainer" in example:
            _repository(home / "trainer", "v2")
        if "db restore /backups" in example:
            assert schedctl("db", "backup", str(home / "backups" / "scheduler-2026-11-21.db")).code == Exit.OK
            world.close()
        return schedctl(*_words(example, home))

    return type_it


def _repository(folder: Path, tag: str) -> None:
    """Make a repository with one file, in a commit of that name."""
    folder.mkdir()
    (folder / "train.py").write_text("print('PROGRESS 1')\n")
    who = ("-c", "user.name=me", "-c", "user.email=me@example.org")
    for words in (("init", "-q"), ("add", "train.py"), (*who, "commit", "-qm", "train"), ("tag", tag)):
        subprocess.run(("git", "-C", str(folder), *words), check=True)


def test_there_are_examples() -> None:
    assert len(EXAMPLES) > 60


@pytest.mark.parametrize("example", [text for text in EXAMPLES if _PARSED_ONLY.match(text)])
def test_every_word_of_an_example_is_understood(
    example: str, home: Path, schedctl: Callable[..., Typed], monkeypatch: pytest.MonkeyPatch
) -> None:
    reached: list[str] = []
    monkeypatch.setattr(CliCommand, "invoke", lambda _, ctx: reached.append(ctx.command_path))
    monkeypatch.setattr("scheduler.cli.main.parse_plain_command", lambda _: None)
    done = schedctl(*_words(example, home))
    assert done.code == Exit.OK, done.err
    assert len(reached) == 1


@pytest.mark.parametrize("example", [text for text in EXAMPLES if not _PARSED_ONLY.match(text)])
def test_an_example_runs_as_typed(example: str, typed: Callable[[str], Typed]) -> None:
    done = typed(example)
    assert done.code in _HONEST, done.err
    if "queue add" in example or "what-if" in example or "schedctl submit" in example:
        assert done.code == Exit.OK, done.err
