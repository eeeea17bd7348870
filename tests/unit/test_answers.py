"""docs/answers.md: every command behind an answer (answers.toml) is run, and gives the figures that the page shows."""

import json
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest

from scheduler.cli.root import invoke
from scheduler.cli.shell.context import GlobalOptions

PAGE = (Path(__file__).resolve().parents[2] / "docs/answers.md").read_text(encoding="utf-8")
ANSWERS: list[dict[str, Any]] = tomllib.loads(
    (Path(__file__).resolve().parent / "answers.toml").read_text(encoding="utf-8")
)["answers"]
SECTIONS = tuple(dict.fromkeys(answer["section"] for answer in ANSWERS))
COMPUTED: list[tuple[str, dict[str, Any]]] = [
    (part["command"], part["gives"]) for answer in ANSWERS for part in answer["computed"]
]
# A figure of the page: in GiB, or in hours.
_FIGURE = re.compile(r"(\d+\.\d+) (?:GiB|h)\b")


def answers(section: str) -> dict[str, str]:
    """Return the answer to each question of a section, as the page has it."""
    text = PAGE.partition(f"## {section}\n")[2].partition("\n## ")[0]
    points = "\n".join(" ".join(point.split()) for point in text.split("\n- ")[1:])
    return dict(re.findall(r"^\*\*(.*?)\*\* (.*)$", points, flags=re.MULTILINE))


def at(document: Any, path: str) -> Any:
    for key in path.split("."):
        document = document[int(key)] if isinstance(document, list) else document[key]
    return document


@pytest.mark.parametrize("section", SECTIONS)
def test_each_example_has_the_questions_whose_answers_are_computed(section: str) -> None:
    asked = [answer["question"] for answer in ANSWERS if answer["section"] == section]
    assert list(answers(section)) == asked
    assert len(asked) >= 5


def test_every_figure_of_an_answer_is_computed() -> None:
    assert len(SECTIONS) == 4
    assert len(COMPUTED) > 50
    assert all(figures for _, figures in COMPUTED)
    seen = 0
    for answer in ANSWERS:
        figures = [
            value for part in answer["computed"] for value in part["gives"].values() if type(value) in (int, float)
        ]
        for shown in _FIGURE.findall(answers(answer["section"])[answer["question"]]):
            room = 0.51 * 10 ** -len(shown.partition(".")[2])
            assert any(abs(value - float(shown)) <= room for value in figures), (answer["question"], shown)
            seen += 1
    assert seen > 15


@pytest.mark.parametrize("words", sorted({command for command, _ in COMPUTED}))
def test_a_command_gives_the_figures_beside_it(words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = tmp_path / "config.toml"
    settings.write_text(f'state_dir = "{tmp_path}"\n', encoding="utf-8")
    assert invoke(shlex.split(words), GlobalOptions(config=settings, json=True)) == 0
    document = json.loads(capsys.readouterr().out)
    for command, figures in COMPUTED:
        for path, said in figures.items() if command == words else ():
            value = at(document, path)
            if isinstance(value, bool | str):
                assert value == said, path
            else:
                assert said == pytest.approx(value, rel=0.01), path
