"""How sessions are told to leave: by a flag in the store, by their platform, by force; again until they have left."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from platforms.base import Unreachable
from scheduler.core.reconcile import AskStop, ForceStop, Sighting
from scheduler.core.run import Lane, Run, Running, Stopping
from scheduler.service.cycle.stops import Stops
from scheduler.service.launch.launch_document import stop_flag_key
from tests.lab.clocks import HandClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from scheduler.core.run import RunState
    from scheduler.service.outside.ports import Ports
    from tests.integration.conftest import Journal

NOW = 1_795_000_000
STOPPING = Stopping("r", NOW - 60, "held by mia", NOW - 10)


@dataclass
class Place:
    """A platform that notes whom it was told to stop, and whether by force; it does not answer about ``gone``."""

    stopped: list[tuple[str, bool]] = field(default_factory=list)
    gone: str = ""

    def stop(self, key: str, now: int, *, force: bool) -> None:
        """Note it."""
        assert now >= NOW
        if key == self.gone:
            raise Unreachable("desk", "stop", "no route", "wait")
        self.stopped.append((key, force))


def run(key: str, state: RunState) -> Run:
    return Run(key, "desk", (Lane(0, "ufm", 1, (0,), None),), NOW, NOW + 3_600, NOW + 3_600, state)


@pytest.fixture
def place() -> Place:
    return Place()


@pytest.fixture
def ports(make_ports: Callable[..., Ports], place: Place) -> Ports:
    return make_ports(platforms={"desk": place})


def send_twice(ports: Ports, live: list[Run], steps: list[Any], **sightings: Sighting) -> None:
    """Send, and again when the grace has passed."""
    seen: Any = SimpleNamespace(sightings=sightings)
    stops, clock = Stops(ports), ports.clock
    assert isinstance(clock, HandClock)
    stops.send(live, seen, steps, NOW)
    clock.present += ports.policy.grace_seconds
    stops.send(live, seen, steps, NOW)


def send(ports: Ports, live: list[Run], steps: list[Any], **sightings: Sighting) -> None:
    seen: Any = SimpleNamespace(sightings=sightings)
    Stops(ports).send(live, seen, steps, NOW)


def flag(ports: Ports, key: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(ports.artifacts.read(stop_flag_key(key)))
    return found


def test_who_overstays_is_ended_by_force_and_one_that_cannot_be_reached_stops_nobody_else(
    ports: Ports, place: Place, journal: Journal
) -> None:
    place.gone = "one"
    overdue = [replace(run(key, Running("r", NOW)), deadline=NOW - 1) for key in ("one", "two")]
    send_twice(ports, overdue, [ForceStop(one, "why") for one in overdue])
    assert place.stopped == [("two", True)]
    (line,) = [line for line in journal.lines if "stop.failed" in line]
    assert "no route" in line


@pytest.mark.parametrize(
    ("sighting", "told"),
    [
        (Sighting("running", "r", stop_channel="platform"), True),
        (Sighting("queued", "r", stop_channel="platform"), True),
        (Sighting("ended", "r", stop_channel="platform"), False),
        (Sighting("running", "r", stop_channel="store"), False),
        (Sighting("running", "r", stop_channel="none"), False),
        (None, False),
    ],
)
def test_a_platform_is_told_of_who_hears_through_it_until_they_have_ended(
    ports: Ports, place: Place, sighting: Sighting | None, told: bool
) -> None:
    """As often as it is looked; whoever is just running is not."""
    seen = {} if sighting is None else {"one": sighting, "other": sighting}
    for _ in range(2):
        send(ports, [run("one", STOPPING), run("other", Running("r", NOW))], [], **seen)
    assert place.stopped == ([("one", False)] * 2 if told else [])


def test_force_comes_before_asking(ports: Ports, place: Place) -> None:
    stopping = run("one", STOPPING)
    heard = Sighting("running", "r", stop_channel="platform")
    send_twice(ports, [stopping], [ForceStop(stopping, "it did not follow")], one=heard)
    assert place.stopped == [("one", False), ("one", True)]


def test_a_clock_that_is_set_forward_ends_no_session_that_has_time_left(ports: Ports, place: Place) -> None:
    """Nor does a host that slept: an hour is an hour of real time, and then there is a grace to save."""
    session, clock, seen = run("one", Running("r", NOW)), ports.clock, Sighting("running", "r")
    assert isinstance(clock, HandClock)
    stops, facts = Stops(ports), SimpleNamespace(sightings={"one": seen})

    def overdue(after: int) -> None:
        clock.present += after
        late = clock.present + 3 * 3_600  # what a clock shows that was set forward
        stops.send([session], facts, [ForceStop(session, "past its deadline")], late)  # type: ignore[arg-type] # enough

    stops.send([session], facts, [], NOW)  # type: ignore[arg-type] # enough
    overdue(10)
    assert place.stopped == []
    assert flag(ports, "one")["reason"] == "past its deadline", "it is asked to save meanwhile"
    overdue(3_589)
    assert place.stopped == []
    overdue(1 + ports.policy.grace_seconds)
    assert place.stopped == [("one", True)]


def test_the_flag_of_who_is_stopping_is_put_where_it_is_missing_and_left_alone_where_it_is(ports: Ports) -> None:
    send(ports, [run("one", STOPPING)], [])
    assert flag(ports, "one") == {"reason": "held by mia", "lane": None}
    ports.artifacts.put(stop_flag_key("one"), b'{"reason": "an earlier one", "lane": null}')
    send(ports, [run("one", STOPPING)], [])
    assert flag(ports, "one")["reason"] == "an earlier one"
    send(ports, [run("one", STOPPING)], [AskStop(run("one", STOPPING), 0, "another lane")])
    assert flag(ports, "one") == {"reason": "another lane", "lane": 0}


def test_a_session_that_was_not_asked_to_leave_finds_no_flag(ports: Ports) -> None:
    send(ports, [run("one", Running("r", NOW))], [])
    assert ports.artifacts.size(stop_flag_key("one")) is None
