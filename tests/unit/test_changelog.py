"""The changelog is made of fragments: each is one sentence of a known kind, and a release puts them on top."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from typing import TYPE_CHECKING

from tests.lab.patience import PATIENCE_SECONDS

if TYPE_CHECKING:
    from pathlib import Path


def test_fragments_are_sentences_of_known_kinds(repository: Path) -> None:
    kinds = tomllib.loads((repository / "pyproject.toml").read_text())["tool"]["towncrier"]["type"]
    endings = {f"{kind['directory']}.md" for kind in kinds}
    for fragment in (repository / "changelog.d").iterdir():
        if fragment.name != "README.md":
            assert fragment.name.partition(".")[2] in endings, fragment.name
            lines = fragment.read_text(encoding="utf-8").splitlines()
            assert len(lines) == 1, f"{fragment.name} is one line"
            assert lines[0].endswith("."), f"{fragment.name} ends like a sentence"


def test_a_release_puts_its_section_before_those_of_older_ones(repository: Path, tmp_path: Path) -> None:
    for name in ("pyproject.toml", "CHANGELOG.md"):
        shutil.copy(repository / name, tmp_path)
    shutil.copytree(repository / "changelog.d", tmp_path / "changelog.d")
    (tmp_path / "changelog.d/clock.fixed.md").write_text("A clock that jumps ends no session.\n")
    before = (tmp_path / "CHANGELOG.md").read_text(encoding="utf-8")
    build = [sys.executable, "-m", "towncrier", "build", "--yes", "--version", "9.0.0", "--date", "2030-01-02"]
    subprocess.run(build, cwd=tmp_path, check=True, capture_output=True, timeout=PATIENCE_SECONDS)
    head, new, older = (tmp_path / "CHANGELOG.md").read_text(encoding="utf-8").partition("\n## [9.0.0] - 2030-01-02\n")
    assert new
    assert before.startswith(head)
    fixed = older[: older.index("\n## [")].partition("\n### Fixed\n\n")[2].partition("\n### ")[0]
    assert "- A clock that jumps ends no session.\n" in fixed, "whatever else was fixed, and wherever it is sorted to"
