"""Timelines: past, running and planned sessions of each pool over several days, and closures. Pure."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from jobs.nouns.pool import Pool
from jobs.nouns.window import Window
from scheduler.core.plan import Placement, Plan
from scheduler.core.run import Ended, Outcome, Run, Running, Stopping
from scheduler.report.chart import Frame, attribute, days, hours, labels, local, words

Phase = Literal["past", "bad", "running", "planned", "empty", "expected"]

_AXIS = 30
_HEAD = 24
_ROW = 18
_GAP = 10
_LETTER = 6.5
_LETTERS_MIN = 3  # fewest characters of a shortened name, including its ellipsis
_HOURLY_SECONDS = 2 * 86_400  # the axis of a shorter span has hours
_EVERY_HOURS = 3
_STRIPE = 4  # pixels at the start of a bar in the colour of its model
# Widths in pixels at which a label must fit: on narrow screens, and (class "roomy") on wide screens only.
_NARROW, _WIDE = 660, 1_000
_DETAILED_MAX = 240  # with more sessions, bars have no titles and links, because a page has at most 100 kB
_BAD = {Outcome.FAILED, Outcome.LOST, Outcome.REJECTED}


@dataclass(frozen=True, slots=True)
class LaneBar:
    """One job in a session: it uses the devices [first, first + devices) of the session.

    It uses them from ``since`` to ``until``; None means the start or the end of the session.
    """

    job: str
    first: int
    devices: int
    bad: bool = False
    since: int | None = None
    until: int | None = None


@dataclass(frozen=True, slots=True)
class TimelineSession:
    """A session in the row ``slot`` of its pool, counted from 0. ``key`` is its run ID, None for a planned session.

    In a pool with a choice of device counts a slot is a device, and ``slot`` is the first device of the session.
    ``ends`` is the actual or planned end; ``lanes`` has at least one job.
    """

    pool: str
    slot: int
    start: int
    ends: int
    phase: Phase
    key: str | None
    lanes: tuple[LaneBar, ...]
    outcome: str


@dataclass(frozen=True, slots=True)
class Timeline:
    """The data for a picture of [start, end). ``slots`` is the number of slots of each pool.

    ``hues`` are the colours of jobs, drawn at the start of their bars.
    """

    start: int
    end: int
    now: int
    pools: tuple[Pool, ...]
    slots: Mapping[str, int]
    sessions: tuple[TimelineSession, ...]
    closed: Mapping[str, Sequence[Window]]
    hues: Mapping[str, int] = field(default_factory=dict)


def timeline_of(
    span: Window,
    now: int,
    pools: Iterable[Pool],
    runs: Sequence[Run],
    plan: Plan | None,
    closed: Mapping[str, Sequence[Window]],
    hues: Mapping[str, int] | None = None,
) -> Timeline:
    """Return the layout of runs and planned sessions. ``runs`` overlap the span; refused runs are left out."""
    sessions: list[TimelineSession] = []
    slots: dict[str, int] = {}
    pool_names = tuple(pools)
    for pool in pool_names:
        ours = [run for run in runs if run.pool == pool.name]
        ahead = upcoming(plan, ours, pool.name, now)
        entries = [entry for run in ours if (entry := _of_run(run, now))] + [_of_plan(place, now) for place in ahead]
        free: list[int] = []
        for entry in sorted(entries, key=lambda entry: (entry.start, entry.phase == "planned", entry.key or "")):
            if entry.ends <= span.start or entry.start >= span.end:
                continue
            tall = sum(bar.devices for bar in entry.lanes if bar.since is None) if pool.device_counts else 1
            fits = (n for n in range(len(free)) if all(at <= entry.start for at in free[n : n + tall]))
            slot = next(fits, len(free))
            free[slot : slot + tall] = [entry.ends] * tall
            sessions.append(replace(entry, slot=slot))
        slots[pool.name] = max(1, len(free))
    return Timeline(span.start, span.end, now, pool_names, slots, tuple(sessions), closed, hues or {})


def upcoming(plan: Plan | None, runs: Sequence[Run], pool: str, now: int) -> list[Placement]:
    """Return the planned sessions of a pool that have not ended and are not among ``runs``."""

    def started(place: Placement) -> bool:
        jobs = {bar.job for bar in place.lanes}
        return any(
            {lane.job for lane in run.lanes if lane.begun_at is None} == jobs
            and run.planned_start < place.end
            and place.start < run.deadline
            for run in runs
        )

    places = () if plan is None else plan.placements
    return [place for place in places if place.pool == pool and place.end > now and not started(place)]


def timeline_svg(timeline: Timeline, zone: str, width: int | None = None, link: str = "") -> str:
    """Return the SVG. With ``link``, the bar of a session links to ``link`` followed by its run ID."""
    frame = Frame(width)
    span = timeline.end - timeline.start

    def x(at: float) -> float:
        return (at - timeline.start) / span

    parts: list[str] = []
    edge = f'<line class="grid" x1="{frame.x(0)}" x2="{frame.x(1)}" y1="{{0:g}}" y2="{{0:g}}"/>'
    height = _AXIS + sum(_HEAD + _ROW * _rows(timeline, pool) + _GAP for pool in timeline.pools)
    parts.extend(_axis(frame, timeline, zone, height))
    top = float(_AXIS)
    for pool in timeline.pools:
        rows = _rows(timeline, pool)
        has_now = timeline.start <= timeline.now < timeline.end
        shut_now = has_now and any(timeline.now in shut for shut in timeline.closed.get(pool.name, ()))
        aside = ' <tspan class="aside">closed</tspan>' if shut_now else ""
        parts.append(f'<text class="strong row-name" x="2" y="{top + 16:g}">{words(pool.name)}{aside}</text>')
        first = top + _HEAD
        parts.append(edge.format(first))
        for shut in timeline.closed.get(pool.name, ()):
            if shut.start < timeline.end and shut.end > timeline.start:
                left, right = max(0.0, x(shut.start)), min(1.0, x(shut.end))
                parts.append(
                    f'<rect class="closed" x="{frame.x(left)}" y="{first + 1:g}" width="{frame.length(right - left)}" '
                    f'height="{_ROW * rows - 2:g}"><title>{words(pool.name)} closed</title></rect>'
                )
        for session in timeline.sessions:
            if session.pool == pool.name:
                parts.extend(_bars(frame, timeline, session, pool, first, zone, link))
        parts.append(edge.format(first + _ROW * rows))
        top = first + _ROW * rows + _GAP
    if timeline.start <= timeline.now < timeline.end:
        at = frame.x(x(timeline.now))
        parts.append(f'<line class="now" id="now" x1="{at}" x2="{at}" y1="{_AXIS - 8}" y2="{height - _GAP}"/>')
    counts = Counter(session.phase for session in timeline.sessions)
    more = (
        f"{counts['past'] + counts['bad']} past sessions, {counts['bad']} of them failed; "
        f"{counts['running']} running, {counts['planned']} planned. The table of sessions lists them."
    )
    return frame.document(parts, height, "Sessions of all pools over time", more, role="group" if link else "img")


def _rows(timeline: Timeline, pool: Pool) -> int:
    return timeline.slots[pool.name] * _tall(pool)


def _tall(pool: Pool) -> int:
    """Return the number of rows of a slot."""
    return 1 if pool.device_counts else max(1, pool.devices_per_session)


def _of_run(run: Run, now: int) -> TimelineSession | None:
    lanes = tuple(
        LaneBar(
            lane.job,
            min(lane.devices, default=0),
            max(1, len(lane.devices)),
            lane.outcome in _BAD,
            lane.begun_at,
            min((other.begun_at for other in run.lanes if other.begun_at and other.continues(lane)), default=None),
        )
        for lane in run.lanes
    )
    match run.state:
        case Ended(started=None):
            return None
        case Ended(outcome=outcome, at=at, started=int(started)):
            bad = outcome in _BAD or all(bar.bad for bar in lanes)
            return TimelineSession(
                run.pool, 0, started, max(at, started + 1), "bad" if bad else "past", run.key, lanes, outcome
            )
        case Running() | Stopping() if run.wait is not None:
            return TimelineSession(run.pool, 0, now, max(run.deadline, now), "planned", run.key, lanes, "waiting")
        case Running(started=started) | Stopping(started=started):
            state = type(run.state).__name__.lower()
            return TimelineSession(run.pool, 0, started, max(run.deadline, now), "running", run.key, lanes, state)
        case _:
            start = min(run.planned_start, now)
            return TimelineSession(run.pool, 0, start, max(run.deadline, now), "running", run.key, lanes, "starting")


def _of_plan(place: Placement, now: int) -> TimelineSession:
    lanes, first = [], 0
    for bar in place.lanes:
        lanes.append(LaneBar(bar.job, first, max(1, bar.devices)))
        first += max(1, bar.devices)
    return TimelineSession(place.pool, 0, max(place.start, now), place.end, "planned", None, tuple(lanes), "planned")


def _axis(frame: Frame, timeline: Timeline, zone: str, height: float) -> Iterator[str]:
    span = timeline.end - timeline.start
    hourly = span <= _HOURLY_SECONDS
    instants = (
        hours(timeline.start, timeline.end, zone, _EVERY_HOURS) if hourly else days(timeline.start, timeline.end, zone)
    )
    marks = {(at - timeline.start) / span: at for at in instants}
    for at in marks:
        yield f'<line class="grid" x1="{frame.x(at)}" x2="{frame.x(at)}" y1="4" y2="{height - _GAP:g}"/>'
    # On a phone the picture keeps its width and is scrolled; each label starts at its line.
    long = _EVERY_HOURS * 3_600 if hourly else 86_400
    named = [(place, _mark(at, zone, hourly=hourly)) for place, at in marks.items()]
    for place, _, text in labels(frame if frame.width else Frame(_NARROW), named, (2, 2)):
        style = "strong" if marks[place] <= timeline.now < marks[place] + long else ""
        yield (
            f'<svg x="{frame.x(place)}" y="0" width="{frame.length(long / span)}" height="{_AXIS}" overflow="visible">'
            f'<text class="{style}" x="4" y="14">{text}</text></svg>'
        )


def _mark(at: int, zone: str, *, hourly: bool) -> str:
    clock = local(at, zone, "%H:%M")
    return clock if hourly and clock != "00:00" else local(at, zone, "%a %-d %b")


def _bars(
    frame: Frame, timeline: Timeline, session: TimelineSession, pool: Pool, first: float, zone: str, link: str
) -> Iterator[str]:
    span = timeline.end - timeline.start
    at = f"{local(session.start, zone, '%a %H:%M')} to {local(session.ends, zone, '%a %H:%M')}"
    length = (session.ends - session.start) / 3_600
    for lane in session.lanes:
        start = max(session.start if lane.since is None else lane.since, timeline.start)
        ends = min(session.ends if lane.until is None else lane.until, timeline.end)
        if ends <= start:
            continue
        left, wide = (start - timeline.start) / span, (ends - start) / span
        done = ends if session.phase != "running" else min(max(timeline.now, start), ends)
        devices = _tall(pool)
        row = session.slot * devices + min(lane.first, devices - 1)
        tall = lane.devices if pool.device_counts else min(lane.devices, devices - min(lane.first, devices - 1))
        y, height = first + _ROW * row + 1.5, _ROW * tall - 3
        style = "bad" if lane.bad else session.phase
        detailed = len(timeline.sessions) <= _DETAILED_MAX
        bar = f"<title>{words(f'{lane.job}, {session.outcome}, {at}, {length:.1f} h')}</title>" if detailed else ""
        box = f'y="{y:g}" height="{height:g}" rx="2"'
        if session.phase == "running":
            bar += f'<rect class="rest" x="{frame.x(left)}" width="{frame.length(wide)}" {box}/>'
            bar += f'<rect class="{style}" x="{frame.x(left)}" width="{frame.length((done - start) / span)}" {box}/>'
            # A label across both colours is hard to read, so it stands on the finished part, or else on the rest.
            label = _label(frame, left, y + height / 2 + 4, lane.job, (done - start) / span, "on")
            if not label:
                rest = done - timeline.start
                label = _label(frame, rest / span, y + height / 2 + 4, lane.job, (ends - done) / span, "on-planned")
        else:
            bar += f'<rect class="{style}" x="{frame.x(left)}" width="{frame.length(wide)}" {box}/>'
            ink = "on" if session.phase in {"past", "bad"} else "on-planned"
            label = _label(frame, left, y + height / 2 + 4, lane.job + (" ✕" if style == "bad" else ""), wide, ink)
        if detailed and (hue := timeline.hues.get(lane.job)) is not None:
            bar += f'<rect class="h{hue}" x="{frame.x(left)}" width="{_STRIPE}" {box}/>'
        bar += label
        # tabindex -1: the table beside the picture has the same links, so the Tab key need not stop at each bar.
        yield (
            f'<a href={attribute(link + session.key)} tabindex="-1">{bar}</a>'
            if link and session.key and detailed
            else f"<g>{bar}</g>"
        )


def _label(frame: Frame, left: float, y: float, text: str, wide: float, style: str) -> str:
    """Return a label shortened to the width of its bar; empty if fewer than three characters fit."""
    characters = int((wide * (frame.width or _WIDE) - _STRIPE - 4) / _LETTER)
    if characters < min(_LETTERS_MIN, len(text)):
        return ""
    text = text if len(text) <= characters else text[: characters - 1] + "…"
    needed = len(text) * _LETTER + _STRIPE + 4
    roomy = " roomy" if frame.width is None and needed > wide * _NARROW else ""
    return (
        f'<svg x="{frame.x(left)}" y="0" width="{frame.length(wide)}" height="100%">'
        f'<text class="bar-label {style}{roomy}" x="{_STRIPE + 2}" y="{y:g}">{words(text)}</text></svg>'
    )
