"""What the first pages tell a newcomer to type does what they say, in an installation in the middle of its week."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from scheduler.store.engine import Database

Schedctl = Any  # see conftest.py
FENCE = re.compile(r"^```[a-z]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
# They run until they are stopped, change the machine, or take minutes; tests of their own run them.
APART = {"daemon", "rehearse", "service", "web", "top"}
# How many commands each page shows at least. tests/e2e/test_quickstart.py types the quickstart.
PAGES = {"README.md": 4, "docs/reports.md": 1}


@pytest.mark.parametrize("document", PAGES)
def test_the_commands_of_the_first_pages_work(
    world: Database, home: Path, schedctl: Schedctl, repository: Path, document: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(home)
    done = 0
    text = (repository / document).read_text(encoding="utf-8")
    for block in FENCE.findall(text):
        for line in block.splitlines():
            words = shlex.split(line.partition(" #")[0].removeprefix("sudo "))
            if words[:1] != ["schedctl"] or words[1] in APART:
                continue
            answer = schedctl(*words[1:])
            assert answer.code == 0, f"{line}: {answer.err}"
            done += 1
    assert done >= PAGES[document]
