"""docs/answers.md: every command that it shows is run, and gives the figures that stand beside it."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from scheduler.cli.root import invoke
from scheduler.cli.shell.context import Options

_FIGURE = re.compile(r"`([\w.]+)` ([^`;|]+?)(?=, `|;|\s*$)")
TEXT = (Path(__file__).resolve().parents[2] / "docs/answers.md").read_text(encoding="utf-8")


def answers() -> list[tuple[str, list[tuple[str, str]]]]:
    """Every command with the paths into its JSON and what stands beside them."""
    found = []
    for cell in re.findall(r"^\|[^|]*\|[^|]*\| (`schedctl advise .*) \|$", TEXT, re.MULTILINE):
        for part in re.split(r"; (?=`schedctl )", cell):
            command, _, figures = part.partition("` gives ")
            found.append((command.removeprefix("`schedctl "), _FIGURE.findall(figures)))
    return found


def at(document: Any, path: str) -> Any:
    for key in path.split("."):
        document = document[int(key)] if isinstance(document, list) else document[key]
    return document


def test_each_of_the_four_documents_is_answered() -> None:
    for heading in ("(000)", "(001)", "(002)", "(004)"):
        section = TEXT.partition(heading)[2].partition("\n## ")[0]
        assert section.count("\n| ") > 5, heading
    assert len(answers()) > 50
    assert all(figures for _, figures in answers())


@pytest.mark.parametrize("words", sorted({command for command, _ in answers()}))
def test_a_command_gives_the_figures_beside_it(words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = tmp_path / "config.toml"
    settings.write_text(f'state_dir = "{tmp_path}"\n', encoding="utf-8")
    assert invoke(shlex.split(words), Options(config=settings, json=True)) == 0
    document = json.loads(capsys.readouterr().out)
    for command, figures in answers():
        for path, said in figures if command == words else ():
            value = at(document, path)
            if isinstance(value, bool | str):
                assert str(value) == said, path
            else:
                assert float(said) == pytest.approx(value, rel=0.01), path
