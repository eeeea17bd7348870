"""Metrics are in the format that Prometheus reads, tell the truth, and are all explained."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

if TYPE_CHECKING:
    from pathlib import Path

_LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\["\\n])*"'
_SAMPLE = re.compile(
    rf"^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{{({_LABEL}(?:,{_LABEL})*)\}})? (-?[0-9.]+(?:e[+-]?[0-9]+)?|NaN|[+-]Inf)$"
)


def parsed(text: str) -> dict[str, dict[str, float]]:
    """Read the text format strictly: help and type once before the samples of a name, samples of a name together."""
    found: dict[str, dict[str, float]] = {}
    kinds: dict[str, str] = {}
    assert text.endswith("\n")
    for line in text.splitlines():
        if line.startswith("# HELP "):
            name = line.split()[2]
            assert name not in found, f"{name} is told twice"
            found[name] = {}
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            assert list(found)[-1] == name
            assert kind in {"gauge", "counter"}
            assert (kind == "counter") == name.endswith("_total"), name
            kinds[name] = kind
        else:
            match = _SAMPLE.match(line)
            assert match, line
            assert list(found)[-1] == match[1]
            assert (match[2] or "") not in found[match[1]], line
            found[match[1]][match[2] or ""] = float(match[3])
    assert kinds.keys() == found.keys()
    assert all(found.values())
    return found


def test_metrics_tell_what_the_api_tells(site: Any) -> None:
    answer = site.get("/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    found = parsed(answer.text)
    status = site.json("/api/v1/status")
    assert found["uff_leader"] == {"": 1}
    assert {key: count for key, count in found["uff_jobs"].items() if count} == {
        f'state="{state}"': count for state, count in status["jobs"].items()
    }
    assert sum(found["uff_pool_sessions"].values()) == status["runs_live"] == 3
    (kaggle,) = (pool for pool in status["pools"] if pool["name"] == "kaggle")
    for name, value in (("memory_bytes", 6 << 30), ("busy", 0.41), ("watts", 3 * 68.0), ("throttled", 0.12)):
        assert found[f"uff_pool_gpu_{name}"] == {'pool="kaggle"': pytest.approx(value)}
        assert kaggle[f"gpu_{name}"] == pytest.approx(value)
    for meter in site.json("/api/v1/quota")["quotas"]:
        unit, scale = ("seconds", 1) if meter["unit"] == "seconds" else ("dollars", 1_000_000)
        labels = f'pool="{meter["pool"]}",quota="{meter["quota"]}"'
        assert found[f"uff_quota_limit_{unit}"][labels] == meter["limit"] / scale
    assert sum(found["uff_runs_ended_total"].values()) >= 400
    open_jobs = sum(status["jobs"].get(state, 0) for state in ("queued", "active", "held"))
    assert len(found["uff_job_steps"]) == open_jobs


def test_openmetrics_is_written_for_those_who_accept_it(site: Any) -> None:
    answer = site.get("/metrics", Accept="application/openmetrics-text; version=1.0.0")
    assert answer.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    parse: Any = text_string_to_metric_families  # without types of its own
    families = {family.name: family for family in parse(answer.text)}
    (build,) = families["uff_build_info"].samples
    assert build.labels == {"version": site.json("/api/openapi.json")["info"]["version"]}
    assert families["uff_runs_ended"].type == "counter"
    assert {sample.name for family in families.values() for sample in family.samples} == set(
        parsed(site.get("/metrics").text)
    )


def test_every_metric_and_no_other_is_in_the_documentation(site: Any, repository: Path) -> None:
    page = (repository / "docs" / "status-page.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(uff_[a-z_]+)`", page))
    assert named == set(parsed(site.get("/metrics").text))


def test_every_address_of_the_api_and_no_other_is_in_the_documentation(site: Any, repository: Path) -> None:
    page = (repository / "docs" / "status-page.md").read_text(encoding="utf-8")
    named = set(re.findall(r"^- `(/[^`? ]*)`", page, flags=re.MULTILINE))
    known = set(site.json("/api/openapi.json")["paths"]) | {"/api/openapi.json"}
    assert named == known


def test_the_grafana_dashboard_asks_for_metrics_that_are_exported(site: Any, repository: Path) -> None:
    board = json.loads((repository / "examples/grafana/dashboard.json").read_text(encoding="utf-8"))
    expressions = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    named = {name for expression in expressions for name in re.findall(r"uff_[a-z_]+", expression)}
    assert len(named) > 15
    assert named - set(parsed(site.get("/metrics").text)) == set()


def test_the_panels_of_the_dashboard_do_not_overlap(repository: Path) -> None:
    board = json.loads((repository / "examples/grafana/dashboard.json").read_text(encoding="utf-8"))
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in board["panels"])
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
