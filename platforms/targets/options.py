"""A target's options as people write them, each known, each held against its form."""

from __future__ import annotations

from collections.abc import Mapping

from jobs.duration import parse_duration
from platforms.targets.base import BadTargetOption
from platforms.targets.folder import Commands

COMMANDS = frozenset({"restart", "health", "return_health", "restart_time", "health_time", "copy_time"})
_COMMAND_MAX_CHARACTERS = 2_000


class Options:
    """The options of the target ``name``. Raises BadTargetOption for one that is not known, or is missing."""

    def __init__(self, name: str, given: Mapping[str, str], known: frozenset[str], required: tuple[str, ...]) -> None:
        self._name = name
        self.given = dict(given)
        if unknown := sorted(set(given) - known):
            raise self.wrong(f"there is no option {unknown[0]}", f"Known: {', '.join(sorted(known))}")
        if missing := [one for one in required if not given.get(one)]:
            raise self.wrong(f"option {missing[0]} is missing", "See docs/deployment.md")

    def __getitem__(self, option: str) -> str:
        return self.given.get(option, "")

    def seconds(self, option: str, default: str, most: int = 86_400) -> int:
        """Return a length of time, written like ``90s``. Raises BadTargetOption."""
        try:
            found = parse_duration(self.given.get(option, default))
        except ValueError as error:
            raise self.wrong(f"{option}: {error}", "Write it like 90s or 10m") from None
        if not 1 <= found <= most:
            raise self.wrong(f"{option} = {found} s", f"Write at least 1s and at most {most}s")
        return found

    def commands(self) -> Commands:
        """Return what is run where the model is served. Raises BadTargetOption."""
        for option in ("restart", "health", "return_health"):
            if len(self[option]) > _COMMAND_MAX_CHARACTERS or "\0" in self[option]:
                raise self.wrong(f"{option} is no command", "Put long ones into a script there, and name it")
        return Commands(
            self["restart"],
            self["health"],
            self["return_health"],
            self.seconds("restart_time", "1m", 3_600),
            self.seconds("health_time", "2m", 3_600),
        )

    def wrong(self, why: str, remedy: str) -> BadTargetOption:
        """Return the error that an option is wrong."""
        return BadTargetOption(self._name, "use its options", why, remedy)
