"""The pictures of the documents are made by a program, which still works."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab.web.site import missing


@pytest.mark.nightly
def test_the_pictures_of_the_documents_can_be_made_anew(repository: Path, tmp_path: Path) -> None:
    if why := missing():
        pytest.skip(why)
    command = [sys.executable, "benchmarks/pictures.py", "--out", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(repository)}
    subprocess.run(command, cwd=repository, env=environment, check=True, capture_output=True, timeout=300)
    shipped = {file.name for file in (repository / "docs/pictures").iterdir()}
    assert {file.name for file in tmp_path.iterdir()} == shipped
    assert (tmp_path / "overview.png").read_bytes().startswith(b"\x89PNG")
    words = (tmp_path / "status.svg").read_text(encoding="utf-8")
    assert words.startswith("<svg")
    assert "uff-main" in words
    assert "Needs" in words
