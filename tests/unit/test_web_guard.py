"""The guard of the status page: who may ask, by which name, and what browsers may do with the answer."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from fastapi import FastAPI
from jinja2 import DictLoader, Environment
from starlette.responses import PlainTextResponse, Response

from jobs.payload.redact import Redactor
from jobs.problem import InvalidInput
from scheduler.web.actors import Bearer, TooManyTries, Tries, read_bearer
from scheduler.web.guard import COOKIE, Guard, local_path, sign_in_routes

if TYPE_CHECKING:
    from pathlib import Path

    from starlette.types import Receive, Scope, Send

TOKEN = "a-token-that-is-long-enough-to-be-one"
TELLER = Bearer(TOKEN)


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
    "host",
    [
        "evil.example",
        "127.0.0.1.evil.example",
        "localhost.evil.example:80",
        "evil-status.example.org",
        "evilstatus.example.org",
        "x.status.example.org",
        "evil.localhost",
        "",
        "[::2]",
        "status.example.org@x",
        "127.0.0.1:99@evil",
        "127.0.0.1:evil",
        "127.0.0.1:",
        "127.0.0.1:123456",
        "127.0.0.1:80:80",
        "127.0.0.1#evil",
        "user@127.0.0.1",
        "[::1]evil",
        "[::1]:80@evil",
        "127.0.0.1, evil.example",
        "status.example.org..",
    ],
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


@pytest.mark.parametrize(("method", "code"), [("GET", 200), ("POST", 200), ("PUT", 405), ("DELETE", 405)])
def test_the_sign_in_alone_is_posted_to(method: str, code: int) -> None:
    assert asked("/sign-in", method=method).status_code == code


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


@pytest.mark.parametrize("path", ["/api/v1/status", "/api/openapi.json", "/api/", "/metrics"])
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


@pytest.mark.parametrize("shown", [f"bearer {TOKEN}", f"BEARER  {TOKEN} "])
def test_how_the_word_before_the_token_is_written_does_not_matter(shown: str) -> None:
    assert asked("/metrics", token=TOKEN, authorization=shown).status_code == 200


def test_guesses_from_many_addresses_have_one_limit_that_keeps_no_known_reader_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    monkeypatch.setattr("scheduler.web.actors.stopwatch", lambda: now)
    bearer = Bearer(TOKEN)
    assert bearer.continues(bearer.session, "192.0.2.1")
    assert [bearer.allows("guess", f"2001:db8::{each}") for each in range(100)] == [False] * 100
    for address in ("2001:db8::ff00", "192.0.2.2"):
        with pytest.raises(TooManyTries):
            bearer.allows(TOKEN, address)
    assert bearer.allows(TOKEN, "192.0.2.1"), "who was right before does not wait for guesses of others"
    now = 60.0
    assert bearer.allows(TOKEN, "192.0.2.2")


def test_guesses_at_cookies_are_counted_with_those_at_the_token_and_nothing_shown_is_no_guess() -> None:
    bearer = Bearer(TOKEN)
    assert not any(bearer.continues("", "a") or bearer.allows("", "a") for _ in range(200))
    assert [bearer.continues(f"guess {each}", "a") for each in range(5)] == [False] * 5
    assert [bearer.allows(f"guess {each}", "a") for each in range(5)] == [False] * 5
    with pytest.raises(TooManyTries):
        bearer.continues(bearer.session, "a")


def test_a_thousand_readers_and_a_flood_of_guesses_fill_no_memory() -> None:
    tries = Tries()
    for each in range(5_000):
        assert tries.check("right", "right", f"reader {each}")
    for each in range(5_000):
        with suppress(TooManyTries):
            tries.check("guess", "right", f"guesser {each}")
    assert (len(tries._right), len(tries._wrong)) == (1_000, 100)


def test_a_browser_is_asked_to_forget_a_cookie_that_is_no_longer_right() -> None:
    answer = asked("/", token=TOKEN, cookie=f"{COOKIE}=of-the-token-before")
    assert (answer.status_code, answer.headers["location"]) == (303, "/sign-in?next=%2F")
    assert answer.headers["set-cookie"].startswith(f'{COOKIE}=""; ')
    assert "max-age=0" in answer.headers["set-cookie"].lower()
    assert "set-cookie" not in asked("/", token=TOKEN).headers


def signed_in(
    method: str = "POST",
    path: str = "/sign-in",
    *,
    body: str = "",
    scheme: str = "http",
    bearer: Bearer | None = TELLER,
    headers: dict[str, str] | None = None,
) -> httpx.Response:
    """What the sign-in answers; its page shows where it leads and whether the token was wrong."""
    app = FastAPI()
    pages = DictLoader({"sign_in.html": "to {{ next }} {{ 'wrong' if wrong else 'new' }}"})
    fresh = bearer and Bearer(bearer.token)  # without the wrong tokens of other tests
    app.include_router(sign_in_routes(fresh, Environment(loader=pages, autoescape=True)))

    async def ask() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=f"{scheme}://127.0.0.1") as client:
            return await client.request(method, path, content=body, headers=headers)

    return asyncio.run(ask())


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_cookie_that_came_over_https_travels_over_nothing_else(scheme: str) -> None:
    cookie = signed_in(body=f"token={TOKEN}", scheme=scheme).headers["set-cookie"].lower()
    assert ("; secure" in cookie) == (scheme == "https")
    said = {"x-forwarded-proto": "https"}
    assert "; secure" in signed_in(body=f"token={TOKEN}", headers=said).headers["set-cookie"].lower()


def test_the_token_gives_a_cookie_for_thirty_days_that_no_script_reads_and_leads_back() -> None:
    answer = signed_in(body=f"token=+{TOKEN}%0A&next=/runs%3Fpage=2")
    assert (answer.status_code, answer.headers["location"]) == (303, "/runs?page=2")
    name, *rest = answer.headers["set-cookie"].split("; ")
    assert name == f"{COOKIE}={TELLER.session}"
    assert {word.lower() for word in rest} == {"httponly", "samesite=lax", "max-age=2592000", "path=/"}


@pytest.mark.parametrize("body", ["", "token=", f"token={TOKEN}x", f"other={TOKEN}", f"token=x&token={TOKEN}"])
def test_a_wrong_token_gives_no_cookie_and_may_be_tried_again(body: str) -> None:
    answer = signed_in(body=f"{body}&next=/runs")
    assert (answer.status_code, answer.text) == (401, "to /runs wrong")
    assert "set-cookie" not in answer.headers


def test_too_many_wrong_tokens_have_to_wait_for_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("scheduler.web.actors.stopwatch", lambda: now)
    app = FastAPI()
    pages = DictLoader({"sign_in.html": "{{ wrong }}"})
    app.include_router(sign_in_routes(Bearer(TOKEN), Environment(loader=pages, autoescape=True)))

    async def answers(token: str, address: str, times: int) -> list[tuple[int, str]]:
        transport = httpx.ASGITransport(app, client=(address, 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            found = [await client.post("/sign-in", content=f"token={token}") for _ in range(times)]
        return [(answer.status_code, answer.text) for answer in found]

    codes = [code for code, _ in asyncio.run(answers("guess", "192.0.2.1", 12))]
    assert codes == [401] * 10 + [429] * 2
    assert asyncio.run(answers(TOKEN, "192.0.2.1", 1)) == [
        (429, "There were too many wrong tokens. Wait a minute, then try again.")
    ]
    assert asyncio.run(answers(TOKEN, "192.0.2.2", 1))[0][0] == 303, "others do not wait"
    now = 61.0
    assert asyncio.run(answers(TOKEN, "192.0.2.1", 1))[0][0] == 303


@pytest.mark.parametrize(("size", "code"), [(4_096, 303), (4_097, 413), (1_000_000, 413)])
def test_the_sign_in_reads_four_kibibytes_and_no_more(size: int, code: int) -> None:
    start = f"token={TOKEN}&x="
    answer = signed_in(body=start + "x" * (size - len(start)))
    assert answer.status_code == code
    assert code == 303 or answer.text == "to / wrong"


def test_the_sign_in_asks_for_the_token_and_keeps_where_it_leads() -> None:
    answer = signed_in("GET", "/sign-in?next=/runs")
    assert (answer.status_code, answer.text) == (200, "to /runs new")
    assert signed_in("GET").text == "to / new"


@pytest.mark.parametrize(("method", "body"), [("GET", ""), ("POST", "next=/runs")])
def test_where_no_token_is_needed_the_sign_in_leads_straight_on(method: str, body: str) -> None:
    answer = signed_in(method, "/sign-in?next=/runs", body=body, bearer=None)
    assert (answer.status_code, answer.headers["location"]) == (303, "/runs")


def test_only_pages_are_never_kept_by_browsers() -> None:
    assert "cache-control" not in asked("/assets/1/style.css").headers
    assert asked("/api/v1/status").headers["cache-control"] == "no-store"


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
    for wrong in (
        f"{COOKIE}={TOKEN}",
        f"{COOKIE}=",
        f"{COOKIE}={Bearer(TOKEN + 'x').session}",
        ";;;==",
        "a/b=1",
        f"{COOKIE}",
    ):
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


def test_a_secret_that_came_into_an_answer_is_not_in_it() -> None:
    async def leak(scope: Scope, receive: Receive, send: Send) -> None:
        await PlainTextResponse("said canary-of-ours, ü, to you")(scope, receive, send)

    guard = Guard(leak, frozenset(), None, Redactor(["canary-of-ours"]))

    async def ask(method: str) -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(guard), base_url="http://127.0.0.1") as client:
            return await client.request(method, "/")

    answer = asyncio.run(ask("GET"))
    assert answer.text == "said [secret], ü, to you"
    assert int(answer.headers["content-length"]) == len(answer.content)
    assert asyncio.run(ask("HEAD")).headers["content-length"] == answer.headers["content-length"]


def test_bytes_that_are_no_text_are_left_as_they_are() -> None:
    async def picture(scope: Scope, receive: Receive, send: Send) -> None:
        await Response(b"\x89PNG canary-of-ours", media_type="image/png")(scope, receive, send)

    guard = Guard(picture, frozenset(), None, Redactor(["canary-of-ours"]))

    async def ask() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(guard), base_url="http://127.0.0.1") as client:
            return await client.get("/")

    assert asyncio.run(ask()).content == b"\x89PNG canary-of-ours"


# Where the token comes from


def a_file(path: Path, text: str, mode: int = 0o600) -> Path:
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)
    return path


def test_the_token_is_read_from_a_file_that_nobody_else_can_read(tmp_path: Path) -> None:
    found = read_bearer(a_file(tmp_path / "token", f"{TOKEN}\n"), {}, exposed=True)
    assert found is not None
    assert found.allows(TOKEN)


def test_a_token_of_32_letters_is_long_enough(tmp_path: Path) -> None:
    assert read_bearer(a_file(tmp_path / "token", "a" * 32), {}, exposed=True) == Bearer("a" * 32)
    with pytest.raises(InvalidInput, match="at least 32"):
        read_bearer(a_file(tmp_path / "token", "a" * 31), {}, exposed=True)


def test_the_service_managers_credential_is_used_when_no_file_is_named(tmp_path: Path) -> None:
    a_file(tmp_path / "web", TOKEN, 0o440)
    found = read_bearer(None, {"CREDENTIALS_DIRECTORY": str(tmp_path)}, exposed=True)
    assert found is not None
    assert found.allows(TOKEN)


@pytest.mark.parametrize(
    ("text", "mode", "why"),
    [
        (TOKEN, 0o644, "chmod 600"),
        (TOKEN, 0o640, "chmod 600"),
        (TOKEN, 0o620, "chmod 600"),
        (TOKEN, 0o604, "chmod 600"),
        ("short", 0o600, "at least 32"),
        (f"{TOKEN} {TOKEN}", 0o600, "at least 32"),
    ],
)
def test_a_token_that_protects_nothing_is_refused(tmp_path: Path, text: str, mode: int, why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        read_bearer(a_file(tmp_path / "token", text, mode), {}, exposed=False)


def test_a_page_that_others_reach_needs_a_token_and_one_of_this_machine_does_not(tmp_path: Path) -> None:
    environ: dict[str, Any] = {"CREDENTIALS_DIRECTORY": str(tmp_path)}
    assert read_bearer(None, environ, exposed=False) is None
    with pytest.raises(InvalidInput, match=r"web\.bearer_file"):
        read_bearer(None, environ, exposed=True)
    with pytest.raises(InvalidInput, match="cannot be read"):
        read_bearer(tmp_path / "none", {}, exposed=False)
