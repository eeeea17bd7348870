"""A rehearsal held against a stand-in that somebody else has started: here our own, behind nothing but its address."""

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from jobs.nouns.window import Window
from jobs.problem import Refusal
from scheduler.clock import real_now
from scheduler.core.ledger import seconds_within
from scheduler.rehearsal.stand_ins import use_kaggle_emulator
from scheduler.store import ledger
from scheduler.store.engine import open_database
from tests.lab.kaggle import FLIPPED, drawn_answers
from tests.lab.patience import PATIENCE_SECONDS, slowness

Account = Any

SETTINGS = """
[corpus]
sources = ["{text}"]

[[pools]]
name = "kaggle"
platform = "local"
devices_per_session = 2
sessions_max = 2
session_cap = "3h"
session_min = "30m"
setup = "10m"
start_delay = "5m"
stop_margin = "15m"
overrun = "10m"

[[pools.quotas]]
name = "GPU hours of the week"
kind = "week"
limit = "30h"
resets = "Saturday 00:00"
zone = "UTC"
"""


@pytest.mark.parametrize(
    "habits",
    [
        pytest.param({}, id="as assumed"),
        *(pytest.param(habits, id=question, marks=pytest.mark.nightly) for question, habits in FLIPPED.items()),
        *(pytest.param(drawn_answers(seed), id=f"answers {seed}", marks=pytest.mark.nightly) for seed in range(5)),
    ],
)
def test_a_rehearsal_runs_on_a_server_that_is_only_an_address(
    account_at: Callable[..., Account], tmp_path: Path, habits: dict[str, Any]
) -> None:
    """Sessions run there by relay, checkpoints come home, and the charge is what the server bills.

    So it is with either answer to what only an account can show.
    """
    scale = round(900 / slowness())
    account = account_at(scale=float(scale), **habits)
    (tmp_path / "text").mkdir()
    for number in range(40):
        words = f"The federation of node {number} shares its load and balances content formats. " * 20
        (tmp_path / "text" / f"{number}.txt").write_text(words)
    (tmp_path / "settings.toml").write_text(SETTINGS.format(text=tmp_path / "text"))
    epoch = account.clock.payload_clock()["epoch"] + (real_now() - account.clock.payload_clock()["origin"]) * scale
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "KAGGLE_USERNAME": "alice",
        "KAGGLE_KEY": account.place.key,
    }
    command = [sys.executable, "-m", "scheduler", "--config", str(tmp_path / "settings.toml"), "--json", "rehearse"]
    figures = ["--out", str(tmp_path / "week"), "--hours", "5", "--scale", str(scale), "--epoch", _instant(epoch)]
    done = subprocess.run(
        [*command, *figures, "--kaggle-proxy", account.server.address],
        env=environment,
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    week = json.loads(done.stdout)
    assert week["violations"] == []
    assert account.place.sessions()
    assert not any(session.live for session in account.place.sessions())
    assert list((tmp_path / "week" / "artifacts" / "jobs").rglob("manifests/*.json"))
    start, end = map(int, account.place.week(account.now()))
    with open_database(f"sqlite:///{tmp_path}/week/state/scheduler.db").read() as tx:
        booked = seconds_within(ledger.charges(tx, 0)["kaggle"], Window(start, end))
    assert booked == math.ceil(account.place.seconds_used(start, end))


@pytest.mark.parametrize(
    ("pool", "key", "address", "says"),
    [
        ("kaggle", "another", "", "are refused"),
        ("kaggle", "", "", "no credentials found"),
        ("kaggle", "any", "http://127.0.0.1:9", "no server answers"),
        ("desk", "any", "", "no pool of Kaggle"),
    ],
)
def test_what_cannot_work_is_refused_before_an_earlier_rehearsal_is_cleared(
    account: Account, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, pool: str, key: str, address: str, says: str
) -> None:
    for name, text in {"KAGGLE_USERNAME": "alice" if key else "", "KAGGLE_KEY": key, "HOME": str(tmp_path)}.items():
        monkeypatch.setenv(name, text)
    with pytest.raises(Refusal, match=says):
        use_kaggle_emulator(
            {"pools": [{"name": pool, "platform": "local"}]}, tmp_path, address or account.server.address
        )


def test_what_epoch_tells_was_true_when_the_command_began() -> None:
    """A second that a program takes to start is an hour of the server's clock."""
    child = "import time; first = time.time(); from scheduler.clock import process_began; print(process_began(), first)"
    before = real_now()
    done = subprocess.run([sys.executable, "-c", child], capture_output=True, text=True, check=True)
    began, first = map(float, done.stdout.split())
    tick = 2 / os.sysconf("SC_CLK_TCK")
    assert before - tick <= began <= first + tick


def _instant(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def test_doctor_looks_at_every_pool(account: Account, tmp_path: Path) -> None:
    """Without a platform's name as well: a key that is refused is found before a session is."""
    options = f'{{ emulator = "{account.server.address}", credentials = "{account.folder / "kaggle.json"}" }}'
    pool = f'[[pools]]\nname = "t4"\nplatform = "kaggle"\noptions = {options}\n'
    (tmp_path / "settings.toml").write_text(pool)
    account.place.key = "another"
    done = subprocess.run(
        [sys.executable, "-m", "scheduler", "--config", str(tmp_path / "settings.toml"), "--json", "doctor"],
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    found = {check["check"]: check["grade"] for check in json.loads(done.stdout)["checks"]}
    assert (done.returncode, found["platform of t4"]) == (9, "bad"), done.stderr
