"""examples/settings: each file is complete, and `schedctl config check` accepts it."""

import json
from pathlib import Path

import pytest

from scheduler.cli.root import invoke
from scheduler.cli.shell.context import GlobalOptions

FOLDER = Path(__file__).resolve().parents[2] / "examples/settings"
FILES = sorted(file.name for file in FOLDER.glob("*.toml"))
# What the machine that runs the test need not have.
ELSEWHERE = ("no credentials found", "is not installed", "cannot be imported", "there is no", "no such file")


@pytest.mark.parametrize("name", FILES)
def test_settings_of_a_use_case_are_accepted(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SCHEDCTL_STATE_DIR", str(tmp_path))
    assert invoke(["config", "check"], GlobalOptions(config=FOLDER / name, json=True)) == 0
    checked = json.loads(capsys.readouterr().out)
    assert checked["pools"]
    assert [
        warning for warning in checked["warnings"] if not any(words in json.dumps(warning) for words in ELSEWHERE)
    ] == []


def test_every_file_is_in_the_list_of_the_folder() -> None:
    assert len(FILES) >= 5
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert [name for name in FILES if f"({name})" not in text] == []
