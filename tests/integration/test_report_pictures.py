"""The pictures of a report: drawn from the books, inline in a page, and as PNG in a message."""

import re
import struct
import zlib
from base64 import b64decode
from collections.abc import Iterator
from email import message_from_bytes, policy
from pathlib import Path
from typing import Self

import pytest

from jobs.nouns.pool import Pool
from jobs.nouns.quota import CalendarQuota
from jobs.nouns.window import DAY, HOUR, Calendar
from jobs.payload.store.manifest import Component, Manifest
from jobs.spec import JobSpec
from scheduler.core.ledger import EntryKind, LedgerEntry
from scheduler.notify import mail
from scheduler.notify.deliver import EmailChannel
from scheduler.notify.mail import message_of
from scheduler.report.chart import STYLE
from scheduler.report.picture import Picture, find_font, png_of
from scheduler.report.renderings import attached, html_of
from scheduler.report.report import Report
from scheduler.store import checkpoints, jobs, ledger
from scheduler.store.engine import Database
from scheduler.views.chart_facts import pictures_of
from scheduler.views.weekly_report import make_report, render, week_named
from tests.lab.databases import new_database

WEEK_47 = week_named("2026-W47", "UTC")
NOW = WEEK_47.end + HOUR
POOLS = {
    "kaggle": Pool(
        "kaggle", "local", "T4", (CalendarQuota("hours <b>", 30 * HOUR, Calendar("week", "UTC", weekday=5)),)
    )
}

needs_font = pytest.mark.skipif(find_font() is None, reason="this machine has no font; install fonts-dejavu-core")


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    """A job that saved twice, and four hours that were charged."""
    opened = new_database(tmp_path / "scheduler.db")
    spec = JobSpec(name="ufm", role="manager", command=("x",), target_step=5_000, steps_per_hour=100.0)
    over = WEEK_47.end
    with opened.write() as tx:
        jobs.add(tx, spec, WEEK_47.start)
        ledger.append(
            tx,
            [LedgerEntry(EntryKind.ADJUST, "kaggle", None, over - 4 * HOUR, over, over - 1, evidence="its books")],
        )
        for step, loss in ((1_000, 3.5), (2_000, 2.5)):
            manifest = Manifest(
                job="ufm",
                step=step,
                attempt=1,
                run="uff-ufm-0001",
                lane=0,
                parent=None,
                created_at=WEEK_47.start + DAY,
                trained_seconds=HOUR,
                components=(Component("weights", "0" * 64, 1),),
                metrics={"held_out_loss": loss},
            )
            checkpoints.record(tx, manifest, WEEK_47.start + DAY)
    yield opened
    opened.close()


@pytest.fixture
def report(database: Database) -> Report:
    """The report of the week."""
    return make_report(database, POOLS, WEEK_47, "UTC", NOW)


def test_a_page_shows_the_week_the_plan_each_quota_and_each_curve(database: Database, report: Report) -> None:
    pictures = pictures_of(database, POOLS, report)
    assert [picture.name for picture in pictures] == ["week", "ahead", "quota-0", "loss-0"]
    page = render(report, "html", pictures)
    assert page.count("<svg xmlns") == 4
    assert "kaggle, hours &lt;b&gt;: what is left over time" in page
    assert "26.0 h of 30.0 h not used yet" in page, "the picture and the table count from the same books"
    assert "From 3.5 at step 1,000 to 2.5 at step 2,000 of 5,000" in page
    assert "<b>" not in page


@pytest.mark.services
@needs_font
def test_a_message_carries_its_pictures_and_names_each_once(
    database: Database, report: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a mail server is given: text, a page, and one PNG for each picture that the page asks for."""
    taken: list[bytes] = []
    monkeypatch.setattr("scheduler.notify.deliver._Smtp", lambda *_: _Server(taken))
    body = message_of(report, pictures_of(database, POOLS, report))
    EmailChannel("localhost", 25, False, "", "", "s@example.org", ("a@example.org",), 5).send("weekly-1", body)
    message = message_from_bytes(taken[0], policy=policy.default)
    page = message.get_body(("html",))
    assert page is not None
    html = page.get_content()
    parts = {part["Content-ID"].strip("<>"): part for part in message.walk() if part["Content-ID"]}
    assert sorted(parts) == ["ahead", "loss-0", "quota-0", "week"]
    for name, part in parts.items():
        assert html.count(f'src="cid:{name}"') == 1
        assert part.get_content_type() == "image/png"
        assert part.get_content() == b64decode(body["pictures"][name])
    text = message.get_body(("plain",))
    assert text is not None
    assert "Training report 2026-W47" in text.get_content()


class _Server:
    """A mail server that keeps what it is given."""

    def __init__(self, taken: list[bytes]) -> None:
        self._taken = taken

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is open."""

    def send_message(self, message: object) -> dict[str, object]:
        """Take a message."""
        self._taken.append(bytes(message))  # type: ignore[call-overload]
        return {}


@pytest.mark.services
@needs_font
def test_a_png_is_drawn_in_the_charts_light_colours_with_letters(database: Database, report: Report) -> None:
    """Resvg ignores what it does not understand: a black chart without words would be no error."""
    font = find_font()
    assert font is not None
    (curve,) = [picture for picture in pictures_of(database, POOLS, report) if picture.name == "loss-0"]
    width, height, colours = pixels(png_of(curve.fixed, font))
    assert width >= 2 * curve.width, "twice as fine, with room for the labels"
    assert height >= 400
    assert colours[light("--live")] > 500, "the measured line"
    assert colours[light("--quiet")] > 50, "words"
    assert (0, 0, 0) not in colours, "nothing fell back to black"


def test_without_a_font_or_the_library_a_message_has_its_words_and_bars_alone(
    database: Database, report: Report, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pictures = pictures_of(database, POOLS, report)
    monkeypatch.setattr(mail, "find_font", lambda: find_font([tmp_path, tmp_path / "none"]))
    without_font = message_of(report, pictures)
    monkeypatch.undo()
    monkeypatch.setitem(__import__("sys").modules, "resvg_py", None)
    without_library = message_of(report, pictures)
    for body in (without_font, without_library):
        assert body["pictures"] == {}
        assert "cid:" not in body["html"]
        assert "Training report" in body["html"]


def test_captions_are_escaped(report: Report) -> None:
    from scheduler.report.document import document_of

    hostile = Picture("x", '"><script>', "", "", 640)
    assert "<script>" not in html_of(document_of(report), attached([hostile]))


def light(variable: str) -> tuple[int, int, int]:
    """Return a colour of the charts' light scheme."""
    found = re.search(rf"{variable}: #(..)(..)(..);", STYLE)
    assert found is not None
    return int(found[1], 16), int(found[2], 16), int(found[3], 16)


def pixels(png: bytes) -> tuple[int, int, dict[tuple[int, int, int], int]]:
    """Return width, height and how often each colour occurs, of an RGBA PNG."""
    at, data, width, height = 8, b"", 0, 0
    while at < len(png):
        length, kind = struct.unpack(">I4s", png[at : at + 8])
        body = png[at + 8 : at + 8 + length]
        if kind == b"IHDR":
            width, height = struct.unpack(">II", body[:8])
            assert body[8:10] == b"\x08\x06", "8 bits, RGBA"
        data += body if kind == b"IDAT" else b""
        at += 12 + length
    raw, line, found = zlib.decompress(data), bytes(width * 4), dict[tuple[int, int, int], int]()
    for row in range(height):
        start = row * (width * 4 + 1)
        line = _unfiltered(raw[start], raw[start + 1 : start + 1 + width * 4], line)
        for pixel in range(0, len(line), 4):
            colour = (line[pixel], line[pixel + 1], line[pixel + 2])
            found[colour] = found.get(colour, 0) + 1
    return width, height, found


def _unfiltered(kind: int, line: bytes, above: bytes) -> bytes:
    """Undo a PNG row filter (RFC 2083, section 6)."""
    out = bytearray(line)
    for index in range(len(out)):
        left = out[index - 4] if index >= 4 else 0
        up, corner = above[index], above[index - 4] if index >= 4 else 0
        if kind == 1:
            guess = left
        elif kind == 2:
            guess = up
        elif kind == 3:
            guess = (left + up) // 2
        elif kind == 4:
            base = left + up - corner
            guess = min((abs(base - left), 0, left), (abs(base - up), 1, up), (abs(base - corner), 2, corner))[2]
        else:
            guess = 0
        out[index] = (out[index] + guess) & 255
    return bytes(out)
