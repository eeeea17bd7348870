"""Sign-in: lets a browser show the token once; from then on a cookie proves it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse
from starlette.requests import ClientDisconnect

from scheduler.web.guard import COOKIE, SIGN_IN

if TYPE_CHECKING:
    from jinja2 import Environment

    from scheduler.web.bearer import Bearer

_BODY_MAX_BYTES = 4_096


def router(bearer: Bearer | None, environment: Environment) -> APIRouter:
    """Return the routes; without a token they lead straight to the page."""
    routes = APIRouter()
    template = environment.get_template("sign_in.html")

    @routes.get(SIGN_IN, include_in_schema=False)
    def ask(request: Request) -> Any:
        back = local_path(request.query_params.get("next", "/"))
        if bearer is None:
            return RedirectResponse(back, 303)
        return HTMLResponse(template.render(next=back, wrong=False))

    @routes.post(SIGN_IN, include_in_schema=False)
    async def answer(request: Request) -> Any:
        body = bytearray()
        try:
            async for piece in request.stream():
                body += piece
                if len(body) > _BODY_MAX_BYTES:
                    return HTMLResponse(template.render(next="/", wrong=True), 413)
        except ClientDisconnect:
            return HTMLResponse("", 400)  # nobody is there to read it
        form = parse_qs(body.decode("utf-8", "replace"))
        back = local_path(form.get("next", ["/"])[0])
        if bearer is None:
            return RedirectResponse(back, 303)
        if not bearer.allows(form.get("token", [""])[0].strip()):
            return HTMLResponse(template.render(next=back, wrong=True), 401)
        found = RedirectResponse(back, 303)
        found.set_cookie(
            COOKIE,
            bearer.session,
            httponly=True,
            samesite="lax",
            secure=request.url.scheme == "https",
            max_age=2_592_000,
        )
        return found

    return routes


def local_path(text: str) -> str:
    """Return a path of this site; "/" in place of anything that leads elsewhere."""
    plain = text.startswith("/") and text[1:2] not in {"/", "\\"} and text.isprintable() and text.isascii()
    return text if plain and not text.startswith(SIGN_IN) else "/"
