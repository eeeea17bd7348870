"""Port: serves one program over standard input and output until the input ends. docs/bridges.md has the protocol.

Standard output carries only frames; output of libraries goes to standard error. The port owns no training: killing it
only ends the answers.
"""

import json
import os
import select
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from itertools import count
from queue import Queue
from threading import Event as Flag
from threading import Lock, Thread
from typing import Any

from pydantic_core import from_json

from scheduler.store import events
from scheduler.store.events import Event
from scheduler.verbs import arguments as given
from scheduler.verbs.arguments import BadRequest, Busy, Name, Names, Position
from scheduler.verbs.surface import Surface, Verb, verb
from scheduler.verbs.table import PROTOCOL, VERBS, document

_SLOW_AT_ONCE = 4
_SLOW_WAITING_MAX = 256
_TAG_MAX = 200
OF_THE_PORT: dict[str, Verb] = {}
Tag = str | int
LOOK_SECONDS = 0.2
SUBSCRIPTIONS_MAX = 10_000
LOGS_MAX = 16  # platforms are asked for each
_BATCH = 200
_LOGS_EVERY = 5  # looks


def take_over() -> tuple[int, int]:
    """Return the descriptors of frames in and out; standard input becomes empty, standard output standard error."""
    frames_in, frames_out = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return frames_in, frames_out


@dataclass
class Port:
    """One connection with a program."""

    surface: Surface
    reader: "FrameReader"
    writer: "Writer"
    _slow: Queue[tuple[Tag, Verb, dict[str, Any]] | None] = field(default_factory=Queue)  # None ends a worker

    def __post_init__(self) -> None:
        self.subscriptions = Subscriptions(self.surface, self._send)

    def serve(self) -> None:
        """Answer until the input ends or the output is closed; running commands are then ended."""
        for work in (*[self._work] * _SLOW_AT_ONCE, self.subscriptions.serve):
            Thread(target=_until_unread, args=(work,), daemon=True).start()
        try:
            self._send({"hello": hello(self)})
            while (body := self.reader.frame()) is not None:
                self._take(body)
        except TooLong as error:
            self._refuse(None, error)
        except BrokenPipeError:
            return
        finally:
            self.subscriptions.close()
            self.surface.commands.close()
            self.writer.close()
            for _ in range(_SLOW_AT_ONCE):
                self._slow.put(None)

    def _take(self, body: bytes) -> None:
        tag: Tag | None = None
        try:
            request = object_of(body)
            raw_tag = request.pop("tag", None)
            if isinstance(raw_tag, bool) or not isinstance(raw_tag, str | int) or len(str(raw_tag)) > _TAG_MAX:
                raise BadRequest("a request has a tag, a short text or a whole number, by which its answer is known")
            tag = raw_tag
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
        own = OF_THE_PORT.get(name)
        if own is not None:
            with self.subscriptions.lock:  # nothing of a subscription is sent before the answer
                self._reply(tag, self.surface.text_of(own.ask(self, dict(given.checked(own.takes, args)))))
            return
        verb = VERBS.get(name)
        if verb is None:
            raise BadRequest(f"there is no verb {name[:50]!r}")
        if not verb.slow:
            self._reply(tag, self.surface.answer(verb, args))
            return
        given.checked(verb.takes, args)  # refused at once, not queued
        if self._slow.qsize() >= _SLOW_WAITING_MAX:
            raise Busy(f"{_SLOW_WAITING_MAX} requests that take long are waiting already")
        self._slow.put((tag, verb, args))

    def _work(self) -> None:
        while (request := self._slow.get()) is not None:
            tag, verb, args = request
            try:
                self._reply(tag, self.surface.answer(verb, args))
            except BrokenPipeError:
                raise
            except Exception as error:  # noqa: BLE001 - as for requests that are answered at once
                self._refuse(tag, error)

    def _reply(self, tag: Tag, body: bytes) -> None:
        self.writer.write(b'{"tag":%b,"ok":%b}' % (json.dumps(tag).encode(), body))

    def _refuse(self, tag: Tag | None, error: Exception) -> None:
        self._send({"tag": tag, "error": self.surface.tell(error)})

    def _send(self, frame: dict[str, Any]) -> None:
        self.writer.write(self.surface.text_of(frame))


@verb("hello", table=OF_THE_PORT)
def hello(port: Port) -> dict[str, Any]:
    """What this port is, and what can be asked of it."""
    return {
        "protocol": PROTOCOL,
        "program": "uff-scheduler",
        "version": version("uff-scheduler"),
        "user": port.surface.who,
        "frame_bytes_max": FRAME_MAX_BYTES,
        "subscriptions_max": SUBSCRIPTIONS_MAX,
        "logs_max": LOGS_MAX,
        "capabilities": sorted([*VERBS, *OF_THE_PORT]),
    }


@verb("describe", table=OF_THE_PORT)
def describe(port: Port) -> dict[str, Any]:  # noqa: ARG001 - every verb has this parameter
    """All verbs with their arguments and answers, as JSON schemas."""
    return document(OF_THE_PORT.values())


@verb("echo", table=OF_THE_PORT)
def echo(port: Port, data: Any = None) -> Any:  # noqa: ARG001 - as above
    """Anything; it comes back."""
    return data


@verb("events.subscribe", table=OF_THE_PORT)
def subscribe_events(
    port: Port, after: Position | None = None, kinds: Names | None = None, subject: Name | None = None
) -> dict[str, int]:
    """Send events after the one numbered ``after``; null: from now on."""
    return port.subscriptions.events(after, kinds, subject)


@verb("log.subscribe", table=OF_THE_PORT)
def subscribe_log(port: Port, run: Name, after: Position = 0) -> dict[str, int]:
    """Send what a run prints from byte ``after`` on."""
    return port.subscriptions.log(run, after)


@verb("unsubscribe", table=OF_THE_PORT)
def unsubscribe(port: Port, subscription: Position) -> dict[str, int]:
    """End a subscription by its number."""
    port.subscriptions.end(subscription)
    return {}


def _until_unread(work: Any) -> None:
    """Run the work of a thread; if the output is closed, close the input as well, which ends the process."""
    try:
        work()
    except OSError:
        return


# Subscriptions to events and log lines. One query of the database serves all of them.
@dataclass(slots=True)
class _Subscription:
    """One subscription to events, or to the output of ``run``; everything up to ``position`` was sent or is skipped."""

    number: int
    position: int
    kinds: Sequence[str] | None = None
    subject: str | None = None
    run: str = ""

    def wants(self, event: Event) -> bool:
        return (self.kinds is None or event.kind in self.kinds) and self.subject in {None, event.subject}


@dataclass
class Subscriptions:
    """All subscriptions of one port. ``send`` sends a document; an exception in it ends :meth:`serve`.

    Subscriptions are added and removed under ``lock``.
    """

    surface: Surface
    send: Callable[[dict[str, Any]], None]
    _numbers: Iterator[int] = field(default_factory=lambda: count(1))
    _all: dict[int, _Subscription] = field(default_factory=dict)
    lock: Lock = field(default_factory=Lock)
    _news: Flag = field(default_factory=Flag)
    _closed: bool = False
    _failing: bool = False

    def events(self, after: int | None, kinds: Sequence[str] | None, subject: str | None) -> dict[str, int]:
        """Subscribe to events; return the position. Raises Busy, StoreFailure."""
        with self.surface.read() as tx:
            newest, pruned = events.newest_id(tx), events.pruned_up_to(tx)
        position = newest if after is None else after
        missed = pruned if position < pruned else 0
        return {**self._begin(position, kinds=kinds, subject=subject), "missed_up_to": missed}

    def log(self, run: str, after: int) -> dict[str, int]:
        """Subscribe to the output of a run; return the position. Raises Busy, UnknownRun, StoreFailure."""
        if len(self._logs()) >= LOGS_MAX:
            raise Busy(f"{LOGS_MAX} logs are followed already")
        self.surface.tails.read(run, after, patience_seconds=0.0)
        return self._begin(after, run=run)

    def _begin(self, position: int, **options: Any) -> dict[str, int]:
        if len(self._all) >= SUBSCRIPTIONS_MAX:
            raise Busy(f"there are {SUBSCRIPTIONS_MAX} subscriptions already")
        one = _Subscription(next(self._numbers), position, **options)
        self._all[one.number] = one
        self._news.set()
        return {"subscription": one.number, "position": position}

    def _logs(self) -> list[_Subscription]:
        return [one for one in self._all.values() if one.run]

    def end(self, number: int) -> None:
        """End a subscription. Raises BadRequest for an unknown number."""
        if self._all.pop(number, None) is None:
            raise BadRequest(f"there is no subscription {number}", "See the answers to events.subscribe")

    def close(self) -> None:
        """End :meth:`serve`."""
        self._closed = True
        self._news.set()

    def serve(self) -> None:
        """Send new events and output until closed."""
        for look in count():
            if not self._all:
                self._news.wait()
            elif not self._news.is_set():
                self._news.wait(LOOK_SECONDS)
            self._news.clear()
            if self._closed:
                return
            try:
                self._look_for_events()
                if look % _LOGS_EVERY == 0:
                    self._look_for_lines()
                self._failing = False
            except OSError:
                raise  # the output is closed
            except Exception as error:  # noqa: BLE001 - reported to the reader once; the next try may succeed
                if not self._failing:
                    self.send({"trouble": self.surface.tell(error)})
                self._failing = True

    def _look_for_events(self) -> None:
        with self.lock:
            waiting = [one for one in self._all.values() if not one.run]
        if not waiting:
            return
        with self.surface.read() as tx:
            newest = events.newest_id(tx)
            behind = [one for one in waiting if one.position < newest]
            batches = {at: events.tail(tx, at, _BATCH) for at in {one.position for one in behind}}
        for one in behind:
            batch = batches[one.position]
            position = batch[-1].id if len(batch) == _BATCH else max(newest, one.position)
            mine = [event for event in batch if one.wants(event)]
            if mine and one.number in self._all:
                self.send({"subscription": one.number, "position": position, "events": mine})
            one.position = position
        if any(len(batch) == _BATCH for batch in batches.values()):
            self._news.set()  # more is available now

    def _look_for_lines(self) -> None:
        with self.lock:
            followed = self._logs()
        for one in followed:
            log = self.surface.tails.read(one.run, one.position, patience_seconds=0.0)
            if log.next > one.position or (log.ended and log.next == one.position):
                self.send({"subscription": one.number, "position": log.next, "log": log})
                one.position = log.next
            if log.ended:
                self._all.pop(one.number, None)


# Frames: a length of four bytes, big-endian, then a JSON object of that many bytes in UTF-8.
FRAME_MAX_BYTES = 64 << 20
_HEAD_BYTES = 4
_READ_BYTES = 1 << 16  # what a pipe holds
_LOOKS = 40  # about a tenth of a millisecond


class TooLong(Exception):
    """A frame is longer than the limit; the start of the next one cannot be found."""


class Unreadable(Exception):
    """A frame is not a JSON object; reading may continue."""


class FrameReader:
    """Reads frames from a descriptor.

    A program often sends its next request at once, and a wake-up takes longer than an answer. So the reader polls a few
    times, yielding to other threads, before it blocks.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLIN)
        self._held, self._at = b"", 0  # bytes that were read, and the start of those not yet returned

    def frame(self) -> bytes | None:
        """Return the bytes of the next frame, None at the end of input, even within a frame. Raises TooLong."""
        head = self._take(_HEAD_BYTES)
        if head is None:
            return None
        size = int.from_bytes(head)
        if size > FRAME_MAX_BYTES:
            raise TooLong(f"a frame of {size} bytes was announced, {FRAME_MAX_BYTES} are the most. The connection ends")
        return self._take(size)

    def _take(self, count: int) -> bytes | None:
        length = len(self._held) - self._at
        if length < count:
            parts = [self._held[self._at :]]
            while length < count:
                part = self._read()
                if not part:
                    return None
                parts.append(part)
                length += len(part)
            self._held, self._at = b"".join(parts), 0
        self._at += count
        return self._held[self._at - count : self._at]

    def _read(self) -> bytes:
        for _ in range(_LOOKS):
            if self._poll.poll(0):
                break
            os.sched_yield()
        return os.read(self._descriptor, _READ_BYTES)


def object_of(body: bytes) -> dict[str, Any]:
    """Return the object of a frame. Raises Unreadable: invalid UTF-8 or JSON, NaN, a lone surrogate, not an object."""
    try:
        decoded = from_json(body, allow_inf_nan=False)
        json.dumps(decoded, allow_nan=False)  # a number beyond the range of floats was parsed as infinity
    except ValueError as error:
        raise Unreadable(f"this frame is no JSON: {str(error)[:200]}") from None
    if not isinstance(decoded, dict):
        raise Unreadable("this frame is JSON, but no object")
    return decoded


class Writer:
    """Writes complete frames to a descriptor, from any thread."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = Lock()

    def write(self, body: bytes) -> None:
        """Write one frame; blocks until the reader takes it. Raises OSError if the output is closed, TooLong."""
        if len(body) > FRAME_MAX_BYTES:
            raise TooLong(f"an answer of {len(body)} bytes fits no frame: ask for less at a time")
        frame = len(body).to_bytes(_HEAD_BYTES) + body
        with self._lock:
            written = os.write(self._descriptor, frame)
            if written < len(frame):
                rest = memoryview(frame)[written:]
                while rest:
                    rest = rest[os.write(self._descriptor, rest) :]

    def close(self) -> None:
        """Write nothing more: another file may have the descriptor's number once its owner has closed it.

        The lock is not taken: a thread may hold it until the reader takes its frame.
        """
        self._descriptor = -1
