"""What comes from outside is read as typed values within their ranges, or not at all, whatever it is."""

import json
import math
import sys
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.lane_report import OUTCOMES, PHASES, LaneReport, kept_report, read_report
from jobs.payload import bounds
from jobs.payload.bounds import ATTEMPT_MAX, STEP_MAX, Reader, Unfit, number, whole
from jobs.payload.lane.meter import LaneMeter
from jobs.payload.store.manifest import BadManifest, manifest_key, parse_manifest, split_key
from tests.lab.border import oddities

HONEST: dict[str, Any] = {
    "format": 1,
    "run": "uff-ufm-0001",
    "lane": 0,
    "job": "ufm",
    "seq": 3,
    "started_at": 1_795_000_000,
    "at": 1_795_000_060,
    "phase": "training",
    "step": 10,
    "loss": 1.5,
    "held_out_loss": None,
    "steps_per_second": 2.0,
    "setup_seconds": 5,
    "checkpoint_seconds": 2.5,
    "checkpoint_step": 10,
    "restored_step": 4,
    "restored_from": "jobs/ufm/manifests/000000000004-000001.json",
    "bad_manifests": [{"manifest": "jobs/ufm/manifests/000000000007-000001.json", "why": "damaged"}],
    "devices": ["Tesla T4"],
    "gpu_memory_bytes": 2**33,
    "tokens_per_second": 7_231.0,
    "step_seconds_p90": 1.25,
    "padding": 0.125,
    "gradient_norm": 0.5,
    "gpu_busy": 0.75,
    "gpu_watts": 140.5,
    "gpu_throttled": 0.25,
    "training_data": {
        "records": {"messages": 7},
        "left_out": [["it has no answer", 2, "train-0.jsonl:3"]],
        "cut": 1,
        "rows": 4,
        "tokens": 500,
        "padding": 0.25,
        "samples": ["2+2=⟦4⟧"],
    },
    "message": "",
    "longest_quiet_seconds": 12.0,
    "command_at": 1_795_000_003,
}
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.just(10**4_000),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@given(anything)
def test_a_number_is_within_its_range_or_refused(value: Any) -> None:
    for read, low, high in (
        (lambda: bounds.whole(value, 0, 100), 0, 100),
        (lambda: bounds.number(value, 0.0, 1e6), 0.0, 1e6),
        (lambda: bounds.measure(value), -bounds.MEASURE_MAX, bounds.MEASURE_MAX),
        (lambda: bounds.speed(value), 0.0, bounds.SPEED_MAX),
    ):
        try:
            found = read()
        except Unfit:
            continue
        assert not isinstance(value, bool | str)
        assert low <= found <= high
        assert math.isfinite(found)
        assert found == value


@pytest.mark.parametrize("value", [5e-324, 1e-310, 1e308, math.inf, -1, True, "2", 10**400])
def test_no_session_is_that_fast_or_that_slow(value: Any) -> None:
    with pytest.raises(Unfit):
        bounds.speed(value)


def test_a_session_that_has_not_moved_has_no_speed_and_is_believed() -> None:
    assert bounds.speed(0.0) == 0.0
    assert bounds.speed(0.25) == 0.25


@given(st.text(alphabet=st.characters(), max_size=300) | st.just("\ud800\0\x1b[2J") | st.just("x" * 9_000))
def test_text_can_be_stored_and_shown(value: str) -> None:
    found = bounds.text(value, 200)
    assert len(found) <= 200
    found.encode()  # raises for halves of a character
    assert all(c.isprintable() or c in "\n\t" for c in found)
    assert bounds.clean(found, 200) == found


@given(anything)
def test_anything_can_be_shown_in_a_line(value: Any) -> None:
    assert len(bounds.brief(value)) <= 200
    assert "int" in bounds.brief(10**5_000)  # which Python itself refuses to print


def test_what_will_not_be_shown_is_named_by_its_type() -> None:
    class Rude:
        def __repr__(self) -> str:
            raise RuntimeError("no")

    assert "Rude" in bounds.brief(Rude())


def test_a_number_of_thousands_of_digits_costs_its_field_and_not_the_document() -> None:
    assert len("9" * 5_000) > sys.get_int_max_str_digits()
    said = bounds.read_json('{"step": ' + "9" * 5_000 + ', "loss": 1.5}')
    reader = Reader(said)
    assert reader.read("step", bounds.whole) is None
    assert reader.read("loss", bounds.measure) == 1.5
    assert [refusal.field for refusal in reader.refused] == ["step"]


@pytest.mark.parametrize("data", [b"[" * 100_000, b'{"a":' * 100_000, b"\xff", b"", b"{", b"\x00"])
def test_what_is_no_json_is_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError, match=r".*"):
        bounds.read_json(data)


def test_an_honest_report_is_read_whole() -> None:
    report, refused = read_report(HONEST, "uff-ufm-0001", 0, "ufm")
    assert not refused
    assert report.document() == HONEST
    word = {**HONEST, "outcome": "yielded", "why": "deadline", "error_class": None}
    word |= {"trained_seconds": 50, "ended_at": 1_795_000_100, "phase": "ended", "waits_until": 1_795_000_400}
    report, refused = read_report(word, "uff-ufm-0001", 0, "ufm", last_word=True)
    assert not refused
    assert report.document() == word


@given(st.integers(0, 10**9))
def test_whatever_a_session_says_is_a_report_within_its_ranges_or_none(seed: int) -> None:
    data = oddities.document(Random(seed), {**HONEST, "outcome": "yielded"})
    try:
        report, _ = read_report(bounds.read_json(data), "uff-ufm-0001", 0, "ufm", last_word=True)
    except ValueError:
        return
    _check(report)
    again = kept_report(bounds.read_json(json.dumps(report.document(), allow_nan=False)), "uff-ufm-0001", 0, "ufm")
    assert again == report


def _check(report: LaneReport) -> None:
    assert report.outcome in OUTCOMES
    assert report.phase in {*PHASES, ""}
    for name in ("seq", "started_at", "at", "step", "checkpoint_step", "restored_step", "gpu_memory_bytes", "ended_at"):
        value = getattr(report, name)
        assert value is None or (type(value) is int and 0 <= value < 2**53)
    for name in ("loss", "held_out_loss", "steps_per_second", "setup_seconds", "checkpoint_seconds"):
        value = getattr(report, name)
        assert value is None or (type(value) is float and abs(value) <= 1e18)
    assert all(accused.manifest.startswith("jobs/ufm/") for accused in report.bad_manifests)
    assert len(report.message) <= 4_000


@pytest.mark.parametrize(
    "change",
    [{"run": "uff-ufm-0002"}, {"lane": 1}, {"lane": False}, {"job": "victim"}, {"format": 2}, {"format": True}],
)
def test_a_report_in_anothers_name_is_none(change: dict[str, Any]) -> None:
    with pytest.raises(Unfit):
        read_report({**HONEST, **change}, "uff-ufm-0001", 0, "ufm")


def test_what_older_versions_kept_is_read_like_any_other() -> None:
    assert kept_report({"step": "x", "loss": 2.0}, "r", 0, "ufm") == LaneReport("r", 0, "ufm", loss=2.0)
    assert kept_report([1], "r", 0, "ufm") is None


@given(st.integers(0, 10**9))
def test_whatever_a_manifest_says_it_is_within_its_ranges_or_bad(seed: int) -> None:
    key = manifest_key("ufm", 10, 1)
    component = {"name": "model.bin", "sha256": "0" * 64, "bytes": 1}
    honest = {"format": 1, "job": "ufm", "step": 10, "attempt": 1, "run": "uff-ufm-0001", "lane": 0, "parent": None}
    honest |= {"created_at": 1_795_000_000, "trained_seconds": 60, "metrics": {}, "components": [component]}
    rng = Random(seed)
    data = oddities.document(rng, honest)
    if seed % 2:
        data = json.dumps({**honest, "metrics": "?"}).replace('"?"', oddities.metrics(rng)).encode()
    try:
        found = parse_manifest(key, data)
    except BadManifest:
        return
    assert (found.job, found.step, found.attempt) == ("ufm", 10, 1)
    assert 0 <= found.created_at <= bounds.INSTANT_MAX
    assert 0 <= found.lane <= bounds.LANE_MAX
    assert all(math.isfinite(value) for value in found.metrics.values())


@given(
    st.dictionaries(st.sampled_from(["step", "saving", "saved", "loss", "gpu_memory_bytes", "save_failed"]), anything)
)
def test_whatever_a_command_reports_the_agent_goes_on(line: dict[str, Any]) -> None:
    """400 digits or an infinite loss ended the lane as if the agent itself had failed."""
    meter = LaneMeter(10.0, 12.0)
    meter.feed({"step": 0}, 0.0)
    meter.feed(line, 10.0)
    meter.feed({"step": 20}, 20.0)
    assert meter.step is not None
    assert (meter.steps_per_second or 0.0) <= 1e12
    assert meter.loss is None or math.isfinite(meter.loss)


def test_without_a_range_nothing_below_zero_is_believed() -> None:
    assert (whole(0), number(0.0)) == (0, 0.0)
    for read, value in ((whole, -1), (number, -1e-9)):
        with pytest.raises(Unfit):
            read(value)


def test_steps_and_attempts_go_as_far_as_a_manifests_name_has_digits() -> None:
    assert split_key(manifest_key("a", STEP_MAX, ATTEMPT_MAX)) == ("a", 10**12 - 1, 10**6 - 1)
    assert split_key(manifest_key("a", STEP_MAX + 1, 1)) is None
    assert split_key(manifest_key("a", 1, ATTEMPT_MAX + 1)) is None
