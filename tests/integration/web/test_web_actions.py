"""Changing something on the page: by whom, from where, once, and as the command line does it."""

from __future__ import annotations

import hmac
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from scheduler.core.job import Cancelled, Held, Queued
from scheduler.core.run import Stopping
from scheduler.store import jobs, runs
from scheduler.web import actors as acting
from tests.lab.patience import PATIENCE_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.lab.web.site import Served
    from tests.lab.web.world import World

TOKEN = "an-actor-knows-this-one-and-readers-do-not"
FORM = re.compile(r'action="(/actions/[^"]+)"[^>]*>\s*<input type="hidden" name="form" value="([^"]+)"')


@pytest.fixture
def acted(make_world: Callable[..., World], serve: Any, tmp_path: Path) -> Iterator[Served]:
    """A page on which those who know the token may act."""
    (tmp_path / "web-actions").write_text(TOKEN, encoding="utf-8")
    with serve(make_world(), CREDENTIALS_DIRECTORY=str(tmp_path)) as site:
        yield site


def reader(site: Served) -> httpx.Client:
    """A browser that has shown no token."""
    return httpx.Client(
        base_url=site.address, trust_env=False, headers={"sec-fetch-site": "same-origin"}, timeout=PATIENCE_SECONDS
    )


@contextmanager
def actor(site: Served) -> Iterator[httpx.Client]:
    """A browser whose person has signed in."""
    with reader(site) as found:
        answer = found.post(acting.SIGN_IN, data={"token": TOKEN, "next": "/"})
        assert answer.status_code == 303
        yield found


def forms(client: httpx.Client, path: str) -> dict[str, str]:
    """The words of a page's forms by their actions."""
    return dict(FORM.findall(client.get(path).text))


def test_a_page_without_the_setting_changes_nothing_and_shows_no_form(site: Any) -> None:
    assert "/actions/" not in site.get("/jobs/m0010").text
    assert httpx.post(site.address + "/actions/jobs/m0010/hold", trust_env=False).status_code == 405
    assert httpx.post(site.address + acting.SIGN_IN, data={"token": "x"}, trust_env=False).status_code == 405


def test_a_job_is_held_released_weighed_and_cancelled_and_a_session_stopped(acted: Served) -> None:
    world = acted.world

    def state() -> object:
        with world.database.read() as tx:
            return jobs.get(tx, "m0010").state

    with actor(acted) as client:
        for verb, fields in (("hold", {"why": "wrong data"}), ("release", {}), ("priority", {"weight": "7"})):
            path = f"/actions/jobs/m0010/{verb}"
            answer = client.post(path, data={"form": forms(client, "/jobs/m0010")[path], **fields})
            assert (answer.status_code, answer.headers["location"]) == (303, "/jobs/m0010"), answer.text
            if verb == "hold":
                found = state()
                assert isinstance(found, Held)
                assert (found.by, found.why) == ("the status page", "wrong data")
        assert isinstance(state(), Queued)
        with world.database.read() as tx:
            assert jobs.get(tx, "m0010").spec.weight == 7
            run = next(run for run in runs.live(tx) if run.pool == "desk")
        path = "/actions/jobs/m0010/cancel"
        assert client.post(path, data={"form": forms(client, "/jobs/m0010")[path]}).status_code == 303
        assert isinstance(state(), Cancelled)
        path = f"/actions/runs/{run.key}/stop"
        assert (
            client.post(path, data={"form": forms(client, f"/runs/{run.key}")[path], "why": "now"}).status_code == 303
        )
        with world.database.read() as tx:
            stopping = runs.get(tx, run.key).state
        assert isinstance(stopping, Stopping)
        assert stopping.why == "now"


def test_what_cannot_be_is_refused_with_the_words_of_the_command_line(acted: Served) -> None:
    with actor(acted) as client:
        found = forms(client, "/jobs/m0010")
        words = {verb: found[f"/actions/jobs/m0010/{verb}"] for verb in ("hold", "priority")}
        wrong = client.post("/actions/jobs/m0010/priority", data={"form": words["priority"], "weight": "nan"})
        assert wrong.status_code == 422
        assert "a weight is a number" in wrong.text
        assert client.post("/actions/jobs/m0010/hold", data={"form": words["hold"]}).status_code == 303
        # A second tab that still shows the job as it was.
        again = forms(client, "/jobs/m0011")["/actions/jobs/m0011/hold"]
        assert client.post("/actions/jobs/m0011/hold", data={"form": again}).status_code == 303
        assert "/actions/jobs/m0011/hold" not in forms(client, "/jobs/m0011")
        assert client.post("/actions/jobs/nobody/hold", data={"form": "x"}).status_code == 403
        assert client.post("/actions/jobs/m0011/explode", data={"form": "x"}).status_code == 404


def test_a_form_that_another_site_sends_is_refused(acted: Served) -> None:
    path = "/actions/jobs/m0010/hold"
    with actor(acted) as client:
        for name, said in (
            ("sec-fetch-site", "cross-site"),
            ("sec-fetch-site", "same-site"),
            ("sec-fetch-site", "none"),
            ("origin", "https://evil.example"),
            ("origin", "null"),
        ):
            answer = client.post(path, data={"form": forms(client, "/jobs/m0010")[path]}, headers={name: said})
            assert answer.status_code == 403, (name, said)
            assert "another site" in answer.text, (name, said)
            _unchanged(acted)


def test_a_form_counts_for_its_session_its_action_and_once(acted: Served) -> None:
    path = "/actions/jobs/m0010/hold"
    with actor(acted) as client, actor(acted) as other, reader(acted) as nobody:
        word = forms(client, "/jobs/m0010")[path]
        for who, where, shown, why in (
            (client, path, "", "not one of this page"),
            (client, path, word[:-1] + ("0" if word[-1] != "0" else "1"), "not one of this page"),
            (client, path, word.replace(word.split(".")[0], "99999999999"), "not one of this page"),
            (client, path, "\ud800.x".encode("utf-8", "replace").decode(), "not one of this page"),
            (client, "/actions/jobs/m0010/cancel", word, "not one of this page"),
            (client, "/actions/jobs/m0011/hold", word, "not one of this page"),
            (other, path, word, "not one of this page"),
            (nobody, path, word, "not signed in"),
        ):
            answer = who.post(where, data={"form": shown})
            assert answer.status_code == 403, where
            assert why in answer.text
            _unchanged(acted)
        assert client.post(path, data={"form": word}).status_code == 303
        release = "/actions/jobs/m0010/release"
        assert client.post(release, data={"form": forms(client, "/jobs/m0010")[release]}).status_code == 303
        replayed = client.post(path, data={"form": word})
        assert replayed.status_code == 403
        assert "sent before" in replayed.text
        _unchanged(acted)


def test_a_cookie_cannot_be_made_up_or_kept_for_ever(acted: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    with reader(acted) as client:
        for made_up in (
            "",
            "x",
            "99999999999.aa.bb",
            f"99999999999.aa.{hmac.new(TOKEN.encode(), b'x', 'sha256').hexdigest()}",
        ):
            client.cookies.set(acting.COOKIE, made_up)
            assert "Sign in to change something" in client.get("/jobs/m0010").text
    with actor(acted) as client:
        cookie = client.cookies[acting.COOKIE]
    assert TOKEN not in cookie
    with reader(acted) as client:
        assert client.post(acting.SIGN_IN, data={"token": TOKEN[:-1]}).status_code == 401
        answer = client.post(acting.SIGN_IN, data={"token": TOKEN})
        flags = answer.headers["set-cookie"].lower()
    assert "httponly" in flags
    assert "samesite=strict" in flags


def test_forms_and_sessions_end_with_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    from starlette.requests import Request

    from scheduler.web.actors import Bearer

    at = [1_000_000]
    monkeypatch.setattr(acting, "real_now", lambda: float(at[0]))
    actors = acting.Actors(Bearer(TOKEN))
    session = actors.session(at[0])
    headers = [(b"cookie", f"{acting.COOKIE}={session}".encode()), (b"sec-fetch-site", b"same-origin")]
    request = Request({"type": "http", "headers": headers, "path": "/", "method": "POST"})
    word = actors.word(session, "/actions/x")
    at[0] += 3_601
    with pytest.raises(acting.ActionRefused, match="older than an hour"):
        actors.take(request, "/actions/x", word)
    actors.take(request, "/actions/x", actors.word(session, "/actions/x"))
    at[0] += acting.SESSION_SECONDS
    with pytest.raises(acting.ActionRefused, match="no longer"):
        actors.take(request, "/actions/x", actors.word(session, "/actions/x"))
    # A page that was started anew knows nobody.
    assert acting.Actors(Bearer(TOKEN)).of(request) is None


def test_every_comparison_takes_as_long_for_any_guess(monkeypatch: pytest.MonkeyPatch) -> None:
    """The words are compared by ``hmac.compare_digest`` and by nothing else."""
    from starlette.requests import Request

    from scheduler.web.actors import Bearer

    seen: list[tuple[bytes, bytes]] = []
    real = hmac.compare_digest

    def noted(one: Any, other: Any) -> bool:
        seen.append((one, other))
        return real(one, other)

    monkeypatch.setattr(hmac, "compare_digest", noted)
    actors = acting.Actors(Bearer(TOKEN))
    session = actors.session(2**33)
    cookie = [(b"cookie", f"{acting.COOKIE}={session}".encode()), (b"sec-fetch-site", b"same-origin")]
    with pytest.raises(acting.ActionRefused):
        actors.take(Request({"type": "http", "headers": cookie, "path": "/"}), "/actions/x", "1.2.guess")
    assert not actors.bearer.allows("guess")
    assert len(seen) == 3
    assert sum(b"guess" in one for one in seen) == 2


def test_the_token_is_in_no_log_row_or_answer(acted: Served) -> None:
    path = "/actions/jobs/m0010/hold"
    with actor(acted) as client:
        client.post(acting.SIGN_IN, data={"token": TOKEN + "x"})
        word = forms(client, "/jobs/m0010")[path]
        client.post(path, data={"form": word, "why": f"the token is {TOKEN}"})
        shown = client.get("/jobs/m0010").text
    assert "the token is" in shown
    folder = acted.world.config.parent
    said = [shown, (folder / "web.log").read_text(encoding="utf-8")]
    with acted.world.database.read() as tx:
        said.append(repr(jobs.get(tx, "m0010").state))
    assert '"web.acted"' in said[1]
    for text in said:
        assert TOKEN not in text
        assert word not in text


def test_people_change_something_without_a_script(acted: Served, browser: Any) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(acted.address + "/jobs/m0010")
    page.get_by_role("link", name="Sign in to change something").click()
    page.get_by_label("Token").fill(TOKEN)
    page.get_by_role("button", name="Sign in").click()
    assert page.url == acted.address + "/jobs/m0010"
    page.get_by_label("Reason").fill("the data are wrong")
    page.get_by_role("button", name="Hold").click()
    assert page.url == acted.address + "/jobs/m0010"
    assert "the data are wrong" in page.locator("#job").inner_text()
    page.get_by_role("button", name="Release").click()
    assert "queued" in page.locator("#job").inner_text()
    context.close()


def _unchanged(site: Served) -> None:
    with site.world.database.read() as tx:
        assert isinstance(jobs.get(tx, "m0010").state, Queued)
