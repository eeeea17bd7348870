"""The adviser: shapes to the exact parameter, cards by every name, memory and time against what was measured."""

import json
import tomllib
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from jobs.advice.choice import MARGIN, Wishes, advise, compare, deepspeed, files, picture
from jobs.advice.memory import layer_bytes, memory_of, pace_of, storage_of
from jobs.advice.seen import Measurement, memory_seen, pace_seen, read_seen, write_seen
from jobs.advice.shape import STACKS, Offload, Parallel, Setup, cards, find_cards, find_shape, from_config, recognised
from jobs.definition import Definition
from jobs.payload.trainers.tuning.options import read_options
from jobs.problem import NotFound, Problem
from scheduler.cli.commands.advise import advice_json
from tests.lab import predictions

BIG = find_shape("deepseek-coder-6.7b")

PARAMETERS = {
    "deepseek-coder-1.3b": 1_346_471_936,
    "deepseek-coder-6.7b": 6_740_512_768,
    "llama-3.1-8b": 8_030_261_248,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-32b": 32_763_876_352,
    "qwen2-vl-2b": 2_208_985_600,
}


@pytest.mark.parametrize("name", sorted(PARAMETERS))
def test_parameters_are_those_of_the_instantiated_model(name: str) -> None:
    assert find_shape(name).parameters == PARAMETERS[name]


def test_adapters_and_the_tower_have_their_known_size() -> None:
    assert BIG.adapters(16) == 39_976_960
    assert BIG.adapters(64) == 159_907_840
    tower = find_shape("Qwen/Qwen2-VL-2B-Instruct").vision
    assert tower is not None
    assert tower.parameters(1536) == 665_271_296
    assert tower.tokens(1008, 1008) == 1296


def test_a_config_is_read_from_a_folder_and_from_the_hubs_cache(tmp_path: Path) -> None:
    config = {
        "model_type": "llama",
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    }
    config |= {"intermediate_size": 128, "vocab_size": 512, "tie_word_embeddings": True}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    found = find_shape(str(tmp_path))
    assert (found.hidden, found.kv, found.tied) == (64, 2, True)
    for revision, layers in (("old", 2), ("new", 3)):
        folder = tmp_path / f"hub/models--me--mine/snapshots/{revision}"
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": layers}), encoding="utf-8")
    assert find_shape("me/mine@new", tmp_path / "hub").layers == 3
    assert find_shape("hf:me/mine@old", tmp_path / "hub").layers == 2
    with pytest.raises(NotFound, match="not on this machine"):
        find_shape("me/mine@other", tmp_path / "hub")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"hidden_size": -1}, "hidden_size"),
        ({"num_hidden_layers": "many"}, "num_hidden_layers"),
        ({"num_local_experts": 8}, "mixture of experts"),
        ({"vision_config": {"depth": None}}, "vision_config"),
        ({"model_type": "qwen2_vl", "vision_config": {"depth": None}}, "vision_config"),
        ({"model_type": "qwen3_5_text"}, "its model_type is qwen3_5_text, for which there is no formula"),
        ({"model_type": "falcon_h1"}, "schedctl advise --calibrate"),
        ({"model_type": None}, "names no model_type"),
        ({"model_type": "phi", "qk_layernorm": True}, "qk_layernorm"),
    ],
)
def test_a_config_that_formulas_are_not_for_is_refused(change: dict[str, object], why: str) -> None:
    good = {
        "model_type": "llama",
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 8,
        "vocab_size": 9,
    }
    with pytest.raises(NotFound, match=why):
        from_config({**good, **change}, "odd")


@pytest.mark.parametrize("text", ["[]", "{", '{"hidden_size": 1e400}', ""])
def test_a_damaged_config_is_told(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text, encoding="utf-8")
    with pytest.raises(NotFound):
        find_shape(str(tmp_path / "config.json"))


@pytest.mark.parametrize(
    ("words", "name", "count"),
    [
        ("5060ti x2", "5060ti", 2), ("T4 x2", "t4", 2), ("Tesla T4", "t4", 1), ("NVIDIA GeForce RTX 4090", "4090", 1),
        ("NVIDIA H100 80GB HBM3", "h100", 1), ("a100 x8", "a100-80", 8), ("ml.g4dn.xlarge", "t4", 1),
        ("NvidiaTeslaT4", "t4", 1), ("h100 x1", "h100", 1),
    ],
)  # fmt: skip
def test_cards_are_known_by_every_name(words: str, name: str, count: int) -> None:
    card, found = find_cards(words)
    assert (card.name, found) == (name, count)


def test_an_unknown_card_is_told_with_the_nearest() -> None:
    assert recognised("this machine") is None
    with pytest.raises(NotFound, match="did you mean 5090"):
        find_cards("rtx 5091")


def test_numbers_follow_the_compute_capability() -> None:
    assert {name for name, card in cards().items() if card.precision == "fp16"} == {"p100", "v100", "t4"}
    assert "cu126" in cards()["v100"].wheel
    assert "12.8" in cards()["5060ti"].wheel


def test_a_layer_keeps_what_saved_tensors_show() -> None:
    """Counted by saved_tensors_hooks on transformers 5.23: bytes a token, in units of h, for Llama's kind of shape."""
    shape = replace(BIG, between=BIG.hidden)  # i = h, and k = h
    bare = STACKS["transformers-bare"]
    seen = {
        32.1: Setup(shape, "full", master=False),
        42.1: Setup(shape, "full"),
        51.0: Setup(shape, "lora", stack=bare),
        36.5: Setup(shape, "lora", stack=STACKS["transformers"]),
        26.2: Setup(shape, "lora", stack=STACKS["transformers"], targets=("q_proj", "v_proj")),
        30.3: Setup(shape, "lora", stack=bare, targets=("q_proj", "v_proj")),
    }
    for units, setup in seen.items():
        assert layer_bytes(setup) / shape.hidden == pytest.approx(units, rel=0.03)


def test_published_peaks_are_met(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert predictions.published(repository / "benchmarks/advice_peaks.toml")
    assert "47 peaks" in capsys.readouterr().out


def test_measured_peaks_and_held_out_lengths_are_met(repository: Path) -> None:
    assert predictions.measured(repository / "benchmarks/advice_h100.json")


def test_the_ladder_takes_what_is_simple_and_says_what_does_not_fit() -> None:
    found = advise(BIG, cards()["5060ti"], 2, Wishes(tokens=20e6))
    assert found.best is not None
    assert (found.best.rung, found.best.setup.parallel, found.best.verdict) == ("QLoRA", "ddp", "fits")
    full = advise(BIG, cards()["5060ti"], 1, Wishes(methods=("full",), parallel="none"))
    assert full.best is None
    assert all("largest part" in rung.why for rung in full.rungs)
    assert full.nearest
    assert advise(BIG, cards()["h100"], 1, Wishes()).best is not None
    short = advise(BIG, cards()["5060ti"], 1, Wishes(methods=("full",), parallel="zero3", offload="cpu", ram_gib=64))
    assert "RAM" in short.rungs[0].why or "GiB of" in short.rungs[0].why


def test_the_rows_of_a_step_never_change() -> None:
    for name, count in (("5060ti", 1), ("5060ti", 2), ("4090", 4)):
        for rung in advise(BIG, cards()[name], count, Wishes(rows=16)).rungs:
            assert rung.setup.rows == 16


def test_what_fits_is_within_the_margin_and_what_is_tight_is_not() -> None:
    for rung in advise(find_shape("qwen2.5-7b"), cards()["4090"], 1, Wishes()).rungs:
        roomy = rung.memory.gib * (1 + MARGIN) <= rung.card.usable_gib
        assert (rung.verdict == "fits") == (roomy and rung.verdict != "does not fit")


def test_offloaded_states_are_in_ram_and_checkpoints_have_their_size() -> None:
    one = Setup(BIG, "full", parallel="zero3", offload="cpu", devices=2)
    assert storage_of(one).ram > 1.5 * 16 * BIG.parameters
    assert storage_of(Setup(BIG, "qlora")).checkpoint == pytest.approx(0.48e9, rel=0.02)
    small = Setup(find_shape("deepseek-coder-1.3b"), "full")
    assert storage_of(small).checkpoint == pytest.approx(16.2e9, rel=0.01)


# Tokens a second of 6.7B by QLoRA in rows of 2,048: between which the priors lie.
PRIORS = {
    "p100": (70, 135), "t4": (140, 390), "v100": (360, 900), "l4": (580, 1160), "a10g": (500, 840),
    "4060ti": (370, 580), "5060ti": (400, 620), "5080": (940, 1480), "4090": (1400, 2400), "5090": (1750, 2750),
    "a100-80": (2100, 3200), "h100": (5200, 9000), "h200": (5200, 9000),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(PRIORS))
def test_priors_are_where_they_were_expected(name: str) -> None:
    setup = Setup(BIG, "qlora", seq=2048, batch=2, stack=STACKS["transformers"])
    low, high = PRIORS[name]
    assert low <= pace_of(setup, cards()[name]).tokens_per_second <= high


def test_what_was_seen_replaces_the_prior_and_carries_to_other_cards(tmp_path: Path) -> None:
    setup = Setup(BIG, "lora", seq=2048, batch=2, accumulate=1)
    prior = pace_of(setup, cards()["4090"])
    rows = tuple(
        Measurement(
            "4090", BIG.name, "lora", setup.stack.name, setup.checkpointing, 2, seq, 2 * prior.micro(2 * seq), 200
        )
        for seq in (1024, 2048, 4096)
    )
    found = pace_seen(setup, cards()["4090"], rows)
    assert found.step == pytest.approx(2 * prior.step, rel=0.05)
    assert found.sigma < prior.sigma
    assert found.samples == 600
    other = pace_seen(setup, cards()["5090"], rows)
    assert other.step == pytest.approx(2 * pace_of(setup, cards()["5090"]).step, rel=0.05)
    assert other.samples == 0
    path = tmp_path / "advice.json"
    write_seen(path, rows)
    assert read_seen(path) == rows
    few = pace_seen(setup, cards()["4090"], [replace(rows[1], steps=1)])
    assert prior.step < few.step < found.step


def test_a_peak_that_was_seen_is_never_told_smaller() -> None:
    setup = Setup(BIG, "lora", seq=2048, batch=2)
    memory = memory_of(setup)
    worst = int(memory.total * 1.2)
    row = Measurement("4090", BIG.name, "lora", setup.stack.name, setup.checkpointing, 1, 2048, 1.0, 5, worst)
    found = memory_seen(memory, setup, cards()["4090"], [row])
    assert found.total == pytest.approx(worst)
    assert found.parts[-1].name == "as seen"
    more = replace(row, seq=1 << 16)  # with more tokens than are asked for
    assert memory_seen(memory, setup, cards()["4090"], [more]) == memory


@pytest.mark.parametrize(
    "change",
    [
        {"seconds": -1}, {"seconds": float("inf")}, {"steps": 0}, {"batch": True}, {"seq": "long"}, {"peak": -1},
        {"seconds": 1e-6, "model": "deepseek-coder-6.7b", "card": "5060ti"},
    ],
)  # fmt: skip
def test_a_file_that_tells_what_cannot_be_is_refused(change: dict[str, object], tmp_path: Path) -> None:
    row = asdict(Measurement("4090", "mine", "lora", "finetune", True, 1, 2048, 1.0, 5)) | change
    path = tmp_path / "advice.json"
    path.write_text(json.dumps({"format": 1, "seen": [row]}), encoding="utf-8")
    with pytest.raises(NotFound, match="cannot be used"):
        read_seen(path)


@pytest.mark.parametrize("text", ["", "[]", '{"format": 2, "seen": []}', '{"format": 1}', '{"setups": [], "card": {}}'])
def test_a_file_of_another_kind_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "advice.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(NotFound):
        read_seen(path)


def test_what_calibrate_wrote_is_taken_in(repository: Path, tmp_path: Path) -> None:
    document = json.loads((repository / "benchmarks/advice_h100.json").read_bytes())
    for row in document["setups"]:
        row["model"] = "deepseek-coder-6.7b" if row["name"].startswith("6.7b") else row["name"]
    path = tmp_path / "measured.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    assert {row.card for row in read_seen(path)} == {"h100"}


def test_the_files_that_run_a_choice_can_be_read() -> None:
    taken = advise(BIG, cards()["5060ti"], 2, Wishes()).best
    assert taken is not None
    written = files(taken, "big", "hf:deepseek-ai/deepseek-coder-6.7b-base", 100)
    problems: list[Problem] = []
    spec = Definition("job.toml", "", problems).advised_job(tomllib.loads(written["job.toml"]))
    assert problems == []
    assert spec is not None
    assert spec.needs.vram_gib > 0
    assert "--use-4bit --use-lora --batch-size" in written["launch.sh"]
    assert json.loads(written["ds_config.json"])["zero_optimization"]["stage"] == 0
    shared = deepspeed(Setup(BIG, "full", parallel="zero3", offload="nvme", devices=2))["zero_optimization"]
    assert (shared["stage"], shared["offload_param"]["device"]) == (3, "nvme")


def test_a_choice_that_shares_weights_out_is_a_job_of_so_many_devices() -> None:
    taken = advise(BIG, cards()["5060ti"], 2, Wishes(methods=("lora",), parallel="fsdp")).best
    assert taken is not None
    written = files(taken, "big", "hf:deepseek-ai/deepseek-coder-6.7b-base", 100)
    problems: list[Problem] = []
    spec = Definition("job.toml", "", problems).advised_job(tomllib.loads(written["job.toml"]))
    assert problems == []
    assert spec is not None
    assert spec.command[-2:] == ("--shard", "on")
    assert (spec.needs.devices_min, spec.needs.devices_max) == (2, 2)
    assert taken.memory.gib < spec.needs.vram_gib < 15.5


def test_a_base_in_4_bits_that_fits_no_card_lies_on_two_by_layers() -> None:
    large = replace(BIG, layers=130)
    taken = advise(large, cards()["t4"], 2, Wishes(rows=16)).best
    assert taken is not None
    assert (taken.setup.method, taken.setup.parallel) == ("qlora", "layers")
    job = tomllib.loads(files(taken, "big", "hf:owner/big", 100)["job.toml"])
    assert job["command"][-2:] == ["--shard", "on"]
    assert (job["needs"]["devices"], job["device_speedup"]) == (2, [1.0, 1.0])
    assert "--use-4bit" in job["command"]
    alone = advise(large, cards()["t4"], 1, Wishes(rows=16))
    assert alone.best is None


@pytest.mark.parametrize(
    ("parallel", "offload", "words"),
    [
        ("zero1", "none", ("--zero", "1")),
        ("zero2", "cpu", ("--zero", "2", "--offload")),
        ("zero3", "cpu", ("--zero", "3", "--offload")),
    ],
)
def test_all_weights_by_zero_are_a_job_of_our_trainer(
    parallel: Parallel, offload: Offload, words: tuple[str, ...], tmp_path: Path
) -> None:
    wishes = Wishes(methods=("full",), parallel=parallel, offload=offload, ram_gib=512)
    taken = advise(find_shape("deepseek-coder-1.3b"), cards()["4090"], 2, wishes).best
    assert taken is not None
    for name, text in files(taken, "all", "hf:deepseek-ai/deepseek-coder-1.3b-base", 100).items():
        (tmp_path / name).write_text(text)
    problems: list[Problem] = []
    spec = Definition(str(tmp_path / "job.toml"), "", problems).advised_job(
        tomllib.loads((tmp_path / "job.toml").read_text())
    )
    assert problems == []
    assert spec is not None
    assert spec.command[-len(words) :] == words
    assert (spec.needs.devices_min, spec.needs.devices_max) == (2, 2)
    assert spec.requirements is not None
    assert (tmp_path / "requirements.txt").read_text() == "deepspeed\n"
    # What both devices do in an hour is what the adviser told of them.
    assert spec.steps_per_hour * spec.device_speedup[-1] == pytest.approx(3_600 / taken.pace.step, rel=0.01)
    options = read_options(["--model", "m", *spec.command[4:]])
    assert (options.zero, options.offload, options.lora) == (int(words[1]), "--offload" in words, 0)


def test_what_our_trainer_cannot_do_is_no_job() -> None:
    wishes = Wishes(methods=("full",), parallel="zero3", offload="nvme", ram_gib=512)
    taken = advise(BIG, cards()["4090"], 2, wishes).best
    assert taken is not None
    assert "job.toml" not in files(taken, "all", "hf:deepseek-ai/deepseek-coder-6.7b-base", 100)


def test_machines_side_by_side_are_drawn_and_told() -> None:
    machines = [(*find_cards(words), None) for words in ("5060ti", "5060ti x2", "h100", "4070")]
    found = compare(BIG, machines, Wishes(methods=("lora",), tokens=20e6), ())
    drawn = picture(found)
    assert drawn.startswith("<svg")
    assert drawn.count("<circle") == sum(one.best is not None for one in found)
    assert "does not fit: 4070 x1" in drawn
    document = advice_json(found[2])
    assert json.loads(json.dumps(document))["taken"]["verdict"] == "fits"
