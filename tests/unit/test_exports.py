"""Files for other programs: a calendar, CSV, and TensorBoard's event files, read back as those programs read them."""

import math
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.notify.exports import add_events, calendar_of, crc32c, csv_of, first_record, newest, record
from scheduler.report.timeline import LaneBar, Phase, TimelineSession
from scheduler.store.series import FIGURES, Point

AT = 1_795_262_400  # Sat 2026-11-21 12:00 UTC


def read_events(data: bytes) -> list[tuple[float, int, dict[str, float]]]:
    """Read an event file as its format says: lengths, and of each event wall time, step and values."""
    found, at = [], 0
    while at < len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        body = data[at + 12 : at + 12 + length]
        at += 12 + length + 4
        wall, step, values, place = struct.unpack_from("<d", body, 1)[0], 0, {}, 9
        while place < len(body):
            key = body[place]
            number, place = _varint(body, place + 1)
            if key == 0x10:
                step = number
                continue
            inner, place = body[place : place + number], place + number
            if key == 0x2A:
                values = dict(_values(inner))
        found.append((wall, step, values))
    return found


def _values(summary: bytes) -> list[tuple[str, float]]:
    found, place = [], 0
    while place < len(summary):
        assert summary[place] == 0x0A
        length, place = _varint(summary, place + 1)
        value, place = summary[place : place + length], place + length
        tag, after = _varint(value, 1)
        assert value[after + tag] == 0x15
        found.append((value[after : after + tag].decode(), struct.unpack_from("<f", value, after + tag + 1)[0]))
    return found


def _varint(data: bytes, place: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[place]
        number, shift, place = number | (byte & 0x7F) << shift, shift + 7, place + 1
        if byte < 0x80:
            return number, place


def test_a_file_begins_as_every_event_file_does() -> None:
    assert crc32c(b"123456789") == 0xE3069283, "the check value of CRC-32C"
    data = first_record(AT)
    assert data[:12] == b'\x18\0\0\0\0\0\0\0\xa3\x7fK"', "as TensorBoard writes it"
    assert data.endswith(b"brain.Event:2" + data[-4:])


@given(st.integers(0, 10**12), st.floats(width=32, allow_nan=False))
def test_what_is_written_is_read(step: int, loss: float) -> None:
    data = first_record(AT) + record(AT + 1, step, {"loss": loss, "held_out_loss": 1e300})
    assert newest(data) == (AT + 1, len(data))
    assert read_events(data)[1] == (AT + 1, step, {"loss": loss, "held_out_loss": math.inf})


def points(*steps: int) -> list[Point]:
    return [Point("ufm", 1, step, AT + step, 4 - step / 100, 2.0 if step == 20 else None) for step in steps]


def test_a_file_only_grows_and_mends_what_a_crash_cut_off(tmp_path: Path) -> None:
    file = tmp_path / "events"
    add_events(file, points(10, 20))
    before = file.read_bytes()
    add_events(file, points(10, 20))
    assert file.read_bytes() == before
    add_events(file, points(10, 20, 30))
    whole = file.read_bytes()
    assert whole.startswith(before)
    assert [(step, sorted(values)) for _, step, values in read_events(whole)[1:]] == [
        (10, ["loss"]),
        (20, ["held_out_loss", "loss"]),
        (30, ["loss"]),
    ]
    for cut in (len(before) + 5, len(whole) - 1, 3):
        file.write_bytes(whole[:cut])
        add_events(file, points(10, 20, 30))
        assert file.read_bytes() == whole


def test_series_are_a_table(tmp_path: Path) -> None:
    assert ",".join(FIGURES).endswith("gradient_norm,gpu_memory_bytes,gpu_busy,gpu_watts,gpu_throttled")
    figures = Point(
        "ufm",
        1,
        30,
        AT + 30,
        3.5,
        None,
        tokens_per_second=1000.0,
        step_seconds_p90=0.5,
        padding=0.25,
        gradient_norm=1.5,
        gpu_memory_bytes=1024,
        gpu_busy=0.25,
        gpu_watts=70.5,
        gpu_throttled=0.125,
    )
    assert csv_of([*points(10, 20), figures]).splitlines() == [
        ",".join(("attempt", "step", "at", *FIGURES)),
        "1,10,2026-11-21T12:00:10Z,3.9,,,,,,,,,",
        "1,20,2026-11-21T12:00:20Z,3.8,2.0,,,,,,,,",
        "1,30,2026-11-21T12:00:30Z,3.5,,1000.0,0.5,0.25,1.5,1024,0.25,70.5,0.125",
    ]


@pytest.mark.parametrize(("phase", "status"), [("running", "CONFIRMED"), ("planned", "TENTATIVE")])
def test_a_calendar_has_what_runs_and_what_is_planned(phase: Phase, status: str) -> None:
    lanes = (LaneBar("ufm", 0, 1), LaneBar("ä,b;" * 20, 1, 1))
    sessions = [
        TimelineSession("kaggle", 0, AT, AT + 3_600, phase, None, lanes, "planned"),
        TimelineSession("kaggle", 0, AT - 9_000, AT - 1, "past", "uff-ufm-0001", lanes, "yielded"),
    ]
    text = calendar_of(sessions, AT)
    assert text.startswith("BEGIN:VCALENDAR\r\nVERSION:2.0\r\n")
    assert text.endswith("END:VEVENT\r\nEND:VCALENDAR\r\n")
    assert max(len(line.encode()) for line in text.split("\r\n")) <= 75
    lines = text.replace("\r\n ", "").split("\r\n")
    assert lines.count("BEGIN:VEVENT") == 1
    assert {"DTSTART:20261121T120000Z", "DTEND:20261121T130000Z", f"STATUS:{status}"} <= set(lines)
    assert "SUMMARY:ufm\\, " + "ä\\,b\\;" * 20 + " on kaggle" in lines
