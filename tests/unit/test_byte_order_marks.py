"""A mark of byte order, which editors of Windows write, costs nothing wherever text comes in."""

import codecs
from pathlib import Path

from config.credentials import read_secret
from jobs.code.pack import _rules
from jobs.payload.scorers.items import read_items
from jobs.toml_file import read_toml

MARK = codecs.BOM_UTF8


def test_settings_and_jobs(tmp_path: Path) -> None:
    (tmp_path / "jobs.toml").write_bytes(MARK + b'name = "uff"\n')
    assert read_toml(tmp_path / "jobs.toml") == {"name": "uff"}


def test_item_sets(tmp_path: Path) -> None:
    (tmp_path / "set.jsonl").write_bytes(MARK + b'{"id": "a", "text": "x"}\n{"id": "b", "text": "y"}\n')
    assert list(read_items(tmp_path / "set.jsonl").items) == ["a", "b"]


def test_ignore_files(tmp_path: Path) -> None:
    (tmp_path / ".schedignore").write_bytes(MARK + b"data/\n")
    assert _rules(tmp_path).leaves_out("data/x")
    assert not _rules(tmp_path).leaves_out("src/x")


def test_secrets(tmp_path: Path) -> None:
    (tmp_path / "token").write_bytes(MARK + b"word\n")
    (tmp_path / "token").chmod(0o600)
    assert read_secret("token", {"CREDENTIALS_DIRECTORY": str(tmp_path)}, tmp_path) == "word"
