"""What is not known is an empty cell or a dash: Python's word for it is in no table, page or report."""

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import structlog

from config.load import load
from scheduler.app import App
from scheduler.core.run import Lane, Reserved, Run
from scheduler.store import jobs, runs
from scheduler.store.engine import Database
from scheduler.web.site import site
from tests.integration.cli.conftest import NOW, spec
from tests.lab.typed import Typed

KEY = "uff-uff-main-0001"
NOTHING = re.compile(r"\b(None|null|nan|NaN|undefined)\b")
COMMANDS = (
    "status", "status --all", "top --once", "queue list", "queue show uff-main", "queue show ucm", "queue show new",
    "runs list", f"runs show {KEY}", "runs show uff-new-0001", "pools", "quota", "plan show", "plan preview",
    "plan explain ucm", "plan explain new", "checkpoints list", "checkpoints retention", "checkpoints verify",
    "report weekly", "report weekly --format html", "report weekly --format markdown", "doctor", "handover list",
    "queue forecast ufm", "advise hours", "config show daemon", "prompt", "version", "db verify",
)  # fmt: skip
PAGES = ("/", "/queue", "/jobs/uff-main", "/jobs/new", "/runs", f"/runs/{KEY}", "/runs/uff-new-0001", "/quota", "/plan")


@pytest.fixture(params=["silent", "half", "nothing"])
def little_known(request: pytest.FixtureRequest, world: Database) -> None:
    """Sessions that have said nothing yet, or half of it, and one that was accepted a moment ago."""
    said: dict[str, dict[str, Any]] = {
        "silent": {},
        "half": {"phase": "setup"},
        "nothing": dict.fromkeys(("phase", "step", "loss", "steps_per_second", "message", "why")),
    }
    with world.write() as tx:
        jobs.add(tx, spec("new"), NOW)
        runs.insert(
            tx,
            Run("uff-new-0001", "desk", (Lane(0, "new", 1, (0,), None),), NOW, NOW + 900, NOW + 900, Reserved(NOW)),
            NOW,
        )
        for lane in (0, 1):
            runs.note_heartbeat(tx, KEY, lane, said[request.param])


@pytest.mark.parametrize("words", COMMANDS)
def test_no_cell_says_none(words: str, little_known: None, schedctl: Callable[..., Typed]) -> None:
    done = schedctl(*words.split())
    assert done.code in {0, 9}, done.err
    told = re.sub(r"<(style|svg)\b.*?</\1>", "", done.out, flags=re.DOTALL) + done.err
    assert NOTHING.search(told) is None, told


def test_no_page_says_none(little_known: None, home: Path) -> None:
    app = App(load(home / "config.toml"))
    guarded = site(app, None, structlog.get_logger())

    async def ask() -> dict[str, str]:
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(guarded), base_url="http://127.0.0.1:8765"
        ) as client:
            return {place: (await client.get(place)).text for place in PAGES}

    answers = asyncio.run(ask())
    app.reading.close()
    said = {place: re.sub(r"<[^>]*>", " ", text) for place, text in answers.items()}
    assert {place: NOTHING.findall(text) for place, text in said.items() if NOTHING.search(text)} == {}
