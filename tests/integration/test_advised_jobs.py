"""Jobs of our trainer as the planner sees them before they ran: needs, speeds on unused pools, and why none fits."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jobs.advice.job import could_use_tpu
from jobs.definition import Definition
from jobs.lane_report import GpuMetrics
from jobs.nouns.pool import Pool
from jobs.problem import Problem
from jobs.spec import JobSpec
from scheduler.core.job import Queued
from scheduler.core.reasons import DoesNotFit
from scheduler.core.throughput import PRIOR_SIGMA
from scheduler.service.facts.overheads import ALIKE_SIGMA, ELSEWHERE_SIGMA, Overheads, card_of, seen_of_runs
from scheduler.service.facts.snapshot import job_view, load_snapshot, priors_of, view_of_new
from scheduler.service.requests.questions import obstacles
from scheduler.store import jobs, rates
from scheduler.store.engine import Database
from scheduler.store.jobs import JobRecord
from scheduler.store.rates import RateRecord

NOW = 1_700_000_000
TRAINER = "{payload}/trainers/finetune.py"


def read(table: dict[str, Any]) -> tuple[JobSpec | None, list[Problem]]:
    problems: list[Problem] = []
    return Definition("job.toml", "", problems).advised_job(table), problems


def table(*more: str, model: str = "hf:deepseek-ai/deepseek-coder-6.7b-base@main") -> dict[str, Any]:
    words = ["{python}", TRAINER, "--model", "input:base", "--lora", "16", "--length", "2048", *more]
    return {"name": "big", "role": "main", "command": words, "inputs": {"base": model}, "target_step": 1_000}


def job(*more: str, **changes: Any) -> JobSpec:
    spec, problems = read(table(*more) | changes)
    assert problems == []
    assert spec is not None
    return spec


def pool(name: str, accelerator: str, vram_gib: float, **more: Any) -> Pool:
    return Pool(name, "local", accelerator, vram_gib=vram_gib, dtypes=frozenset({"fp32", "fp16", "bf16"}), **more)


POOLS = {
    one.name: one for one in (pool("t4", "T4 x2", 15), pool("desk", "RTX 4090", 24), pool("odd", "this machine", 8))
}


def view(spec: JobSpec, measured: tuple[RateRecord, ...] = (), pools: dict[str, Pool] = POOLS) -> Any:
    known = {(rate.job, rate.pool): rate for rate in measured}
    record = JobRecord(spec, Queued(NOW), 0, 0, 0, None, None, NOW, 0)
    return job_view(record, pools, Overheads(known), running=None)


def test_a_base_in_4_bits_by_layers_needs_two_devices_with_half_of_it_each() -> None:
    alone, both = job("--use-4bit"), job("--use-4bit", "--shard", "on")
    assert (both.needs.devices_min, both.needs.devices_max, both.device_speedup) == (2, 2, (1.0, 1.0))
    assert both.needs.vram_gib < alone.needs.vram_gib


def test_images_of_a_model_that_sees_take_memory_of_a_job() -> None:
    seeing = {"base": "hf:Qwen/Qwen2-VL-2B-Instruct@main"}
    few, many = (job("--image-tokens", count, inputs=seeing).needs.vram_gib for count in ("64", "2048"))
    assert few < job(inputs=seeing).needs.vram_gib < many
    assert job("--image-tokens", "64").needs == job().needs, "who sees nothing has none"


def test_our_trainer_refuses_a_tpu() -> None:
    spec, problems = read({**table(), "needs": {"accelerator": "tpu"}})
    assert spec is None
    assert [(one.key, one.why) for one in problems] == [
        ("needs.accelerator", "finetune needs torch with CUDA, and does not run on a TPU")
    ]
    assert job().needs.accelerator == "gpu"


@pytest.mark.parametrize(
    ("source", "accelerator", "could"),
    [
        ("import numpy\nimport jax.numpy as jnp\n", "gpu", True),
        ("    from torch_xla import core\n", "gpu", True),
        ("import jax\n", "any", False),  # it says so already
        ("import torch  # not jax\n", "gpu", False),
    ],
)
def test_scripts_that_could_use_a_tpu_are_known(tmp_path: Path, source: str, accelerator: str, could: bool) -> None:
    (tmp_path / "train.py").write_text(source)
    words = {"command": ["{python}", "train.py"], "code": str(tmp_path), "needs": {"accelerator": accelerator}}
    spec, problems = read({"name": "x", "target_step": 10, "steps_per_hour": 5, "role": "job", **words})
    assert spec is not None, problems
    assert could_use_tpu(spec) is could
    (tmp_path / "train.py").unlink()
    assert not could_use_tpu(spec)


def test_what_is_left_out_is_advised() -> None:
    four, sixteen = job("--use-4bit"), job()
    assert 5 < four.needs.vram_gib < 9
    assert 14 < sixteen.needs.vram_gib < 18
    assert four.needs.dtype == "fp16"
    assert (four.needs.devices_min, four.needs.devices_max) == (1, 4)
    assert len(four.device_speedup) == 4
    assert 1.7 < four.device_speedup[1] < 2
    assert four.steps_per_hour > 0


def test_what_is_said_counts() -> None:
    said = job(needs={"vram_gib": 3}, steps_per_hour=7, device_speedup=[1.0, 1.5], checkpoint="45s")
    assert (said.needs.vram_gib, said.steps_per_hour, said.device_speedup) == (3, 7, (1.0, 1.5))
    assert said.checkpoint_seconds == 45


def test_a_large_checkpoint_is_given_the_time_that_its_bytes_take() -> None:
    """16 GB of all weights, and half of one of an adapter; a job that saved somewhere is known to take so long."""
    adapter, everything = job(), job("--lora", "0", inputs={"base": "hf:deepseek-ai/deepseek-coder-1.3b-base@main"})
    assert (adapter.checkpoint_seconds, 250 < everything.checkpoint_seconds < 400) == (60, True)
    seen = RateRecord(0.05, 0.05, 4, 60, 500, job="big", pool="t4", at=NOW)
    another = RateRecord(0.05, 0.05, 4, 60, 900, job="other", pool="desk", at=NOW)
    desk = POOLS["desk"]
    assert Overheads({("big", "t4"): seen}).prior(adapter, desk).checkpoint_seconds == 500
    assert Overheads({("other", "t4"): seen}).prior(adapter, desk).checkpoint_seconds == 60, "another's is another size"
    both = Overheads({("big", "t4"): seen, ("other", "desk"): another})
    assert both.prior(adapter, desk).checkpoint_seconds == 900, "the store of this pool is slow"
    half = job(needs={"vram_gib": 3})
    assert half.needs.vram_gib == 3
    assert half.steps_per_hour == job().steps_per_hour


def test_a_model_that_nobody_knows_needs_its_speed_said() -> None:
    spec, problems = read(table(model="hf:nobody/knows-this"))
    assert spec is None
    assert [problem.key for problem in problems] == ["steps_per_hour"]
    assert "not on this machine" in problems[0].why
    spec, problems = read(table(model="hf:nobody/knows-this") | {"steps_per_hour": 10})
    assert problems == []
    assert spec is not None
    assert spec.needs.vram_gib == 0


@pytest.mark.parametrize(
    "words", [["--length", "no"], ["--batch", "0"], ["--lora", "-4"], ["--length", "9" * 30], ["--offload"]]
)
def test_an_odd_command_line_is_not_advised(words: list[str]) -> None:
    spec, problems = read(table(*words))
    assert spec is None
    assert [problem.key for problem in problems] == ["steps_per_hour"]


def test_a_pool_that_was_never_used_has_the_advisers_speed() -> None:
    found = view(job("--use-4bit")).rates
    assert 3 < found["desk"].steps_per_second / found["t4"].steps_per_second < 20
    assert found["desk"].sigma == PRIOR_SIGMA
    assert found["desk"].samples == 0
    guess = job("--use-4bit").steps_per_hour / 3_600
    assert found["odd"].steps_per_second == pytest.approx(guess)


def test_what_was_measured_elsewhere_scales_it_and_makes_it_surer() -> None:
    spec = job("--use-4bit")
    before = view(spec).rates
    seen = RateRecord(before["t4"].steps_per_second / 2, 0.05, 3, 60, 10, job="big", pool="t4", at=NOW)
    after = view(spec, (seen,)).rates
    assert after["t4"].steps_per_second == seen.steps_per_second
    assert after["t4"].sigma == 0.05
    assert after["desk"].steps_per_second == pytest.approx(before["desk"].steps_per_second / 2)
    assert after["desk"].sigma == ELSEWHERE_SIGMA < before["desk"].sigma


def test_jobs_of_other_commands_are_as_before() -> None:
    spec = replace(job("--use-4bit"), command=("{python}", "train.py"), steps_per_hour=360)
    found = view(spec).rates
    assert {rate.steps_per_second for rate in found.values()} == {0.1}
    assert {rate.sigma for rate in found.values()} == {PRIOR_SIGMA}


def test_a_job_that_fits_nowhere_says_what_is_too_big_and_what_would_fit() -> None:
    small = {"t4": POOLS["t4"]}
    found = view(job(), pools=small)
    assert "GiB on t4, of which weights" in found.misfit
    assert "it fits with" in found.misfit
    assert view(job("--use-4bit"), pools=small).misfit == ""
    reason = DoesNotFit("1 x 16 GiB, fp16", "2 x 15 GiB", found.misfit)
    assert found.misfit in reason.sentence()


def test_the_planner_tells_it(database: Database) -> None:
    with database.write() as tx:
        jobs.add(tx, job(), NOW)
    with database.read() as tx:
        snapshot = load_snapshot(tx, {"t4": POOLS["t4"]}, NOW, 7 * 86_400)
    reason = obstacles(snapshot, ["big"])["big"]
    assert isinstance(reason, DoesNotFit)
    assert "it fits with" in reason.sentence()


def test_cards_of_pools_are_known_by_the_expected_device_first() -> None:
    other = pool("k", "GPU", 15, options={"expected_device": "NvidiaTeslaT4"})
    card = card_of(other)
    assert card is not None
    assert card.name == "t4"
    assert card_of(POOLS["odd"]) is None


def test_runs_of_ours_are_what_was_seen() -> None:
    measured = {
        ("big", "desk"): RateRecord(0.05, 0.05, 4, 60, 10, job="big", pool="desk", at=NOW),
        ("big", "gone"): RateRecord(0.1, 0.05, 4, 60, 10, job="big", pool="gone", at=NOW),
        ("big", "t4"): RateRecord(1e6, 0.05, 4, 60, 10, job="big", pool="t4", at=NOW),  # no T4 can
        ("other", "desk"): RateRecord(0.1, 0.05, 4, 60, 10, job="other", pool="desk", at=NOW),
    }
    (row,) = seen_of_runs([job("--use-4bit")], measured, POOLS)
    assert (row.card, row.model, row.method, row.steps) == ("4090", "deepseek-coder-6.7b", "qlora", 80)
    assert row.seconds * 0.05 <= 1
    assert row.peak == 0, "nobody told one"
    gpus = {("big", pool): GpuMetrics(gpu_memory_bytes=peak) for pool, peak in (("desk", 9 << 30), ("gone", 1 << 40))}
    (row,) = seen_of_runs([job("--use-4bit")], measured, POOLS, gpus)
    assert 9 << 30 < row.peak < 10 << 30, "and the libraries' own"
    assert seen_of_runs([replace(job("--use-4bit"), command=("{python}", "train.py"))], measured, POOLS) == ()


def test_a_new_job_goes_as_fast_as_its_kind_did(database: Database) -> None:
    first, second = job("--use-4bit"), job("--use-4bit", name="next")
    guessed = view(second).rates
    pools = POOLS | {"desk2": pool("desk2", "RTX 4090", 24), "new": pool("new", "RTX 5090", 32)}
    prior = view(second, pools=pools).rates["new"]
    with database.write() as tx:
        for spec in (first, second, job(name="sixteen")):
            jobs.add(tx, spec, NOW)
        rates.put(
            tx, RateRecord(guessed["desk"].steps_per_second / 2, 0.05, 10, 60, 10, job="big", pool="desk", at=NOW)
        )
    with database.read() as tx:
        snapshot = load_snapshot(tx, pools, NOW, 7 * 86_400)
        asked = view_of_new(job("--use-4bit", name="asked"), pools, NOW, 4, priors_of(tx, pools))
    found = {one.name: one.rates for one in snapshot.jobs}
    for rates_of_kind in (found["next"], asked.rates):
        # The same card, whichever pool has it, and another card by the same error of the formula.
        assert rates_of_kind["desk"].steps_per_second == pytest.approx(guessed["desk"].steps_per_second / 2, rel=0.05)
        assert rates_of_kind["desk2"] == rates_of_kind["desk"]
        assert rates_of_kind["desk"].sigma == ALIKE_SIGMA
        assert rates_of_kind["new"].steps_per_second == pytest.approx(prior.steps_per_second / 2, rel=0.05)
        assert rates_of_kind["new"].sigma == ELSEWHERE_SIGMA
    assert found["sixteen"]["desk"].sigma == PRIOR_SIGMA  # LoRA on 16 bit weights is another kind
    # What it showed itself counts for a job, wherever it did, and is not counted twice.
    assert found["big"]["new"].steps_per_second == pytest.approx(prior.steps_per_second / 2, rel=0.05)
    assert found["big"]["desk"].steps_per_second == guessed["desk"].steps_per_second / 2
