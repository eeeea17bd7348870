"""`schedctl web serve` as a user starts it: what it says when it cannot, and that it sees a real daemon work."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from scheduler.store.engine import upgrade
from tests.lab.patience import PATIENCE_SECONDS, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SETTINGS = """
state_dir = "state"
models = []
[daemon]
lease = "3s"
cycle = "1s"
[[pools]]
name = "desk"
platform = "local"
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with settings and an empty database."""
    (tmp_path / "config.toml").write_text(SETTINGS, encoding="utf-8")
    upgrade(f"sqlite:///{tmp_path / 'state' / 'scheduler.db'}")
    return tmp_path


def command(place: Path, *words: str) -> list[str]:
    return [sys.executable, "-m", "scheduler", "--config", str(place / "config.toml"), "--json", *words]


def refused(place: Path, *words: str, **environ: str) -> tuple[int, dict[str, Any]]:
    """Return exit code and error of a page that does not start."""
    done = subprocess.run(
        command(place, "web", "serve", *words),
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, **environ},
        timeout=PATIENCE_SECONDS,
    )
    assert done.stdout == ""
    return done.returncode, json.loads(done.stderr.splitlines()[-1])["error"]


@contextmanager
def running(place: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    """Run a command until the end of the block, which it must leave with 0 when asked to stop."""
    with (place / "log").open("ab") as log:
        process = subprocess.Popen(command(place, *words), stdout=subprocess.PIPE, stderr=log, text=True)
    with process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
    assert process.returncode == 0, (place / "log").read_text(encoding="utf-8")


def settings(place: Path, text: str) -> None:
    (place / "config.toml").write_text(f"{SETTINGS}\n[web]\n{text}\n", encoding="utf-8")


def test_a_page_that_others_could_reach_does_not_start_without_a_token(place: Path) -> None:
    settings(place, 'host = "0.0.0.0"')
    code, error = refused(place, "--port", "0")
    assert code == 3
    assert "other machines reach the page" in error["message"]
    assert "web.bearer_file" in error["message"]


def test_a_token_that_others_can_read_is_refused_and_not_shown(place: Path) -> None:
    settings(place, 'bearer_file = "token"')
    (place / "token").write_text("0123456789abcdef" * 3, encoding="utf-8")
    (place / "token").chmod(0o644)
    code, error = refused(place)
    assert code == 3
    assert "chmod 600" in error["message"]
    assert "0123456789abcdef" not in json.dumps(error)


def test_a_port_in_use_is_said_with_what_to_do(place: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        code, error = refused(place, "--port", str(taken.getsockname()[1]))
    assert code == 7
    assert error["remedy"] == "Choose another --port"


def test_without_a_database_the_page_does_not_start(place: Path) -> None:
    (place / "state" / "scheduler.db").unlink()
    code, error = refused(place, "--port", "0")
    assert code == 4
    assert "schedctl init" in error["message"]


def test_without_the_extra_its_name_is_told(place: Path) -> None:
    missing = place / "without" / "uvicorn"
    missing.mkdir(parents=True)
    (missing / "__init__.py").write_text("raise ModuleNotFoundError('none', name='uvicorn')", encoding="utf-8")
    code, error = refused(place, "--port", "0", PYTHONPATH=str(place / "without"))
    assert code == 6
    assert "uff-scheduler[web]" in error["message"]


@pytest.mark.parametrize("text", ['host = "example.org"', 'names = ["https://example.org/"]', "port = 70000"])
def test_settings_that_cannot_be_meant_are_refused(place: Path, text: str) -> None:
    settings(place, text)
    code, error = refused(place)
    assert code == 3
    assert error["problems"][0]["key"].removesuffix(".0") == "web." + text.split(maxsplit=1)[0]


def test_the_page_is_ready_while_a_real_daemon_works_and_not_before_or_after(place: Path) -> None:
    with running(place, "web", "serve", "--port", "0") as page:
        assert page.stdout is not None
        address = json.loads(page.stdout.readline())["address"]

        def ready() -> tuple[int, Any]:
            answer = httpx.get(f"{address}health/ready", timeout=PATIENCE_SECONDS, trust_env=False)
            return answer.status_code, answer.json()

        assert ready() == (503, {"ok": False, "problems": [_NO_DAEMON]})
        with running(place, "daemon"):
            until(lambda: ready()[0] == 200, "a ready page")
            assert "\nuff_ready 1.0\n" in httpx.get(f"{address}metrics", timeout=PATIENCE_SECONDS, trust_env=False).text
        assert ready()[0] == 503


_NO_DAEMON = "No daemon runs: nothing is planned, launched or settled. Start it: schedctl daemon"
