"""Advice for people: the result, the options as a table, every part with its formula, machines side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jobs.advice.card import GIB, Card
from jobs.advice.choice import Advice, Choice, Wishes
from jobs.advice.memory import cadence
from jobs.advice.recipe import flags
from jobs.advice.seen import Measurement
from jobs.advice.shape import Shape
from jobs.duration import parse_duration, show_duration
from jobs.plural import counted
from jobs.problem import Refusal
from scheduler.cli.shell.exits import UsageFault
from scheduler.cli.shell.output import Output
from scheduler.views.documents import picked

_TABLE = ("option", "result", ">GiB", ">batch", ">tokens/s", ">hours", ">p90", ">kWh", ">money")
_DISK_BYTES_A_SECOND = 1e9  # at which a checkpoint is written


def show_advice(out: Output, advice: Advice, deadline: str, *, explain: bool) -> None:
    """Write the choice and the options. Raises UsageFault for a deadline that is no time."""
    try:
        within = parse_duration(deadline) if deadline else 0
    except ValueError as error:
        raise UsageFault(f"--deadline {deadline}", str(error), "Write it like 12h") from None
    if out.as_json:
        document = advice_json(advice)
        if within and advice.best:
            document["in_time"] = _in_time(advice.best, within)
        out.data(document)
        return
    machine = f"{advice.devices} x {advice.card.name} ({advice.card.usable_gib:g} GiB each)"
    one = advice.best
    if one is None:
        out.line(f"{advice.shape.name} does not fit {machine}.")
        for rung in advice.rungs:
            out.line(f"  {rung.rung}: {rung.why}")
        out.line(f"Nearest that fits: {advice.nearest}" if advice.nearest else "Nothing near it fits.")
        return
    out.line(f"{advice.shape.name} ({advice.shape.parameters / 1e9:.2f} B) on {machine}: {one.setup.text}")
    out.facts(_facts(advice, one, within))
    out.line()
    out.table(_TABLE, [_row(rung, advice.wishes) for rung in advice.rungs])
    for warning in advice.card.warnings:
        out.warn(f"{advice.card.name}: {warning}")
    if explain:
        _explain(out, advice, one)


def _facts(advice: Advice, one: Choice, within: int) -> list[tuple[str, str]]:
    setup, pace, tokens = one.setup, one.pace, advice.wishes.tokens
    document = choice_json(one, has_time=bool(tokens))
    basis = f"{pace.samples:,} measured steps" if pace.samples else "a prior; schedctl advise --calibrate measures"
    late = f"{one.hours_p90:.1f} h in 90 % of cases (P90)"
    return [
        ("memory", f"{one.verdict}: {one.why}, {100 * one.margin:.0f} % left"),
        (
            "step",
            (
                f"{counted(setup.batch, 'row')} x {setup.accumulate} x {setup.devices} = {counted(setup.rows, 'row')} "
                f"of {counted(setup.seq, 'token')}"
            ),
        ),
        ("speed", f"{pace.tokens_per_second:,.0f} tokens a second, limited by {pace.limit} ({basis})"),
        ("time", f"{one.hours:.1f} h for {tokens / 1e6:,.1f} M tokens, {late}" if tokens else ""),
        ("quota", f"{one.hours:.1f} session hours" if tokens else ""),
        ("money", f"${one.usd:.2f}, {one.kwh:.1f} kWh" if tokens else ""),
        ("in time", _in_time(one, within) if within and tokens else ""),
        ("machine", f"{one.storage.ram / GIB:.0f} GiB of RAM, {one.storage.disk / 1e9:.0f} GB of disk"),
        (
            "checkpoint",
            f"{one.storage.checkpoint / 1e9:.2f} GB, every {show_duration(document['checkpoint_every_seconds'])}",
        ),
        ("numbers", f"{setup.precision}, {advice.card.attention} attention; {advice.card.wheel}"),
        ("flags", flags(setup)),
    ]


def _in_time(one: Choice, within: int) -> str:
    if one.hours_p90 * 3_600 <= within:
        return "yes, in nine of ten cases"
    return "in half of all cases" if one.hours * 3_600 <= within else "no"


def _row(one: Choice, wishes: Wishes) -> list[str]:
    has_time = wishes.tokens > 0 and one.verdict != "does not fit"
    setup = one.setup
    return [
        one.rung + (", checkpointing" if setup.checkpointing else ""),
        "not enough RAM" if one.verdict == "does not fit" and one.memory.gib <= one.card.usable_gib else one.verdict,
        f"{one.memory.gib:.1f}",
        f"{setup.batch} x {setup.accumulate}",
        f"{one.pace.tokens_per_second:,.0f}" if one.verdict != "does not fit" else "",
        f"{one.hours:.1f}" if has_time else "",
        f"{one.hours_p90:.1f}" if has_time else "",
        f"{one.kwh:.1f}" if has_time else "",
        f"${one.usd:.2f}" if has_time else "",
    ]


def _explain(out: Output, advice: Advice, one: Choice) -> None:
    pace, card = one.pace, advice.card
    out.line()
    out.line(f"Memory of a device at its worst instant, the {one.memory.instant}:")
    rows = [(part.name, f"{part.bytes / GIB:.2f}", part.formula) for part in one.memory.parts if part.bytes]
    out.table(("part", ">GiB", "formula"), [*rows, ("all", f"{one.memory.gib:.2f}", "")])
    out.line()
    micro = max(pace.floor, pace.fixed + pace.per_token * one.setup.tokens)
    out.line(
        f"Time of a micro-batch: max({pace.floor:.3f}, {pace.fixed:.3f} + {pace.per_token * 1e6:.1f}e-6 x "
        f"{one.setup.tokens:,}) = {micro:.3f} s; of a step {pace.step:.2f} s: "
        + ", ".join(f"{name} {100 * share:.0f} %" for name, share in pace.limits.items())
    )
    out.line(f"{card.name}: {card.tflops:g} TFLOP/s x {card.sustained:g}, {card.gb_s:g} GB/s. Source: {card.source}")
    out.line(f"{advice.shape.name}: {advice.shape.parameters:,} parameters. Source: {advice.shape.source}")
    out.line("Formulas: docs/advice.md")


def show_comparison(
    out: Output,
    shape: Shape,
    machines: Sequence[tuple[Card, int, float | None]],
    wishes: Wishes,
    measurements: Sequence[Measurement],
    path: Path | None,
) -> None:
    """Write the best choice of each machine, and the picture where ``path`` says."""
    from jobs.advice.choice import compare, picture

    compared = compare(shape, machines, wishes, measurements)
    if path is not None:
        path.write_text(picture(compared), encoding="utf-8")
    if out.as_json:
        out.data({"machines": [advice_json(advice) for advice in compared]})
        return
    rows = []
    for advice in compared:
        nearest = f"nearest: {advice.nearest}" if advice.nearest else "nothing"
        none = [nearest, "does not fit", *[""] * (len(_TABLE) - 2)]
        cells = _row(advice.best, wishes) if advice.best else none
        rows.append([f"{advice.card.name} x{advice.devices}", *cells])
    out.table(("machine", *_TABLE), rows)
    if path is not None:
        out.say(f"{path} shows time against money.")


def write_files(out: Output, advice: Advice, model: str, folder: Path) -> None:
    """Write what runs the choice. Raises Refusal where nothing fits, or a file is there already."""
    from jobs.advice.recipe import files

    if advice.best is None:
        raise Refusal(f"{model} cannot be written", "nothing fits this machine", advice.nearest or "Choose another")
    one = advice.best
    steps = max(1, round((advice.wishes.tokens or 1e6) / (one.setup.rows * one.setup.seq)))
    source = f"hf:{advice.shape.hub}" if advice.shape.hub else str(Path(model).expanduser().resolve())
    name = advice.shape.name.rpartition("/")[2].lower().replace("_", "-")[:40]
    written = files(one, name, source, steps)
    there = [name for name in written if (folder / name).exists()]
    if there:
        raise Refusal(f"{folder / there[0]} is there already", "nothing is overwritten", "Name another folder")
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in written.items():
        (folder / name).write_text(text, encoding="utf-8")
    out.say(f"{folder} has {', '.join(sorted(written))}.")


# What JSON shows, and what pages and tables are made of.
def advice_json(advice: Advice) -> dict[str, Any]:
    """Return all rungs, the one taken and what would fit if none does. Memory in GiB, times in hours."""
    has_time = advice.wishes.tokens > 0
    return {
        "model": advice.shape.name,
        "parameters": advice.shape.parameters,
        "card": advice.card.name,
        "devices": advice.devices,
        **picked(advice.card, "usable_gib", "precision", "attention", "wheel"),
        "warnings": list(advice.card.warnings),
        "tokens": advice.wishes.tokens,
        "taken": choice_json(advice.best, has_time=has_time) if advice.best else None,
        "nearest": advice.nearest,
        "rungs": [choice_json(one, has_time=has_time) for one in advice.rungs],
    }


def choice_json(one: Choice, *, has_time: bool) -> dict[str, Any]:
    """Return one rung; hours and money are null unless it was ``has_time`` how much is to be trained."""
    setup, pace = one.setup, one.pace
    return {
        **picked(one, "rung", "verdict", "why"),
        "told": setup.text,
        **picked(setup, "method", "batch", "accumulate", "rows", "seq", "checkpointing", "parallel", "offload"),
        "gib": round(one.memory.gib, 2),
        "allocated_gib": round(one.memory.allocated / GIB, 2),
        "margin": round(one.margin, 3),
        "instant": one.memory.instant,
        "parts": {part.name: {"gib": round(part.bytes / GIB, 3), "formula": part.formula} for part in one.memory.parts},
        "ram_gib": round(one.storage.ram / GIB, 1),
        "checkpoint_gb": round(one.storage.checkpoint / 1e9, 2),
        "disk_gb": round(one.storage.disk / 1e9, 1),
        "checkpoint_every_seconds": cadence(max(1.0, one.storage.checkpoint / _DISK_BYTES_A_SECOND)),
        "tokens_per_second": round(pace.tokens_per_second),
        "step_seconds": round(pace.step, 3),
        "sigma": round(pace.sigma, 3),
        "seen_steps": pace.samples,
        "limits": {name: round(share, 3) for name, share in pace.limits.items()},
        "hours": round(one.hours, 3) if has_time else None,
        "hours_p90": round(one.hours_p90, 3) if has_time else None,
        "kwh": round(one.kwh, 2) if has_time else None,
        "usd": round(one.usd, 2) if has_time else None,
        "flags": flags(setup),
    }
