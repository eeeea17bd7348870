"""The table of families by promise in docs/fine-tuning.md: each cell is computed on a tiny model, or its refusal is.

Whether documents of a packed row are independent, the first cell, is computed in test_families.py.
"""

import json
import re
import shutil
import signal
from collections.abc import Callable
from operator import methodcaller
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed: `make test-train` tests fine-tuning")
pytest.importorskip("peft")  # here, since each process that is forked would load it
import torch
import transformers

from jobs.advice.memory import layer_bytes as formula
from jobs.advice.shape import FAMILIES, STACKS, Setup, from_config
from jobs.payload.trainers.calibrate import DEFAULTS
from jobs.payload.trainers.probe import layer_bytes
from jobs.payload.trainers.tuning.model import ALONE, NOT_IN_4_BITS, separation
from jobs.problem import NotFound
from tests.lab.desk import Desk, accelerators, hidden, make_tokenizer
from tests.lab.families import NAMED, RECURRENT, family_config, family_model, known

# Families that are trained at each push: by an adapter, on a base in 4 bits, and shared out. All others are at night.
DAILY = [
    "falcon_h1", "gemma", "gemma2", "gemma3_text", "gpt2", "gpt_neox", "granite", "granitemoehybrid", "llama",
    "llama4_text", "mamba2", "mistral", "mpt", "phi3", "qwen2", "qwen3", "qwen3_5_text", "qwen3_next", "starcoder2",
]  # fmt: skip
CASES = [pytest.param(family, marks=() if family in DAILY else pytest.mark.nightly) for family in NAMED]
pytestmark = pytest.mark.filterwarnings("ignore")  # of libraries about fast paths that a processor has not


@pytest.fixture
def make_family_desk(tmp_path: Path) -> Callable[..., Desk]:
    """Makes desks with a tiny model of a family and its tokenizer."""

    def make(family: str, name: str, *options: str, target: int = 8) -> Desk:
        folder = tmp_path / "model"
        if not folder.exists():
            tokenizer = make_tokenizer(folder)
            more = {"vocab_size_per_layer_input": len(tokenizer)} if family == "gemma4_text" else {}
            config = family_config(known(family), vocab_size=len(tokenizer), bos_token_id=1, eos_token_id=2, **more)
            family_model(config).save_pretrained(folder)
        desk = Desk(tmp_path / name, folder, "--lora", "4", "--report-every", "1", *options, target=target)
        desk.fill({"text": f"text {number} " * number} for number in range(1, 60))
        return desk

    return make


def losses(desk: Desk) -> list[float]:
    """Losses that the newest run reported."""
    return [loss for _, loss in desk.losses() if loss is not None]


def check_resumed(family: str, make: Callable[..., Desk], *options: str) -> str:
    """Train to the end with a save on the way, go on from that save, and compare the bits; return what was printed."""
    whole, resumed = (make(family, name, *options) for name in ("whole", "resumed"))
    run = whole.run(cut=1, sign=signal.SIGUSR1)
    assert run.codes == [0], run.said
    first, _ = sorted((whole.folder / "checkpoints").glob("step-*"))
    shutil.copytree(first, resumed.folder / "checkpoints" / first.name)
    again = resumed.run()
    assert again.codes == [0], again.said
    assert "E0" in again.said
    assert resumed.state() == whole.state()
    step = int(first.name.removeprefix("step-"))
    assert losses(resumed) == losses(whole)[step:]
    return run.said


@pytest.mark.parametrize("family", CASES)
def test_a_resumed_training_of_a_family_ends_with_the_bits_of_one_that_was_not(
    family: str, make_family_desk: Callable[..., Desk]
) -> None:
    said = check_resumed(family, make_family_desk)
    alone = separation(family_config(family), 64) == ALONE
    assert ("rows of its own" in said) == alone


@pytest.mark.parametrize("family", [case for case in CASES if case.values[0] not in NOT_IN_4_BITS])
def test_an_adapter_on_a_base_in_4_bits_of_a_family_is_resumed_with_the_same_bits(
    family: str, make_family_desk: Callable[..., Desk]
) -> None:
    check_resumed(family, make_family_desk, "--use-4bit")


@pytest.mark.parametrize("family", NOT_IN_4_BITS)
def test_4_bits_are_refused_to_a_family_that_cannot_be_computed_from_them(
    family: str, make_family_desk: Callable[..., Desk]
) -> None:
    run = make_family_desk(family, "desk", "--use-4bit").run()
    assert run.codes == [1]
    assert f"transformers cannot compute {family} from 4 bits" in run.said
    assert "Traceback" not in run.said


@pytest.mark.parametrize("family", CASES)
def test_weights_of_a_family_that_are_shared_out_learn_the_same(
    family: str, make_family_desk: Callable[..., Desk]
) -> None:
    options = ("--lora", "0", "--shard", "on")
    alone, shared = (make_family_desk(family, name, *options, target=4) for name in ("alone", "shared"))
    assert alone.run(environment=hidden(2)).codes == [0]  # on the same kind of device
    run = shared.run(ranks=2)
    assert run.codes == [0, 0], run.said
    assert "sharded over 2 devices" in run.said
    assert losses(shared) == pytest.approx(losses(alone), abs=1e-3 if accelerators() >= 2 else 1e-4)


# The adviser has a formula for other families, but not for attention without torch's kernel, nor for dropout.
COUNTED = sorted({*NAMED} & FAMILIES.keys() - {"gemma2", "seed_oss"})
SHAPE = {
    "hidden_size": 1024, "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 2,
    "intermediate_size": 2560, "vocab_size": 512, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
METHODS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "lora": ({"method": "lora"}, {"method": "lora", "stack": STACKS["transformers"]}),
    "full": ({"method": "full", "weights": "fp32"}, {"method": "full", "master": True}),
}


@pytest.mark.parametrize("family", COUNTED)
def test_the_adviser_counts_the_weights_of_a_family_and_no_less_memory_than_its_layers_keep(family: str) -> None:
    """Exactly for norms and MLPs of Llama's kind; others keep less than the formula says."""
    config = family_config(known(family))
    with torch.device("meta"):
        weights = transformers.AutoModelForCausalLM.from_config(config).num_parameters()
    assert from_config(json.loads(config.to_json_string(use_diff=False)), family).parameters == weights
    shape = {"model_type": family, **SHAPE}
    if family == "gpt_neox":
        shape["num_key_value_heads"] = shape["num_attention_heads"]
    for given, setup in METHODS.values():
        kept = layer_bytes({**DEFAULTS, "shape": shape, "rank": 8, **given})
        assert kept <= 1.03 * formula(Setup(shape=from_config(shape, family), rank=8, **setup))


@pytest.mark.parametrize("family", sorted({*NAMED} - {*COUNTED}))
def test_the_adviser_refuses_a_family_that_it_cannot_count(family: str) -> None:
    config = json.loads(family_config(known(family)).to_json_string(use_diff=False))
    with pytest.raises(NotFound, match=f"{family}|mixture of experts|softcapping|dropout"):
        from_config(config, family)


PROMISES = {
    "A": "test_families.py::test_a_document_is_learned_in_a_packed_row_as_alone",
    "B": "test_families.py::test_a_model_with_recurrent_layers_has_one_document_a_row",
    "C": "test_promises.py::test_a_resumed_training_of_a_family_ends_with_the_bits_of_one_that_was_not",
    "D": "test_promises.py::test_weights_of_a_family_that_are_shared_out_learn_the_same",
    "E": "test_promises.py::test_an_adapter_on_a_base_in_4_bits_of_a_family_is_resumed_with_the_same_bits",
    "F": "test_promises.py::test_the_adviser_counts_the_weights_of_a_family_and_no_less_memory_than_its_layers_keep",
    "G": "test_promises.py::test_the_adviser_refuses_a_family_that_it_cannot_count",
    "H": "test_promises.py::test_4_bits_are_refused_to_a_family_that_cannot_be_computed_from_them",
}


def cells(family: str) -> str:
    """Return the row of a family in the table."""
    bits = "H" if family in NOT_IN_4_BITS else "E"
    return f"{'B' if family in RECURRENT else 'A'} | C | D | {bits} | {'F' if family in COUNTED else 'G'}"


def test_each_cell_of_the_table_is_computed() -> None:
    here = Path(__file__).parent
    lines = (here.parent.parent / "docs/fine-tuning.md").read_text().partition("<!-- families -->")[2].splitlines()
    rows: dict[str, list[str]] = {}
    for family in NAMED:
        rows.setdefault(cells(family), []).append(f"`{family}`")
    table = [f"| {', '.join(families)} | {row} |" for row, families in sorted(rows.items())]
    assert lines[3 : lines.index("<!-- end -->")] == table
    tests = {found[1]: found[2] for line in lines if (found := re.match(r"\| ([A-Z]) \|.*`(.*)` \|$", line))}
    assert tests == PROMISES
    assert all(
        f"def {name}(" in (here / file).read_text() for file, name in map(methodcaller("split", "::"), tests.values())
    )
