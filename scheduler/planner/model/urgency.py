"""Urgency: the factor by which an hour of a job counts more because the job is close to its end.

Urgency is Smith's index: priority over hours left. So work that is nearly done is finished before more is started, and
a small remainder is still worth a session. A job that gates others also counts with the best chain behind the gate.
Urgencies are scaled so that all the remaining work is worth the same as by priorities alone.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import ceil

from scheduler.core.snapshot import JobView, Snapshot
from scheduler.planner.model.value import reference_rate


def with_urgency(snapshot: Snapshot) -> Snapshot:
    """Return ``snapshot`` with the urgency of every job."""
    urgency_of = urgencies(snapshot)
    return replace(snapshot, jobs=tuple(replace(job, urgency=urgency_of[job.name]) for job in snapshot.jobs))


def urgencies(snapshot: Snapshot) -> dict[str, float]:
    """Return the urgency by job name; the weighted mean is 1.0."""
    open_jobs = {job.name: job for job in snapshot.jobs if job.remaining_steps > 0 and job.weight > 0}
    waiting: dict[str, list[JobView]] = {}
    for job in open_jobs.values():
        parent = open_jobs.get(job.gate.parent) if job.gate is not None else None
        if parent is not None and _steps_to_gate(parent, job) > 0:
            waiting.setdefault(parent.name, []).append(job)
    chains: dict[str, tuple[float, float]] = {}
    children = {parent: [child.name for child in jobs] for parent, jobs in waiting.items()}
    for name in children_first(open_jobs, children):
        chains[name] = _chain(open_jobs[name], waiting, chains)
    weights = sum(job.weight for job in open_jobs.values())
    mean_hours = sum(job.weight * _hours(job, job.remaining_steps) for job in open_jobs.values()) / max(weights, 1e-9)
    return {
        job.name: chains[job.name][0] / chains[job.name][1] * mean_hours / job.weight if job.name in chains else 1.0
        for job in snapshot.jobs
    }


def _chain(
    job: JobView, waiting: dict[str, list[JobView]], chains: dict[str, tuple[float, float]]
) -> tuple[float, float]:
    """Return (priority, hours) of the job alone, or of its steps to a gate and the jobs behind it if denser.

    ``chains`` holds the results of its children; a child in a cycle counts alone.
    """
    best = (job.weight, _hours(job, job.remaining_steps))
    children = [
        (
            chains.get(child.name, (child.weight, _hours(child, child.remaining_steps))),
            _steps_to_gate(job, child),
            child.name,
        )
        for child in waiting.get(job.name, ())
    ]
    weight, hours, to_gate = 0.0, 0.0, 0
    for (priority, length), steps, _ in sorted(children, key=lambda child: (-child[0][0] / child[0][1], child[2])):
        weight, hours, to_gate = weight + priority, hours + length, max(to_gate, steps)
        whole = hours + _hours(job, to_gate)
        if weight / whole > best[0] / best[1]:
            best = (weight, whole)
    return best


def children_first(names: Iterable[str], children: Mapping[str, Sequence[str]]) -> list[str]:
    """Return all names, each after its children (depth first, without recursion); cycles are cut."""
    ordered: dict[str, None] = {}
    visited: set[str] = set()
    for root in names:
        stack = [root]
        while stack:
            name = stack[-1]
            if name not in visited:
                visited.add(name)
                stack += [child for child in reversed(children.get(name, ())) if child not in visited]
                continue
            stack.pop()
            ordered.setdefault(name)
    return list(ordered)


def _hours(job: JobView, steps: int) -> float:
    """Return the hours of ``steps`` on the reference device."""
    return max(1, steps) / reference_rate(job) / 3_600


def _steps_to_gate(parent: JobView, child: JobView) -> int:
    if child.gate is None:
        return 0
    return ceil(child.gate.fraction * parent.target_step) - parent.done_step
