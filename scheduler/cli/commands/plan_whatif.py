"""`schedctl plan what-if`: edits from the command line, and what they would change. Nothing is stored."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from math import isfinite
from pathlib import Path

from jobs.catalogue import job_from_toml
from jobs.payload.bounds import digits
from jobs.ranges import RANGES
from scheduler.cli.parts.device_table import show_devices
from scheduler.cli.parts.plan_changes import difference_json, show_changes
from scheduler.cli.shell.context import Cli
from scheduler.cli.shell.exits import NotFound, UsageFault
from scheduler.cli.shell.names import listed, meant
from scheduler.planner import Edit, SetDevices, SetHours, SetWeight, TakeDown, UnknownName
from scheduler.planner.questions.orders import POLICIES
from scheduler.service.requests.questions import ask_devices, ask_what_if
from scheduler.views.documents import plan_json

_HOURS_MAX = 100_000
_DEVICES_MAX = 1_024
_LISTINGS = {"job": "schedctl queue list", "pool": "schedctl pools", "policy": "schedctl plan what-if --help"}


def show_what_if(
    cli: Cli,
    files: Sequence[Path],
    pools: Sequence[str],
    weights: Sequence[str],
    devices: Sequence[str],
    policy: str | None,
) -> None:
    """Write what the edits would change. Raises CatalogueError, DuplicateJob, NotFound, UsageFault, WhatIfRefused."""
    if not (files or pools or weights or devices or policy):
        why, remedy = "no edit was given", "Give --add-job, --pool, --priority, --devices or --policy"
        raise UsageFault("nothing to try", why, remedy)
    if policy is not None and policy not in POLICIES:
        way_out = _meant("policy", policy, POLICIES)
        raise UsageFault("unknown policy", f"{policy} is none of {listed(POLICIES)}", way_out)
    specs = [job_from_toml(path) for path in files]
    counts = [_devices_edit(words) for words in devices]
    edits = [*map(_pool_edit, pools), *map(_weight_edit, weights), *counts]
    try:
        choices = {edit.job: ask_devices(cli.planning_context, edit.job) for edit in counts}
        plan, difference = ask_what_if(cli.planning_context, specs, edits, policy)
    except UnknownName as error:
        why = f"{error.name} is not {'an open job' if error.kind == 'job' else 'among the settings'}"
        raise NotFound(f"unknown {error.kind}", why, _meant(error.kind, error.name, error.known)) from None
    told = {job: [asdict(one) for one in found] for job, found in choices.items()}
    more = {"devices": told} if told else {}
    cli.out.data({"plan": plan_json(plan), **difference_json(difference), **more})
    cli.out.line(
        f"Worth {difference.value_before:.2f} as it is, {difference.value_after:.2f} with that; nothing is stored."
    )
    for warning in plan.warnings:
        cli.out.warn(warning, in_data=True)
    if difference.nothing:
        cli.out.line("The plan would be the same.")
    show_changes(cli.out, difference)
    for job, found in choices.items():
        show_devices(cli.out, job, found)


def _meant(kind: str, name: str, known: Iterable[str]) -> str:
    return meant(name, known, _LISTINGS[kind])


def _pool_edit(words: str) -> Edit:
    name, value = _parts("--pool", words, "NAME=HOURS or NAME=down")
    if value == "down":
        return TakeDown(name)
    amount = _number("--pool", words, value)
    if not 0 <= amount <= _HOURS_MAX:
        why = f"hours of a window are from 0 to {_HOURS_MAX:,}"
        raise UsageFault(f"--pool {words} cannot be used", why, "Write it like kaggle=20")
    return SetHours(name, amount)


def _weight_edit(words: str) -> Edit:
    name, value = _parts("--priority", words, "JOB=NUMBER")
    amount = _number("--priority", words, value)
    if not RANGES["weight"].holds(amount):
        why = f"{amount:g} is not in the range {RANGES['weight']}"
        raise UsageFault(f"--priority {words} cannot be used", why, "Write it like ufm=2")
    return SetWeight(name, amount)


def _devices_edit(words: str) -> SetDevices:
    name, value = _parts("--devices", words, "JOB=COUNT")
    if not (count := digits(value, _DEVICES_MAX)):
        why = f"a count of devices is a whole number from 1 to {_DEVICES_MAX:,}"
        raise UsageFault(f"--devices {words} cannot be used", why, "Write it like ufm=2")
    return SetDevices(name, count)


def _parts(option: str, words: str, form: str) -> tuple[str, str]:
    name, equals, value = words.rpartition("=")
    if not (name and equals and value):
        raise UsageFault(f"{option} {words} cannot be read", "it has two parts", f"Write it as {form}")
    return name, value


def _number(option: str, words: str, value: str) -> float:
    try:
        amount = float(value)
    except ValueError:
        amount = float("nan")
    if not isfinite(amount):
        remedy = "Write it like kaggle=20 or kaggle=down" if option == "--pool" else "Write it like ufm=2"
        raise UsageFault(f"{option} {words} cannot be read", f"{value} is no number", remedy)
    return amount
