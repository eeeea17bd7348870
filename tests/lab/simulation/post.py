"""The post: messages as they truly arrive, and the channels that carry them, each call of which is a fault point."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime, timedelta
from random import Random
from typing import TYPE_CHECKING, Any
from unittest.mock import patch
from zoneinfo import ZoneInfo

from jobs.nouns.window import DAY, HOUR, Calendar, DailyHours
from scheduler.notify.deliver import DeliveryFailed
from scheduler.notify.mail import WEEKLY, Mailing, mail
from scheduler.store import due
from tests.lab.simulation.bills import calendar_windows
from tests.lab.simulation.faults import Violation

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scheduler.service.outside.ports import Ports
    from scheduler.store.engine import Database
    from tests.lab.simulation.faults import Faults
    from tests.lab.simulation.world import World

_SHARE = 0.3  # of all seeds have mail at all: a week's report takes as long as a week's cycles
_CHANNELS = ("email", "slack")
_UNRECORDED = -1


class Post:
    """What arrived: the same message twice only where a fault hid that it had arrived, and then word for word."""

    def __init__(self, world: World, faults: Faults, zone: str, people: Database) -> None:
        rng = Random(world.scenario.seed ^ 0x9057)
        self._world = world
        self._faults = faults
        self._rng = rng
        self.used = rng.random() < _SHARE
        self._refuses = rng.choice((0.0, 0.2, 0.6))
        self.mailing = Mailing(
            {name: SimulatedChannel(name, self, faults) for name in _CHANNELS[: rng.choice((1, 2))]},
            zone,
            Calendar("week", zone, offset_seconds=rng.choice((0, 8 * HOUR))),
            rng.choice((HOUR, 6 * HOUR)),
            DailyHours(zone, 20 * HOUR, 8 * HOUR) if rng.random() < 0.5 else None,
        )
        self.arrived: dict[tuple[str, str], tuple[int, str]] = {}
        self._people = people
        self._since: int | None = None  # when the look began that first wrote down that reports are due
        self._looked = 0  # when the last look began

    def look_after(self, ports: Ports, now: int) -> None:
        """Do what the daemon does for its messages, on a machine that has no font to draw pictures with."""
        began = self._looked = self._world.now
        try:
            with patch("scheduler.notify.mail.find_font", lambda: None):
                mail(ports, self.mailing, now)
        finally:
            if self._since is None and self._is_promised():
                self._since = began

    def _is_promised(self) -> bool:
        """Whether it is written down that reports are due.

        A look that failed left nothing behind, and who comes after days of down time cannot know of it (seed 2000486).
        The daemon looks every minute: a week is lost like this only where nothing can be written in the whole of it.
        """
        with self._people.read() as tx:
            return WEEKLY in due.next_due(tx)

    def refuse_at_random(self) -> None:
        """Raise DeliveryFailed when the service is in the mood."""
        if not self._world.calm and self._rng.random() < self._refuses:
            self._world.sometimes("message refused")
            raise DeliveryFailed("the service is busy", self._rng.choice((0, 60, 7_200)))

    def take(self, channel: str, key: str, body: Mapping[str, Any], *, overtaken: bool) -> None:
        """Deliver a message. Raises Violation when it arrives again and nothing explains it.

        ``overtaken`` says that the sender stood still between its last look and the sending, while another daemon took
        over and may have sent it: no look can be so late that nothing comes between.
        """
        said = hashlib.sha256(json.dumps(body, sort_keys=True, default=repr).encode()).hexdigest()
        before = self.arrived.get((channel, key))
        if before is not None and before[0] == self._faults.struck and not overtaken:
            raise Violation("every report is sent once", f"{key} arrives twice by {channel}, and nothing had failed")
        if before is not None and before[1] != said:
            raise Violation("every report is sent once", f"{key} arrives again by {channel} in other words")
        self._world.sometimes("message arrived" if before is None else "message arrived again")
        # Whoever stood still has lost the lease, and cannot write down that it was sent: the other will send it again.
        self.arrived[channel, key] = (_UNRECORDED if overtaken else self._faults.struck, said)

    def check_complete(self) -> None:
        """Raise Violation unless the report of every week that ended since the first look arrived by every channel."""
        if self._since is None:
            if self.used:
                raise Violation("every report is sent once", "no look ever wrote down that reports are due")
            return
        weekly = self.mailing.weekly
        # The days on either side allow for clocks that were wrong and for messages that were refused. Looks may lie two
        # days apart here, and what fell due after the last one is nobody's fault (seed 8011613).
        until = min(self._world.now - 2 * DAY, self._looked - HOUR)
        for opens, _ in calendar_windows(weekly, self._since, self._world.now):
            if self._since + DAY < opens < until:
                over = datetime.fromtimestamp(opens, UTC).astimezone(ZoneInfo(weekly.zone)).date() - timedelta(days=7)
                year, week, _ = over.isocalendar()
                for channel in self.mailing.channels:
                    if (channel, f"{WEEKLY}-{year}-W{week:02d}") not in self.arrived:
                        raise Violation("every report is sent once", f"{year}-W{week:02d} never arrived by {channel}")


class SimulatedChannel:
    """A Channel each delivery of which is a fault point."""

    def __init__(self, name: str, post: Post, faults: Faults) -> None:
        self._name = name
        self._post = post
        self._faults = faults

    def send(self, key: str, body: Mapping[str, Any]) -> None:
        """Deliver; see Channel.send."""
        looked = self._faults.stood_still  # after the last look whether the message still waits (seed 3000976)

        def effect() -> None:
            self._post.refuse_at_random()
            self._post.take(self._name, key, body, overtaken=looked or self._faults.stood_still)

        self._faults.call(f"mail {self._name} {key}", effect, DeliveryFailed)
