"""Port: serves one program over its standard input and output until the input ends. docs/bridges.md has the protocol.

Standard output carries frames and nothing else: what a library prints goes to standard error. The port starts no
training and owns none; whoever kills it stops nothing but the answers.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from importlib.metadata import version
from queue import Full, Queue
from threading import Thread
from typing import TYPE_CHECKING, Any

from scheduler.bridge import arguments as given
from scheduler.bridge.errors import BadRequest, Busy
from scheduler.bridge.frames import FRAME_MAX_BYTES, Reader, TooLong, Writer, object_of
from scheduler.bridge.subscriptions import LOGS_MAX, SUBSCRIPTIONS_MAX, Subscriptions
from scheduler.bridge.surface import checked
from scheduler.bridge.verbs import PROTOCOL, VERBS, document

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scheduler.bridge.surface import Surface
    from scheduler.bridge.verbs import Verb

_SLOW_AT_ONCE = 4
_SLOW_WAITING_MAX = 256
_TAG_MAX = 200
OF_THE_PORT: Mapping[str, type[given.Arguments]] = {
    "hello": given.Nothing,
    "describe": given.Nothing,
    "echo": given.Echo,
    "events.subscribe": given.SubscribeEvents,
    "log.subscribe": given.ReadLog,
    "unsubscribe": given.Unsubscribe,
}
Tag = str | int


def take_over() -> tuple[int, int]:
    """Return where frames come from and where they go, and put harmless ends in the places of both for all others."""
    frames_in, frames_out = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return frames_in, frames_out


@dataclass
class Port:
    """One conversation."""

    surface: Surface
    reader: Reader
    writer: Writer
    _slow: Queue[tuple[Tag, Verb, dict[str, Any]]] = field(default_factory=lambda: Queue(_SLOW_WAITING_MAX))

    def __post_init__(self) -> None:
        self._subscriptions = Subscriptions(self.surface, self._send)

    def serve(self) -> None:
        """Answer until the input ends or the reader of the output has gone. A command that is at work then is ended."""
        for work in (*[self._work] * _SLOW_AT_ONCE, self._subscriptions.serve):
            Thread(target=_until_unread, args=(work,), daemon=True).start()
        try:
            self._send({"hello": self._hello()})
            while (body := self.reader.frame()) is not None:
                self._take(body)
        except TooLong as error:
            self._refuse(None, error)
        except BrokenPipeError:
            return
        finally:
            self._subscriptions.close()
            self.surface.commands.close()

    def _take(self, body: bytes) -> None:
        tag: Tag | None = None
        try:
            request = object_of(body)
            found = request.pop("tag", None)
            if isinstance(found, bool) or not isinstance(found, str | int) or len(str(found)) > _TAG_MAX:
                raise BadRequest("a request has a tag, a short text or a whole number, by which its answer is known")
            tag = found
            name, args = request.pop("verb", None), request.pop("args", {})
            if request:
                raise BadRequest(f"a request has tag, verb and args, not {min(request)[:50]!r}")
            if not isinstance(name, str) or not isinstance(args, dict):
                raise BadRequest("a request has a verb, which is a text, and args, which are an object")
            self._do(tag, name, args)
        except OSError:
            raise
        except Exception as error:  # noqa: BLE001 - the one place where every error becomes a frame
            self._refuse(tag, error)

    def _do(self, tag: Tag, name: str, args: dict[str, Any]) -> None:
        verb = VERBS.get(name)
        if verb is not None:
            if not verb.slow:
                self._reply(tag, self.surface.answer(verb, args))
                return
            checked(verb.takes, args)  # said at once, not when its turn comes
            try:
                self._slow.put_nowait((tag, verb, args))
            except Full:
                raise Busy(f"{_SLOW_WAITING_MAX} requests that take long are waiting already") from None
            return
        takes = OF_THE_PORT.get(name)
        if takes is None:
            raise BadRequest(f"there is no verb {name[:50]!r}")
        asked = checked(takes, args)
        match asked:
            case given.Echo():
                self._reply(tag, json.dumps(asked.data, allow_nan=False).encode())
            case given.SubscribeEvents():
                self._subscriptions.events(asked, lambda told: self._reply(tag, self.surface.text_of(told)))
            case given.ReadLog():
                self._subscriptions.log(asked, lambda told: self._reply(tag, self.surface.text_of(told)))
            case given.Unsubscribe():
                self._subscriptions.end(asked.subscription)
                self._reply(tag, b"{}")
            case _:
                self._reply(tag, self.surface.text_of(self._hello() if name == "hello" else document(OF_THE_PORT)))

    def _work(self) -> None:
        while True:
            tag, verb, args = self._slow.get()
            try:
                self._reply(tag, self.surface.answer(verb, args))
            except BrokenPipeError:
                raise
            except Exception as error:  # noqa: BLE001 - as for requests that are answered at once
                self._refuse(tag, error)

    def _hello(self) -> dict[str, Any]:
        return {
            "protocol": PROTOCOL,
            "program": "uff-scheduler",
            "version": version("uff-scheduler"),
            "user": self.surface.who,
            "frame_bytes_max": FRAME_MAX_BYTES,
            "subscriptions_max": SUBSCRIPTIONS_MAX,
            "logs_max": LOGS_MAX,
            "capabilities": sorted([*VERBS, *OF_THE_PORT]),
        }

    def _reply(self, tag: Tag, body: bytes) -> None:
        self.writer.write(b'{"tag":%b,"ok":%b}' % (json.dumps(tag).encode(), body))

    def _refuse(self, tag: Tag | None, error: Exception) -> None:
        self._send({"tag": tag, "error": self.surface.tell(error)})

    def _send(self, frame: dict[str, Any]) -> None:
        self.writer.write(self.surface.text_of(frame))


def _until_unread(work: Any) -> None:
    """Do work of a thread; when nobody reads any more, the input ends as well, and with it the process."""
    try:
        work()
    except OSError:
        return
