"""The facts of a week: what the database knows of it, before any figure is computed. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from jobs.payload.store.manifest import Manifest
from scheduler.core.ledger import LedgerEntry
from scheduler.core.pool import Pool
from scheduler.core.quota import ObservedLimit
from scheduler.core.run import Run
from scheduler.report.useful import surviving


@dataclass(frozen=True, slots=True)
class JobFacts:
    """One job at the end of the week; ``why`` it is held or failed; ``starts_from`` is another's manifest key."""

    name: str
    role: str
    target_step: int
    step: int
    state: str
    why: str = ""
    starts_from: str | None = None


@dataclass(frozen=True)  # without slots: each pool asks for what is cached
class WeekFacts:
    """What happened in [start, end). ``runs`` are all that touched it; ``manifests`` are good checkpoints.

    ``closed`` tells by pool why it is closed, ``last_signs`` by launch key when a session last gave a sign of life,
    ``firsts`` by job which attempts began at step 0 again.
    """

    start: int
    end: int
    scale: float
    pools: Mapping[str, Pool]
    observed: Mapping[str, Sequence[ObservedLimit]]
    entries: Sequence[LedgerEntry]
    runs: Sequence[Run]
    manifests: Sequence[Manifest]
    jobs: Sequence[JobFacts]
    last_signs: Mapping[str, int] = field(default_factory=dict)
    firsts: Mapping[str, Sequence[int]] = field(default_factory=dict)
    closed: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def published(self) -> Mapping[str, Sequence[Manifest]]:
        """The checkpoints up to the end of the week, by run."""
        result: dict[str, list[Manifest]] = defaultdict(list)
        for manifest in self.manifests:
            if manifest.created_at <= self.end:
                result[manifest.run].append(manifest)
        return result

    @cached_property
    def survivors(self) -> set[str]:
        """The keys of the checkpoints that the newest of each job grew out of, itself included."""
        return {manifest.key for manifest in surviving(self.manifests)}
