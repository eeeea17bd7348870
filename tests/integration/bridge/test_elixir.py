"""The Elixir client: its own tests against a real port, its JSON against Python's, and its text in order."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.lab.night import one_in
from tests.lab.web.world import World

pytestmark = pytest.mark.services("mix")

PROJECT = Path(__file__).parents[3] / "bridges" / "elixir"
_CHARACTERS = ["a", "é", "\u2028", "\U0001f600", '"', "\\", "\n", "\x00", "\x7f", "/", "\uffff", "\ue000"]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project, compiled for tests where nothing of ours is kept."""
    folder = tmp_path_factory.mktemp("elixir") / "project"
    shutil.copytree(PROJECT, folder, ignore=shutil.ignore_patterns("_build", "deps"))
    done = mix(folder, "compile", "--warnings-as-errors")
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def mix(folder: Path, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    here = {"LANG": "C.UTF-8", "MIX_ENV": "test", "HOME": str(folder.parent), "MIX_BUILD_PATH": str(folder / "_build")}
    return subprocess.run(
        ["mix", *words],
        check=False,
        cwd=folder,
        env={**os.environ, **here, **environ},
        capture_output=True,
        text=True,
        timeout=900,
    )


def test_its_own_tests_pass_against_a_real_port(world: World, project: Path) -> None:
    seeds = str(12 // one_in())
    place = {"UFF_TEST_CONFIG": str(world.config), "UFF_TEST_PYTHON": sys.executable, "UFF_TEST_SEEDS": seeds}
    done = mix(project, "test", "--seed", "0", **place)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 failures" in done.stdout
    assert "excluded" not in done.stdout


def test_it_is_written_as_the_formatter_wants_it(project: Path) -> None:
    done = mix(project, "format", "--check-formatted")
    assert done.returncode == 0, done.stdout + done.stderr


def test_both_codecs_read_and_write_the_same_values(project: Path, tmp_path: Path) -> None:
    """Python's text, plain and escaped, is read to the same value; what neither should read is refused by both."""
    chance = random.Random(20)
    values = [_value(chance, 4) for _ in range(10_000 // one_in())]
    good = [json.dumps(value, ensure_ascii=chance.random() < 0.5) for value in values]
    bad = [_damaged(chance, text) for text in good]
    (tmp_path / "in").write_text("".join(f"{text}\n" for text in [*good, *bad]), encoding="utf-8")
    done = mix(project, "run", "test/support/codec.exs", str(tmp_path / "in"), str(tmp_path / "out"))
    assert done.returncode == 0, done.stdout + done.stderr
    said = (tmp_path / "out").read_text(encoding="utf-8").split("\n")[:-1]
    assert [_typed(json.loads(text)) for text in said[: len(good)]] == [_typed(value) for value in values]
    for text, answer in zip(bad, said[len(good) :], strict=True):
        expected = _read(text)
        found = None if answer.startswith("error: ") else (json.loads(answer),)
        assert (_typed(found), text) == (_typed(expected), text)


def _value(chance: random.Random, depth: int) -> Any:
    kind = chance.randrange(8 if depth else 6)
    if kind == 6:
        return [_value(chance, depth - 1) for _ in range(chance.randrange(4))]
    if kind == 7:
        return {_text(chance): _value(chance, depth - 1) for _ in range(chance.randrange(4))}
    number = chance.uniform(-1, 1) * 10.0 ** chance.randrange(-300, 300)
    whole = chance.randrange(-(10 ** chance.randrange(1, 30)), 10 ** chance.randrange(1, 30))
    return [None, chance.random() < 0.5, whole, number, _text(chance), ""][kind]


def _text(chance: random.Random) -> str:
    return "".join(chance.choices(_CHARACTERS, k=chance.randrange(6)))


def _damaged(chance: random.Random, text: str) -> str:
    at = chance.randrange(len(text))
    return (
        text[:at] + chance.choice(["", "0", '"', "\\", "{", "e", ",", "\x01", " "]) + text[at + chance.randrange(2) :]
    )


def _read(text: str) -> tuple[Any] | None:
    """Return what a strict reader of JSON makes of a text: no NaN, no infinities, no half surrogate pairs."""

    def none(word: str) -> Any:
        raise ValueError(word)

    try:
        found = json.loads(text, parse_constant=none)
        json.dumps(found, allow_nan=False)
        json.dumps(found, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return None
    return (found,)


def _typed(value: Any) -> Any:
    """Return a value in which 1 and 1.0 and True differ."""
    match value:
        case dict():
            return {key: _typed(inner) for key, inner in value.items()}
        case list() | tuple():
            return [_typed(inner) for inner in value]
        case _:
            return type(value).__name__, value
