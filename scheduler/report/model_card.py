"""The model card of a version, in the form that the Hugging Face Hub reads, filled from facts alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

_DIGEST_SHOWN = 16


def model_card(facts: Mapping[str, Any], base: str, *, adapter: bool = False) -> str:
    """Return the card of a version as Markdown. ``facts`` are those of ``schedctl models show --json``.

    ``base`` is a repository of the Hub that it was trained from, if it is known; a path of a machine is never shown.
    An ``adapter`` is of no use without it.
    """
    head: dict[str, Any] = {"tags": ["uff-scheduler"], "uff_version": facts["name"], "uff_step": facts["step"]}
    if base:
        head |= {"base_model": base, "base_model_relation": "adapter" if adapter else "finetune"}
    if facts["parent"]:
        head["uff_parent"] = facts["parent"]
    if results := _results(facts):
        head["model-index"] = [{"name": facts["name"], "results": results}]
    # What is JSON is YAML as well.
    front = "".join(f"{key}: {json.dumps(value)}\n" for key, value in head.items())
    return f"---\n{front}---\n\n# {facts['name']}\n\n{_body(facts)}"


def _body(facts: Mapping[str, Any]) -> str:
    rows = [
        ("state", facts["state"] + (", promoted" if facts["in_force"] else "")),
        ("step", f"{facts['step']:,}"),
        ("began with", facts["parent"] or "nothing"),
        ("content", _digest(facts["digest"])),
        ("code", _digest(facts["code"])),
        ("packages", _digest(facts["environment"])),
        ("corpus", facts["corpus"] or "none"),
        ("mixture", facts["mixture"] or "the whole corpus" if facts["corpus"] else "none"),
        ("training", _cost(facts["training"])),
        ("evaluation", _cost(facts["evaluating"])),
    ]
    lines = ["| what | |", "| --- | --- |", *(f"| {name} | {value} |" for name, value in rows), ""]
    for verdict in facts["verdicts"]:
        lines += [f"## Judged {verdict['verdict']}", "", f"{verdict['evidence'].get('reason', '')}", ""]
        lines += ["| gate | outcome | value | items | clusters | interval | smallest effect |", "|" + " --- |" * 7]
        lines += [_gate_row(finding) for finding in verdict["evidence"].get("findings", ())]
        lines.append("")
    for overrule in facts["overrules"]:
        lines += [
            f"Overruled by {overrule['by']}: {overrule['was']} became {overrule['verdict']}, because {overrule['why']}",
            "",
        ]
    return "\n".join(lines)


def _gate_row(finding: Mapping[str, Any]) -> str:
    gate = finding["gate"]
    interval = f"{_number(finding['low'])} to {_number(finding['high'])}" if finding["low"] is not None else "unknown"
    cells = (
        f"{gate['kind']} on {gate['metric']}",
        finding["outcome"],
        _number(finding["value"]),
        str(finding["items"]),
        str(finding["clusters"]),
        interval,
        _number(finding["smallest_effect"]),
    )
    return f"| {' | '.join(cells)} |"


def _results(facts: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the newest verdict's figures as the Hub lists results."""
    newest = facts["verdicts"][-1] if facts["verdicts"] else None
    if newest is None:
        return []
    metrics = [
        {"type": finding["gate"]["metric"], "value": finding["value"]}
        for finding in newest["evidence"].get("findings", ())
        if finding["value"] is not None
    ]
    data = {"type": "held-out items", "name": newest["set_digest"][:_DIGEST_SHOWN], "revision": newest["set_digest"]}
    return [{"task": {"type": "text-generation"}, "dataset": data, "metrics": metrics}] if metrics else []


def _digest(digest: str | None) -> str:
    return f"`{digest[:_DIGEST_SHOWN]}`" if digest else "none of its own"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _cost(cost: Mapping[str, int]) -> str:
    money = f", ${cost['microdollars'] / 1e6:.2f}" if cost["microdollars"] else ""
    return f"{cost['seconds'] / 3_600:.1f} h{money}"
