"""The checks of `schedctl doctor` against things that work, fail and hang."""

import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult

from config.errors import ConfigError
from jobs.problem import Problem
from platforms.base import Checked
from scheduler.host import doctor
from scheduler.host.doctor import (
    check_mail,
    check_runner,
    check_sandbox,
    check_service,
    check_slack,
    check_versions,
    examine,
)
from scheduler.host.installation import UnitStatus
from scheduler.notify.deliver import EmailChannel, SlackChannel

CANARY = "canary-password-77c1"


def test_a_check_that_hangs_costs_the_others_nothing() -> None:
    never = threading.Event()

    def hang() -> Checked:
        never.wait()
        return Checked("ok", "too late")

    def fail() -> Checked:
        raise RuntimeError("out of paper")

    found = examine({"hangs": hang, "fails": fail, "works": lambda: Checked("ok", "fine")}, deadline_seconds=0.2)
    never.set()
    assert [(name, checked.grade) for name, checked in found.items()] == [
        ("hangs", "bad"),
        ("fails", "bad"),
        ("works", "ok"),
    ]
    assert "no answer within" in found["hangs"].found
    assert found["fails"].found == "out of paper"
    assert found["hangs"].remedy
    assert found["fails"].remedy


def test_remedies_of_wrong_settings_stand_apart_from_reasons_so_that_no_table_cuts_them_off() -> None:
    problems = [
        Problem("config.toml", "pools.x.session_cap", "12", "it has no unit and means 12s", "write 12h"),
        Problem("config.toml", "pools", "", "this must be a list of tables", ""),
    ]

    def fail() -> Checked:
        raise ConfigError(problems)

    checked = examine({"settings": fail})["settings"]
    assert checked.remedy == "write 12h"
    assert checked.found == (
        "config.toml: pools.x.session_cap = 12: it has no unit and means 12s; "
        "config.toml: pools: this must be a list of tables"
    )


@pytest.fixture
def mail_port() -> Iterator[int]:
    """A mail server that wants a login, in the clear."""

    def check(server: Any, session: Any, envelope: Any, mechanism: str, data: Any) -> AuthResult:
        return AuthResult(success=data.password == CANARY.encode(), handled=False)

    with socket.create_server(("127.0.0.1", 0)) as found:
        port: int = found.getsockname()[1]
    server = Controller(
        object(), hostname="127.0.0.1", port=port, auth_required=True, auth_require_tls=False, authenticator=check
    )
    server.start()
    yield port
    server.stop()


def mail(port: int, password: str = CANARY, user: str = "u", starttls: bool = False) -> EmailChannel:
    return EmailChannel("127.0.0.1", port, starttls, user, password, "s@example.org", ("a@example.org",), 10)


@pytest.mark.filterwarnings("ignore:Requiring AUTH while not requiring TLS")
def test_a_mail_server_is_logged_in_to_and_told_from_one_that_refuses(mail_port: int) -> None:
    told = check_mail(mail(mail_port))
    assert (told.grade, "in the clear" in told.found) == ("warning", True)
    assert check_mail(mail(mail_port, user="")).grade == "ok"
    refused = check_mail(mail(mail_port, password=f"{CANARY}-wrong"))
    assert (refused.grade, "does not take our login" in refused.found) == ("bad", True)
    no_tls = check_mail(mail(mail_port, starttls=True))
    assert (no_tls.grade, "STARTTLS" in no_tls.found) == ("bad", True)
    nobody = check_mail(mail(1))
    assert (nobody.grade, "refused" in nobody.found) == ("bad", True)
    for finding in (told, refused, no_tls, nobody):
        assert CANARY not in finding.found + finding.remedy
        assert finding.remedy


SCOPES = {"": "chat:write,files:write", "-plain": "chat:write", "-mute": "users:read"}


@pytest.fixture
def slack() -> Iterator[str]:
    """A stand-in for Slack's API that knows one token, and what its variants may do."""

    class Answers(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"] or 0))
            _, _, shown = self.headers["Authorization"].partition(" ")
            good = shown.startswith(CANARY) and not shown.endswith("-old")
            body = {"ok": True, "team": "Trainers"} if good else {"ok": False, "error": "invalid_auth"}
            words = json.dumps(body).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(words)))
            self.send_header("X-OAuth-Scopes", SCOPES.get(shown.removeprefix(CANARY), ""))
            self.end_headers()
            self.wfile.write(words)

        def log_message(self, *_: Any) -> None:
            """Stay quiet."""

    server = HTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    thread.join()
    server.server_close()


def test_slack_is_asked_whose_token_it_is(slack: str) -> None:
    good = check_slack(SlackChannel("", CANARY, "#training", 5, slack))
    assert (good.grade, good.found) == ("ok", "token of Trainers, writes to #training")
    plain = check_slack(SlackChannel("", f"{CANARY}-plain", "#training", 5, slack))
    assert (plain.grade, plain.found) == ("warning", "token of Trainers, writes to #training, without pictures")
    mute = check_slack(SlackChannel("", f"{CANARY}-mute", "#training", 5, slack))
    assert (mute.grade, mute.remedy) == ("bad", "Give the bot the scope chat:write")
    bad = check_slack(SlackChannel("", f"{CANARY}-old", "#training", 5, slack))
    assert (bad.grade, "invalid_auth" in bad.found) == ("bad", True)
    gone = check_slack(SlackChannel("", CANARY, "#training", 5, "http://127.0.0.1:1/"))
    assert gone.grade == "bad"
    assert CANARY not in good.found + bad.found + gone.found
    hook = check_slack(SlackChannel("http://example.org/hook", "", "", 5))
    assert (hook.grade, "https://" in hook.found) == ("bad", True)
    assert check_slack(SlackChannel("https://example.org/hook", "", "", 5)).grade == "ok"


def test_library_versions_are_held_to_what_the_release_names(monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_versions({"kaggle", "aws", "report"}).grade == "ok"
    monkeypatch.setattr(doctor, "version_of", lambda name: "0.1.9" if name == "kagglesdk" else "2.40.0")
    lines = [
        "kagglesdk<0.2,>=0.1.37; extra == 'kaggle'",
        "requests<3,>=2.32; extra == 'kaggle'",
        "other>=9; extra == 'x'",
    ]
    monkeypatch.setattr(doctor, "requires", lambda _: lines)
    found = check_versions({"kaggle"})
    assert (found.grade, found.found) == ("bad", "kagglesdk 0.1.9 is not <0.2,>=0.1.37")
    assert "uff-scheduler[kaggle]" in found.remedy
    assert check_versions(set()).grade == "ok"


def test_a_library_that_is_missing_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "requires", lambda _: ["no-such-library>=1; extra == 'aws'"])
    found = check_versions({"aws"})
    assert (found.grade, found.found) == ("bad", "no-such-library is missing")
    assert "uff-scheduler[aws]" in found.remedy


@pytest.mark.parametrize(
    ("version", "bounds", "within"),
    [("1.10", "<2,>=1.9", True), ("2.0", "<2", False), ("1.9.9", ">=1.10", False), ("2.1.0rc1", "<2.2,>=2.1", True)],
)
def test_versions_are_compared_as_numbers(version: str, bounds: str, within: bool) -> None:
    assert doctor._within(version, bounds) is within


@pytest.mark.parametrize(
    ("state", "enabled", "grade"),
    [
        ("active (running)", True, "ok"),
        ("active (running)", False, "warning"),
        ("failed (failed)", True, "bad"),
        ("inactive (dead)", False, "warning"),
        ("missing", False, "ok"),
    ],
)
def test_the_service_is_well_when_it_runs_and_comes_back_at_boot(
    state: str, enabled: bool, grade: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    unit = UnitStatus("uff-scheduler.service", state, enabled, "", None, 0, "")
    monkeypatch.setattr(doctor, "_BOOTED", tmp_path)
    monkeypatch.setattr(doctor, "unit_statuses", lambda _: [unit])
    found = check_service()
    assert found.grade == grade
    assert bool(found.remedy) == (grade != "ok")


def test_the_socket_of_local_sessions_is_looked_at(tmp_path: Path) -> None:
    address = str(tmp_path / "runner.sock")
    assert check_runner(address).remedy == "systemctl start uff-local.socket"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(address)
        listener.listen()
        assert check_runner(address).grade == "ok"


def test_a_machine_without_a_sandbox_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It is no fault: only scorers that run code need one."""
    monkeypatch.setenv("PATH", str(tmp_path))
    found = check_sandbox()
    assert found.grade == "ok"
    assert found.found.startswith("none (there is no bwrap): scorers that run code refuse here")
    assert "install the package bubblewrap" in found.found
