"""Sign-in: lets a browser show the token once; from then on a cookie proves it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal
from urllib.parse import parse_qs

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse
from jinja2 import Environment
from starlette.requests import ClientDisconnect

from scheduler.clock import real_now, stopwatch
from scheduler.web import actors as acting
from scheduler.web.actors import Actors, Bearer
from scheduler.web.guard import COOKIE, SIGN_IN

_BODY_MAX_BYTES = 4_096
_READER_SECONDS = 2_592_000
_WRONG = "This is not the token."
_TOO_MANY = "There were too many wrong tokens. Wait a minute, then try again."
_TRIES, _TRIES_SECONDS, _ADDRESSES_MAX = 10, 60, 1_000
_SETTINGS = {SIGN_IN: "web.bearer_file", acting.SIGN_IN: "web.actions_file"}


def router(bearer: Bearer | None, environment: Environment, actors: Actors | None = None) -> APIRouter:
    """Return the routes; without a token they lead straight to the page. ``actors`` sign in at a form of their own."""
    routes = APIRouter()

    def reader(response: RedirectResponse, request: Request) -> None:
        if bearer is not None:
            _keep(response, request, COOKIE, bearer.session, _READER_SECONDS, "lax")

    _add(routes, SIGN_IN, bearer, environment, reader)
    if actors is not None:
        actors_or_none = actors

        def actor(response: RedirectResponse, request: Request) -> None:
            session = actors_or_none.session(int(real_now()))
            _keep(response, request, acting.COOKIE, session, acting.SESSION_SECONDS, "strict")

        _add(routes, acting.SIGN_IN, actors_or_none.bearer, environment, actor)
    return routes


class _Tries:
    """Wrong tokens by address: more than a few within a minute, and the next tries are refused unread."""

    def __init__(self) -> None:
        self._wrong: dict[str, list[float]] = {}

    def record(self, address: str) -> None:
        """Record a wrong token; of the addresses the one that tried longest ago is forgotten first."""
        recent = self.recent(address)
        self._wrong.pop(address, None)  # it goes to the end
        self._wrong[address] = [*recent, stopwatch()]
        while len(self._wrong) > _ADDRESSES_MAX:
            del self._wrong[next(iter(self._wrong))]

    def recent(self, address: str) -> list[float]:
        """Return when an address sent a wrong token within the last minute; after a few it has to wait."""
        since = stopwatch() - _TRIES_SECONDS
        return [at for at in self._wrong.get(address, ()) if at > since]


def _add(
    routes: APIRouter,
    path: str,
    bearer: Bearer | None,
    environment: Environment,
    accept: Callable[[RedirectResponse, Request], None],
) -> None:
    """Add a form at ``path`` that asks for ``bearer``'s token; ``accept`` gives who showed it a cookie."""
    template = environment.get_template("sign_in.html")
    tries = _Tries()
    page = partial(template.render, action=path, setting=_SETTINGS[path])

    @routes.get(path, include_in_schema=False)
    def ask(request: Request) -> Any:
        back = local_path(request.query_params.get("next", "/"))
        if bearer is None:
            return RedirectResponse(back, 303)
        return HTMLResponse(page(next=back, wrong=""))

    @routes.post(path, include_in_schema=False)
    async def answer(request: Request) -> Any:
        body = bytearray()
        try:
            async for piece in request.stream():
                body += piece
                if len(body) > _BODY_MAX_BYTES:
                    return HTMLResponse(page(next="/", wrong=_WRONG), 413)
        except ClientDisconnect:
            return HTMLResponse("", 400)  # no person reads it
        form = parse_qs(body.decode("utf-8", "replace"))
        back = local_path(form.get("next", ["/"])[0])
        if bearer is None:
            return RedirectResponse(back, 303)
        address = request.client.host if request.client else ""
        if len(tries.recent(address)) >= _TRIES:
            return HTMLResponse(page(next=back, wrong=_TOO_MANY), 429, {"retry-after": str(_TRIES_SECONDS)})
        if not bearer.allows(form.get("token", [""])[0].strip()):
            tries.record(address)
            return HTMLResponse(page(next=back, wrong=_WRONG), 401)
        response = RedirectResponse(back, 303)
        accept(response, request)
        return response


def _keep(
    response: RedirectResponse, request: Request, name: str, value: str, seconds: int, site: Literal["lax", "strict"]
) -> None:
    secure = request.url.scheme == "https"
    response.set_cookie(name, value, httponly=True, samesite=site, secure=secure, max_age=seconds)


def local_path(text: str) -> str:
    """Return a path of this site; "/" in place of anything that leads elsewhere."""
    plain = text.startswith("/") and text[1:2] not in {"/", "\\"} and text.isprintable() and text.isascii()
    return text if plain and not text.startswith(SIGN_IN) else "/"
