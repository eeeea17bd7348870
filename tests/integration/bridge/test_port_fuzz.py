"""Odd frames of every kind: each is answered with an error frame, or the conversation ends cleanly. Nothing hangs."""

from __future__ import annotations

import json
import socket
from contextlib import suppress
from threading import Thread
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from scheduler.bridge.port import FRAME_MAX_BYTES, OF_THE_PORT, FrameReader, Port, Unreadable, Writer, object_of
from scheduler.cli.shell.context import GlobalOptions
from scheduler.cli.shell.exits import document_of
from scheduler.verbs.surface import Surface
from scheduler.verbs.table import VERBS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.lab.web.world import World

# What runs a command takes half a second; their arguments are refused or not before, by the same code as the others'.
QUICK = sorted({*VERBS, *OF_THE_PORT} - {name for name, verb in VERBS.items() if verb.answers == dict[str, Any]})
WAIT_SECONDS = 120

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=12,
)
ARGS = st.dictionaries(
    st.sampled_from(
        ["job", "run", "after", "page", "rows", "state", "weight", "why", "week", "version", "subscription"]
    )
    | st.text(max_size=5),
    JSON,
    max_size=4,
)
REQUEST = st.fixed_dictionaries(
    {"tag": st.integers(0, 99) | JSON, "verb": st.sampled_from(QUICK) | JSON, "args": ARGS | JSON},
    optional={"more": JSON},
)
BODY = st.one_of(
    REQUEST.map(lambda value: json.dumps(value).encode()),
    JSON.map(lambda value: json.dumps(value).encode()),
    st.binary(max_size=60),
    st.sampled_from(
        [
            b"",
            b"{}",
            b"[" * 100_000,
            b'{"a":' * 100_000,
            b'{"tag":1,"verb":"queue.show","args":{"job":"a\\u0000b"}}',
            b'{"tag":1,"verb":"echo","args":{"data":"\\ud800"}}',
            b'{"tag":1,"verb":"echo","args":{"data":NaN}}',
            b'{"tag":1,"verb":"echo","args":{"data":1e999}}',
            b'{"tag":1,"verb":"echo","args":{"data":%s}}' % (b"9" * 5_000),
            b'{"tag":1,"verb":"queue.list","args":{"page":%s}}' % (b"9" * 400),
            b'{"tag":1,"tag":2,"verb":"echo"}',
            '{"tag":1,"verb":"echo"}'.encode("utf-16"),
            b'\xef\xbb\xbf{"tag":1,"verb":"echo"}',
            b"\xff" * 10,
        ]
    ),
)


@pytest.fixture(scope="module")
def surface(world: World) -> Surface:
    from scheduler.app import load_app

    return Surface(load_app(world.config, {}), "fuzz", world.config, lambda error: document_of(error, GlobalOptions()))


def conversation(surface: Surface, data: bytes) -> list[dict[str, Any]]:
    """Return the frames that a port writes for ``data``, which ends there. Raises AssertionError when it hangs."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        port = Port(surface, FrameReader(theirs.fileno()), Writer(theirs.fileno()))
        said = bytearray()

        def serve() -> None:
            port.serve()
            theirs.shutdown(socket.SHUT_WR)

        def feed() -> None:
            with suppress(OSError):  # of a conversation that is over by then
                ours.sendall(data)
                ours.shutdown(socket.SHUT_WR)

        serving, feeding = Thread(target=serve, daemon=True), Thread(target=feed, daemon=True)
        ours.settimeout(WAIT_SECONDS)
        for thread in (serving, feeding):
            thread.start()
        while piece := ours.recv(1 << 16):
            said += piece
        serving.join(WAIT_SECONDS)
        assert not serving.is_alive()
        with pytest.raises(OSError, match="descriptor"):  # the next conversation may have the same number
            port.writer.write(b"an answer that comes late")
    feeding.join(WAIT_SECONDS)
    assert not feeding.is_alive()
    return list(frames(bytes(said)))


def frames(said: bytes) -> Iterator[dict[str, Any]]:
    while said:
        size = int.from_bytes(said[:4])
        body, said = said[4 : 4 + size], said[4 + size :]
        assert len(body) == size, "a frame that is cut"
        yield json.loads(body, parse_constant=pytest.fail)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(bodies=st.lists(BODY, max_size=5))
@example(bodies=[b'{"tag":0,"verb":"echo","args":{"data":1e310}}'])
def test_every_odd_frame_has_an_answer(surface: Surface, bodies: list[bytes]) -> None:
    data = b"".join(
        len(body).to_bytes(4) + body for body in [*bodies, b'{"tag":"last","verb":"echo","args":{"data":7}}']
    )
    hello, *told = conversation(surface, data)
    assert hello["hello"]["protocol"] == 1
    answers = [frame for frame in told if "tag" in frame]
    assert {"tag": "last", "ok": 7} in answers
    # Slow answers may be cut off by the end of the input; no frame has two.
    assert len(answers) <= len(bodies) + 1
    for frame in answers:
        assert ("ok" in frame) != ("error" in frame)
        if "error" in frame:
            assert frame["error"]["exit_code"] in range(2, 10), frame
            assert frame["error"]["message"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.binary(max_size=200))
def test_any_bytes_end_cleanly(surface: Surface, data: bytes) -> None:
    hello, *told = conversation(surface, data)
    assert hello["hello"]["protocol"] == 1
    assert all("error" in frame for frame in told)


@pytest.mark.parametrize("size", [FRAME_MAX_BYTES + 1, 2**32 - 1])
def test_a_frame_that_is_too_long_ends_the_conversation_with_a_word(surface: Surface, size: int) -> None:
    _, told = conversation(surface, size.to_bytes(4) + b"x" * 1_000)
    assert told["tag"] is None
    assert str(FRAME_MAX_BYTES) in told["error"]["message"]


@given(JSON.filter(lambda value: isinstance(value, dict)))
def test_objects_are_read_as_they_were_written(value: dict[str, Any]) -> None:
    try:
        text = json.dumps(value, allow_nan=False)
    except ValueError:
        return
    try:
        assert object_of(text.encode()) == value
    except Unreadable:
        assert any(0xD800 <= ord(c) < 0xE000 for c in json.dumps(value, ensure_ascii=False))
