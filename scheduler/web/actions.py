"""Actions: what may be changed on the page, by the same requests as the command line's."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import parse_qs, quote

from fastapi import APIRouter, HTTPException, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import RedirectResponse
from starlette.requests import ClientDisconnect

from jobs.ranges import RANGES
from platforms.artifacts.base import StoreError
from scheduler.service.requests import queue, sessions
from scheduler.store.errors import Stale
from scheduler.wake import wake
from scheduler.web.actors import PREFIX, Refused

if TYPE_CHECKING:
    from scheduler.app import App
    from scheduler.service.outside.ports import Log
    from scheduler.web.actors import Actors

BY = "the status page"
_BODY_MAX_BYTES = 4_096
_WORDS_MAX = 500

JobVerb = Literal["hold", "release", "cancel", "priority"]


def router(app: App, actors: Actors, log: Log) -> APIRouter:
    """Return the routes of all actions. Each is a form that is sent by POST and leads back to its page."""
    routes = APIRouter(include_in_schema=False)

    @routes.post(PREFIX + "jobs/{name}/{verb}")
    async def on_job(request: Request, name: str, verb: JobVerb) -> Any:
        asked = await _asked(request)

        def act() -> None:
            actors.take(request, request.url.path, asked.get("form", ""))
            _change(app, name, verb, asked)
            log.info("web.acted", verb=verb, job=name)
            wake(app.settings.state_dir)

        return await _done(act, f"/jobs/{quote(name)}")

    @routes.post(PREFIX + "runs/{key}/stop")
    async def on_run(request: Request, key: str) -> Any:
        asked = await _asked(request)

        def act() -> None:
            actors.take(request, request.url.path, asked.get("form", ""))
            why = app.redact(asked.get("why", "")) or "stopped on the status page"
            sessions.stop(app.database, app.artifacts, key, why, app.clock.now(), BY)
            log.info("web.acted", verb="stop", run=key)
            wake(app.settings.state_dir)

        return await _done(act, f"/runs/{quote(key)}")

    return routes


def _change(app: App, name: str, verb: JobVerb, asked: dict[str, str]) -> None:
    """Do it. Raises UnknownJob, QueueError, Stale, HTTPException 422."""
    now = app.clock.now()
    match verb:
        case "hold":
            queue.hold(app.database, name, app.redact(asked.get("why", "")) or "held on the status page", now, BY)
        case "release":
            queue.release(app.database, name, now, BY)
        case "cancel":
            queue.cancel(app.database, name, now, BY)
        case "priority":
            queue.change(app.database, name, now, BY, weight=_weight(asked.get("weight", "")))


def _weight(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not RANGES["weight"].holds(found):
        raise HTTPException(422, f"a weight is a number in the range {RANGES['weight']}")
    return found


async def _done(act: Any, back: str) -> RedirectResponse:
    try:
        await run_in_threadpool(act)
    except Refused as error:
        raise HTTPException(403, f"{error.why}. Open the page anew and try again") from None
    except (queue.QueueError, sessions.SessionRefused) as error:
        raise HTTPException(409, str(error)) from None
    except StoreError as error:
        raise HTTPException(503, f"the artifact store cannot be opened: {error}") from None
    except Stale:
        raise HTTPException(409, "it changed at the same moment. Look at it anew and try again") from None
    return RedirectResponse(back, 303)


async def _asked(request: Request) -> dict[str, str]:
    """Return a form's fields, each once and cut to a sentence. Raises HTTPException 413, 400."""
    body = bytearray()
    try:
        async for piece in request.stream():
            body += piece
            if len(body) > _BODY_MAX_BYTES:
                raise HTTPException(413, "the form is too large")
    except ClientDisconnect:
        raise HTTPException(400, "the form did not come in whole") from None
    try:
        fields = parse_qs(body.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=10)
    except ValueError:
        raise HTTPException(422, "the form has too many fields") from None
    return {name: _plain(values[0]) for name, values in fields.items()}


def _plain(text: str) -> str:
    return " ".join("".join(c if c.isprintable() else " " for c in text[:_WORDS_MAX]).split())
