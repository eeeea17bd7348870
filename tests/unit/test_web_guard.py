"""The guard of the status page: who may ask, by which name, and what browsers may do with the answer."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from starlette.responses import PlainTextResponse

from scheduler.web.bearer import Bearer, BearerError, read_bearer
from scheduler.web.guard import COOKIE, Guard
from scheduler.web.sign_in import local_path

if TYPE_CHECKING:
    from pathlib import Path

    from starlette.types import Receive, Scope, Send

TOKEN = "a-token-that-is-long-enough-to-be-one"


async def page(scope: Scope, receive: Receive, send: Send) -> None:
    await PlainTextResponse(f"hello {scope['method']}")(scope, receive, send)


def asked(
    path: str = "/", *, host: str = "127.0.0.1:8765", token: str | None = None, method: str = "GET", **headers: str
) -> httpx.Response:
    guard = Guard(page, frozenset({"status.example.org"}), Bearer(token) if token else None)

    async def ask() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(guard), base_url="http://127.0.0.1:8765") as client:
            return await client.request(method, path, headers={"host": host, **headers})

    return asyncio.run(ask())


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "localhost:8765", "LOCALHOST", "[::1]:80", "[::1]", "status.example.org", "Status.Example.ORG.:443"],
)
def test_names_of_ours_are_answered(host: str) -> None:
    assert asked(host=host).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80", "", "[::2]", "status.example.org@x"]
)
def test_a_page_elsewhere_cannot_make_a_browser_read_us_under_its_own_name(host: str) -> None:
    answer = asked(host=host)
    assert answer.status_code == 421
    assert "hello" not in answer.text


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT"])
def test_nothing_but_reading_is_allowed(method: str) -> None:
    answer = asked("/api/v1/status", method=method)
    assert answer.status_code == 405
    assert answer.headers["allow"] == "GET, HEAD"


def test_head_is_answered_as_get_without_its_body() -> None:
    answer = asked(method="HEAD")
    assert (answer.status_code, answer.text) == (200, "")


def test_browsers_are_told_to_load_nothing_from_elsewhere_and_to_run_nothing_inline() -> None:
    answer = asked()
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "no-store"
    assert asked(host="evil.example").headers["content-security-policy"] == policy


@pytest.mark.parametrize("path", ["/api/v1/status", "/metrics"])
def test_programs_are_asked_for_the_token(path: str) -> None:
    assert asked(path, token=TOKEN).headers["www-authenticate"].startswith("Bearer")
    assert asked(path, token=TOKEN).status_code == 401
    assert asked(path, token=TOKEN, authorization=f"Bearer {TOKEN}").status_code == 200


@pytest.mark.parametrize(
    "shown",
    ["Bearer wrong", "Bearer", f"Basic {TOKEN}", TOKEN, f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}"],
)
def test_nothing_but_the_whole_token_is_let_in(shown: str) -> None:
    assert asked("/metrics", token=TOKEN, authorization=shown).status_code == 401


def test_people_are_led_to_the_sign_in_and_back() -> None:
    answer = asked("/runs?pool=desk&page=2", token=TOKEN)
    assert answer.status_code == 303
    assert answer.headers["location"] == "/sign-in?next=%2Fruns%3Fpool%3Ddesk%26page%3D2"


@pytest.mark.parametrize("path", ["/health/live", "/assets/x/style.css", "/sign-in"])
def test_what_tells_nothing_needs_no_token(path: str) -> None:
    assert asked(path, token=TOKEN).status_code == 200


def test_a_cookie_proves_that_the_token_was_shown_and_is_not_the_token() -> None:
    session = Bearer(TOKEN).session
    assert TOKEN not in session
    assert asked(token=TOKEN, cookie=f"x=1; {COOKIE}={session}").status_code == 200
    for wrong in (f"{COOKIE}={TOKEN}", f"{COOKIE}=", f"{COOKIE}={Bearer(TOKEN + 'x').session}", ";;;==", f"{COOKIE}"):
        assert asked(token=TOKEN, cookie=wrong).status_code == 303


def test_the_token_is_never_shown() -> None:
    assert TOKEN not in repr(Bearer(TOKEN))


@pytest.mark.parametrize(
    "path",
    ["https://evil.example/", "//evil.example", "/\\evil.example", "javascript:alert(1)", "", "/a\nb", "/sign-in"],
)
def test_the_sign_in_leads_nowhere_else(path: str) -> None:
    assert local_path(path) == "/"


def test_the_sign_in_leads_back_to_a_page_of_ours() -> None:
    assert local_path("/runs?pool=desk") == "/runs?pool=desk"


# Where the token comes from


def a_file(path: Path, text: str, mode: int = 0o600) -> Path:
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)
    return path


def test_the_token_is_read_from_a_file_that_nobody_else_can_read(tmp_path: Path) -> None:
    found = read_bearer(a_file(tmp_path / "token", f"{TOKEN}\n"), {}, exposed=True)
    assert found is not None
    assert found.allows(TOKEN)


def test_the_service_managers_credential_is_used_when_no_file_is_named(tmp_path: Path) -> None:
    a_file(tmp_path / "web", TOKEN, 0o440)
    found = read_bearer(None, {"CREDENTIALS_DIRECTORY": str(tmp_path)}, exposed=True)
    assert found is not None
    assert found.allows(TOKEN)


@pytest.mark.parametrize(
    ("text", "mode", "why"),
    [(TOKEN, 0o644, "chmod 600"), ("short", 0o600, "at least 32"), (f"{TOKEN} {TOKEN}", 0o600, "at least 32")],
)
def test_a_token_that_protects_nothing_is_refused(tmp_path: Path, text: str, mode: int, why: str) -> None:
    with pytest.raises(BearerError, match=why):
        read_bearer(a_file(tmp_path / "token", text, mode), {}, exposed=False)


def test_a_page_that_others_reach_needs_a_token_and_one_of_this_machine_does_not(tmp_path: Path) -> None:
    environ: dict[str, Any] = {"CREDENTIALS_DIRECTORY": str(tmp_path)}
    assert read_bearer(None, environ, exposed=False) is None
    with pytest.raises(BearerError, match=r"web\.bearer_file"):
        read_bearer(None, environ, exposed=True)
    with pytest.raises(BearerError, match="cannot be read"):
        read_bearer(tmp_path / "none", {}, exposed=False)
