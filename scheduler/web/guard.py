"""Guard: middleware before every page: checks host, method and token, and sets security headers."""

import re
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal
from urllib.parse import parse_qs, quote

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from jinja2 import Environment
from starlette.requests import ClientDisconnect, cookie_parser
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from jobs.payload.redact import Redact
from scheduler.clock import real_now
from scheduler.verbs.shapes import Fault
from scheduler.web import actors as acting
from scheduler.web.actors import Actors, Bearer, TooManyTries

COOKIE = "uff_reader"
SIGN_IN = "/sign-in"
PROBLEM = "application/problem+json"
_OPEN = ("/health/", "/livez", "/readyz", "/assets/", SIGN_IN)
# A host name or an address, with an optional port; nothing that a client could parse as a user or another host.
_HOST = re.compile(r"([a-z0-9_][a-z0-9_.-]*|\[[0-9a-f:.]+\])(?::[0-9]{1,5})?", re.ASCII)
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = (
    (b"content-security-policy", _POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
)


@dataclass(frozen=True, slots=True)
class Guard:
    """Admits requests for ``names`` or this machine that read, or send an expected form, with the token.

    ``redact`` gets every answer as a whole, so that a secret in a stored row does not reach a page.

    The Host header is checked even on the loopback address, against DNS rebinding: another site could otherwise make a
    browser request this page under the site's own name and read the answer.
    """

    inner: ASGIApp
    names: frozenset[str]
    bearer: Bearer | None
    redact: Redact = str
    acting: bool = False  # whether POST requests of forms are passed on to their handlers, which check them

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI request."""
        if scope["type"] != "http":
            return
        headers = {name.lower(): value.decode("latin-1") for name, value in scope["headers"]}
        path, head = scope["path"], scope["method"] == "HEAD"

        held: Message = {}

        async def guarded(message: Message) -> None:
            nonlocal held
            if message["type"] == "http.response.start":
                held = {**message, "headers": _with(message.get("headers", []), path)}
                return
            if held:
                if not message.get("more_body"):
                    message = self._redacted(held, message)
                await send(held)
                held = {}
            await send({**message, "body": b""} if head else message)

        if head:
            scope = {**scope, "method": "GET"}
        acts = self.acting and (path == acting.SIGN_IN or path.startswith(acting.PREFIX))
        takes_forms = path == SIGN_IN or acts
        host = _HOST.fullmatch(headers.get(b"host", "").lower())
        answer = self.inner
        if host is None or host[1].removesuffix(".") not in self.names | _LOOPBACK:
            answer = _refusal(421, "unknown host", "this page has another name", "Add the name to web.names")
        elif scope["method"] != "GET" and not (scope["method"] == "POST" and takes_forms):
            answer = _refusal(405, "not allowed", "this page only reads", "Use schedctl", {"allow": "GET, HEAD"})
        elif self.bearer is not None and not path.startswith(_OPEN):
            answer = self._reader(self.bearer, scope, headers)
        await answer(scope, receive, guarded)

    def _redacted(self, start: Message, message: Message) -> Message:
        """Return the body of an answer, sent as one message, without secrets, and set Content-Length."""
        kind = next((value for name, value in start["headers"] if name.lower() == b"content-type"), b"")
        body = message.get("body", b"")
        if not body or not kind.startswith((b"text/", b"application/json")):
            return message
        text = body.decode("utf-8", "surrogateescape")
        clean = self.redact(text)
        if clean == text:
            return message
        body = clean.encode("utf-8", "surrogateescape")
        others = [(name, value) for name, value in start["headers"] if name.lower() != b"content-length"]
        start["headers"] = [*others, (b"content-length", str(len(body)).encode())]
        return {**message, "body": body}

    def _reader(self, bearer: Bearer, scope: Scope, headers: MutableMapping[bytes, str]) -> ASGIApp:
        """Return the application for an authorised reader, otherwise a challenge or a refusal."""
        kind, _, token = headers.get(b"authorization", "").partition(" ")
        cookie = cookie_parser(headers.get(b"cookie", "")).get(COOKIE, "")
        try:
            if kind.lower() == "bearer":
                right = bearer.allows(token.strip(), _peer(scope))
            else:
                right = bearer.continues(cookie, _peer(scope))
        except TooManyTries:
            why = "there were too many wrong tokens from your address, or from all"
            return _refusal(429, "too many tries", why, "Wait a minute", _WAIT)
        if right:
            return self.inner
        answer = _challenge(scope)
        if cookie:
            answer.delete_cookie(COOKIE)  # a browser would send it with every page
        return answer


def _peer(scope: Scope) -> str:
    """Return the peer address of the connection; forwarding headers can be forged."""
    client = scope.get("client")
    return client[0] if client else ""


def _challenge(scope: Scope) -> Response:
    """Return the answer to a reader without the token."""
    path: str = scope["path"]
    if path.startswith("/api/") or path == "/metrics":
        challenge = {"www-authenticate": 'Bearer realm="status"'}
        return _refusal(401, "who are you?", "a bearer token is needed", "Send Authorization: Bearer", challenge)
    query = scope.get("query_string", b"").decode("latin-1")
    back = quote(path + (f"?{query}" if query else ""), safe="")
    return RedirectResponse(f"{SIGN_IN}?next={back}", 303)


def _with(headers: list[tuple[bytes, bytes]], path: str) -> list[tuple[bytes, bytes]]:
    present = {name.lower() for name, _ in headers}
    more = [*_HEADERS]
    if not path.startswith("/assets/"):
        more.append((b"cache-control", b"no-store"))
    return [*headers, *((name, value) for name, value in more if name not in present)]


def _refusal(code: int, error: str, why: str, remedy: str, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse(Fault.of(code, error, why, remedy).model_dump(), code, headers, PROBLEM)


# The sign-in forms of readers and actors.
_BODY_MAX_BYTES = 4_096
_READER_SECONDS = 2_592_000
_WRONG = "This is not the token."
_TOO_MANY = "There were too many wrong tokens. Wait a minute, then try again."
_WAIT = {"retry-after": str(acting.TRIES_SECONDS)}
_SETTINGS = {SIGN_IN: "web.bearer_file", acting.SIGN_IN: "web.actions_file"}


def sign_in_routes(bearer: Bearer | None, environment: Environment, actors: Actors | None = None) -> APIRouter:
    """Return the sign-in routes; without a token they redirect to the page. ``actors`` have their own form."""
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


def _add(
    routes: APIRouter,
    path: str,
    bearer: Bearer | None,
    environment: Environment,
    accept: Callable[[RedirectResponse, Request], None],
) -> None:
    """Add a form at ``path`` that asks for a token; ``accept`` sets the cookie of a person who sent it."""
    template = environment.get_template("sign_in.html")
    page = partial(template.render, action=path, setting=_SETTINGS[path])

    @routes.get(path, include_in_schema=False)
    def ask(request: Request) -> Any:
        back = local_path(request.query_params.get("next", "/"))
        if bearer is None:
            return RedirectResponse(back, 303)
        return HTMLResponse(page(next=back, wrong=""))

    @routes.post(path, include_in_schema=False)
    async def answer(request: Request) -> Any:
        try:
            form = await form_values(request)
        except HTTPException as error:
            return HTMLResponse(page(next="/", wrong=_WRONG), error.status_code)
        back = local_path(form.get("next", "/"))
        if bearer is None:
            return RedirectResponse(back, 303)
        try:
            if not bearer.allows(form.get("token", "").strip(), _peer(request.scope)):
                return HTMLResponse(page(next=back, wrong=_WRONG), 401)
        except TooManyTries:
            return HTMLResponse(page(next=back, wrong=_TOO_MANY), 429, _WAIT)
        response = RedirectResponse(back, 303)
        accept(response, request)
        return response


async def form_values(request: Request) -> dict[str, str]:
    """Return the fields of a form, none repeated. Raises HTTPException 413, 400, 422."""
    body = bytearray()
    try:
        async for piece in request.stream():
            body += piece
            if len(body) > _BODY_MAX_BYTES:
                raise HTTPException(413, "the form is too large")
        fields = parse_qs(body.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=10)
    except ClientDisconnect:
        raise HTTPException(400, "the form did not come in whole") from None
    except ValueError:
        raise HTTPException(422, "the form has too many fields") from None
    return {name: values[0] for name, values in fields.items()}


def _keep(
    response: RedirectResponse, request: Request, name: str, value: str, seconds: int, site: Literal["lax", "strict"]
) -> None:
    # This header needs no check: a client that forges it only makes its own cookie stricter.
    secure = "https" in (request.url.scheme, request.headers.get("x-forwarded-proto"))
    response.set_cookie(name, value, httponly=True, samesite=site, secure=secure, max_age=seconds)


def local_path(text: str) -> str:
    """Return ``path`` if it is a path of this site, otherwise "/"."""
    plain = text.startswith("/") and text[1:2] not in {"/", "\\"} and text.isprintable() and text.isascii()
    return text if plain and not text.startswith(SIGN_IN) else "/"
