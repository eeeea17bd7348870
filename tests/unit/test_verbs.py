"""One table: each verb is found in the JSON API, on the port and among the tools of coding agents, also a new one."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import anyio
import pytest
from fastapi import FastAPI

from scheduler.bridge.mcp_server import name_of, server
from scheduler.bridge.port import OF_THE_PORT, Port, hello
from scheduler.verbs.arguments import BadRequest, Weight, checked
from scheduler.verbs.surface import Surface, Verb, verb
from scheduler.verbs.table import VERBS, document
from scheduler.web.actors import Actors, Bearer
from scheduler.web.site import api_routes, form_routes

if TYPE_CHECKING:
    from scheduler.app import App


@pytest.fixture
def surface() -> Surface:
    """What faces are made of, without a database behind it."""
    settings = SimpleNamespace(zone="UTC")
    return Surface(cast("App", SimpleNamespace(settings=settings, redact=str)), "somebody")


def faces(surface: Surface) -> dict[str, set[str]]:
    """The verbs that each face has, by the names that they have there."""

    async def tools() -> set[str]:
        from mcp.client import Client

        async with Client(server(surface, str, changes=True)) as client:
            return {tool.name for tool in (await client.list_tools()).tools}

    application = FastAPI()
    application.include_router(api_routes(surface))
    log: Any = SimpleNamespace()
    forms = form_routes(surface, Actors(Bearer("x" * 40)), log)
    port = cast("Port", SimpleNamespace(surface=surface))
    return {
        "reads": {path.removeprefix("/api/v1") for path in application.openapi()["paths"]},
        "forms": {getattr(route, "path", "").removeprefix("/actions") for route in forms.routes},
        "port": set(hello(port)["capabilities"]) - set(OF_THE_PORT),
        "mcp": anyio.run(tools),
    }


def expected() -> dict[str, set[str]]:
    """What the table promises."""
    return {
        "reads": {one.address for one in VERBS.values() if not one.changes} - {""} | {"/reports/{week}/text"},
        "forms": {one.address for one in VERBS.values() if one.changes} - {""},
        "port": set(VERBS),
        "mcp": {name_of(one) for one in VERBS.values()},
    }


def test_every_face_has_the_verbs_of_the_table(surface: Surface) -> None:
    assert faces(surface) == expected()


def test_a_new_verb_is_on_every_face_at_once(surface: Surface, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("weather.show", "weather.change"):
        monkeypatch.setitem(VERBS, name, VERBS["status"])  # removed after the test

    @verb("weather.show")
    def weather(surface: Surface, day: int = 1) -> dict[str, int]:
        """How warm it is."""
        return {"degrees": 20 + day}

    @verb("weather.change", "/weather/{day}/change", changes=True)
    def change(surface: Surface, day: int, degrees: Weight) -> dict[str, float]:
        """Make it warmer."""
        return {"degrees": degrees + day}

    found = faces(surface)
    assert found == expected()
    assert "/weather/show" in found["reads"]
    assert "/weather/{day}/change" in found["forms"]
    assert {"weather.show", "weather.change"} <= found["port"]
    assert {"weather_show", "weather_change"} <= found["mcp"]
    assert json.loads(surface.answer(VERBS["weather.show"], {"day": 2})) == {"degrees": 22}
    described = document(OF_THE_PORT.values())["verbs"]["weather.change"]
    assert (described["summary"], described["changes"]) == ("Make it warmer.", True)
    assert described["arguments"]["required"] == ["day", "degrees"]


def test_what_json_cannot_hold_is_no_reason_to_answer_nothing(surface: Surface) -> None:
    """A reason may hold a part of an odd file name, and a loss may be no number."""
    answer = {"why": "no file bad-\udcff", "losses": [1.5, float("nan")], "\ud800": {"inf": float("inf")}}
    assert json.loads(surface.text_of(answer)) == {"why": "no file bad-?", "losses": [1.5, None], "?": {"inf": None}}
    assert json.loads(surface.text_of({"loss": float("nan")})) == {"loss": None}


def test_nobody_on_the_page_may_ask_what_starts_a_command() -> None:
    for one in VERBS.values():
        commanded = one.answers == dict[str, Any]
        assert (one.who == "user") == commanded, one.name
    assert VERBS["queue.hold"].who == "actors"
    assert VERBS["queue.show"].document()["who"] == "readers"


def test_texts_of_a_form_become_what_a_verb_takes() -> None:
    takes = VERBS["queue.priority"].takes
    assert checked(takes, {"job": "ufm", "weight": "2.5"}, texts=True).weight == 2.5
    for weight in ("much", "nan", "-1", ""):
        with pytest.raises(BadRequest, match="weight"):
            checked(takes, {"job": "ufm", "weight": weight}, texts=True)
    with pytest.raises(BadRequest, match="weight"):
        checked(takes, {"job": "ufm", "weight": "2.5"})


@pytest.mark.parametrize("one", VERBS.values(), ids=lambda one: str(one.name))
def test_a_verb_says_what_it_does_takes_and_answers(one: Verb) -> None:
    assert one.summary.endswith(".")
    assert one.document()["answer"]["type"] == "object"
    assert all(name in one.takes.model_fields for name in one.address.replace("}", "{").split("{")[1::2])
