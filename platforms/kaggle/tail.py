"""A session's output: streamed while it runs, kept in a file of ours when it is over."""

from __future__ import annotations

from typing import TYPE_CHECKING

from platforms.kaggle.logs import SessionLog, entries_from, entries_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from platforms.kaggle.client import Client
    from platforms.kaggle.records import Record, Records

_KEPT_BYTES = 8 << 20
_STREAM_BYTES = 64 << 20  # of the log as Kaggle sends it, which is larger than its content
_HEAD_BYTES = 1 << 16
_PIECE_BYTES = 1 << 16
_NOTICE = b"\n[output beyond %d bytes is dropped]\n" % _KEPT_BYTES


class Tail:
    """Reads output. A running session that says nothing for ``idle_seconds`` (real) is taken to have said all."""

    def __init__(self, client: Client, records: Records, idle_seconds: float) -> None:
        self._client = client
        self._records = records
        self._idle_seconds = idle_seconds

    def read(self, record: Record, offset: int, limit_bytes: int) -> Iterator[bytes]:
        """Yield at most ``limit_bytes`` of the payload's output from byte ``offset`` on."""
        skip, left = max(0, offset), limit_bytes
        if record.state == "ended" and not self._records.log_path(record.key).exists():
            self.keep(record)  # it was not published yet when the end was seen
        for piece in self._kept(record) if record.state == "ended" else self._live(record):
            if left <= 0:
                return
            shown = piece[skip:][:left]
            skip = max(0, skip - len(piece))
            left -= len(shown)
            if shown:
                yield shown

    def keep(self, record: Record) -> SessionLog | None:
        """Save the output of a session that is over; return what its log told, None when there is none any more."""
        output = self._client.output(record.slug, "")
        if output is None:
            return None
        log = SessionLog()
        entries = entries_of(output.log)
        if not entries:
            return log  # nothing, or not published yet
        with self._records.log_path(record.key).open("wb") as sink:
            for piece in log.feed(entries):
                if sink.tell() + len(piece) > _KEPT_BYTES:
                    sink.write(_NOTICE)
                    break
                sink.write(piece)
            else:
                sink.writelines(log.rest())
        return log

    def session_id(self, record: Record) -> int | None:
        """Return the id that a running session has told of itself, in the first line it printed."""
        log = SessionLog()
        for entries in entries_from(self._client.stream_log(record.slug, self._idle_seconds, _HEAD_BYTES)):
            for _ in log.feed(entries):
                pass
            if log.session_id is not None:
                break
        return log.session_id

    def _kept(self, record: Record) -> Iterator[bytes]:
        try:
            stream = self._records.log_path(record.key).open("rb")
        except FileNotFoundError:
            return
        with stream:
            while piece := stream.read(_PIECE_BYTES):
                yield piece

    def _live(self, record: Record) -> Iterator[bytes]:
        log = SessionLog()
        for entries in entries_from(self._client.stream_log(record.slug, self._idle_seconds, _STREAM_BYTES)):
            yield from log.feed(entries)
