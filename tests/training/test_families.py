"""Families of models: a document of a packed row is learned as it is learned alone, whatever lies beside it."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed: `make test-train` tests fine-tuning")
import torch
import transformers

from jobs.payload.trainers.tuning import model
from jobs.payload.trainers.tuning.base import check_length
from jobs.payload.trainers.tuning.data.rows import BEGINS, LEARNED, Rows, seal, write_rows
from jobs.payload.trainers.tuning.errors import TrainingRefused
from jobs.payload.trainers.tuning.model import ALONE, CausalLM, attention_kind, separation
from tests.lab.families import PACKED, RECURRENT, VOCABULARY, family_config, family_model, known

WINDOWED = sorted(model._READ_POSITIONS)
LENGTH, SIZE = 48, 24
pytestmark = pytest.mark.filterwarnings("ignore")  # of libraries about fast paths that a processor has not


def numbers(seed: int, count: int) -> list[int]:
    drawn: list[int] = torch.randint(5, VOCABULARY, (count,), generator=torch.Generator().manual_seed(seed)).tolist()
    return drawn


def loss(model: CausalLM, folder: Path, others: list[list[int]]) -> float:
    """Return the summed loss of one document in rows as they are packed, without that of ``others``."""
    folder.mkdir()
    alone = separation(model.root.config, LENGTH) == ALONE
    # Of equal length, the longest first: what is not learned lies before the document.
    pieces = [(piece, bytes([BEGINS] + [0] * (len(piece) - 1))) for piece in others]
    pieces.append((numbers(7, SIZE - 1), bytes([BEGINS] + [LEARNED] * (SIZE - 2))))
    seal(folder, write_rows(folder, iter(pieces), 3, LENGTH, None, alone=alone))
    rows = Rows(folder)
    assert len(rows) == (len(pieces) if alone else 1)
    batch = rows.batch(range(len(rows)))
    tokens, targets, positions, documents = (torch.from_numpy(part) for part in batch[:4])
    with torch.no_grad():
        return float(model.summed_loss(tokens, targets, positions, documents if rows.is_shared else None))


def as_the_family_computes_it(model: CausalLM) -> float:
    """Return the loss of the document by the logits of the family's own forward pass."""
    document = torch.tensor([numbers(7, SIZE - 1)])
    with torch.no_grad():
        logits = model.whole(input_ids=document, use_cache=False).logits[0, :-1]
    return float(torch.nn.functional.cross_entropy(logits.float(), document[0, 1:], reduction="sum"))


def check(family: str, folder: Path, **more: Any) -> None:
    torch.set_num_threads(1)
    model = CausalLM(family_model(family_config(known(family), **more)), adapter=False)
    alone = loss(model, folder / "alone", [])
    assert alone == pytest.approx(as_the_family_computes_it(model), rel=1e-5)
    beside = [loss(model, folder / str(seed), [numbers(seed, SIZE)]) for seed in (1, 2)]
    assert beside == pytest.approx([alone, alone], rel=1e-5)


@pytest.mark.parametrize("family", PACKED)
def test_a_document_is_learned_in_a_packed_row_as_alone(family: str, tmp_path: Path) -> None:
    assert separation(family_config(known(family)), LENGTH) != ALONE
    check(family, tmp_path)


@pytest.mark.parametrize("family", WINDOWED)
def test_a_window_of_attention_stays_in_a_packed_row(family: str, tmp_path: Path) -> None:
    """A mask of ours would let each token see all of its document, which the model was never made for."""
    more = {"attention_chunk_size": 8} if family == "llama4_text" else {"sliding_window": 8}
    if family in ("qwen2", "qwen3", "smollm3"):
        more |= {"use_sliding_window": True, "max_window_layers": 1}
    check(family, tmp_path, **more)


@pytest.mark.parametrize("family", RECURRENT)
def test_a_model_with_recurrent_layers_has_one_document_a_row(family: str, tmp_path: Path) -> None:
    assert separation(family_config(known(family)), LENGTH) == ALONE
    check(family, tmp_path)


@pytest.mark.parametrize(
    ("family", "name", "value"),
    [
        ("cohere", "logit_scale", 0.1), ("falcon_h1", "lm_head_multiplier", 0.02), ("granite", "logits_scaling", 8.0),
        ("gemma2", "final_logit_softcapping", 5.0), ("recurrent_gemma", "logits_soft_cap", 5.0),
    ],
)  # fmt: skip
def test_what_a_family_does_to_its_logits_is_done(family: str, name: str, value: float, tmp_path: Path) -> None:
    check(family, tmp_path, **{name: value})


def test_a_family_that_no_test_computes_has_one_document_a_row() -> None:
    assert separation(transformers.CONFIG_MAPPING["bloom"](), LENGTH) == ALONE
    assert separation(family_config(known("gpt_oss"), sliding_window=8), LENGTH) == ALONE


@pytest.mark.parametrize(("family", "kind"), [("gemma2", "eager"), ("mpt", "eager"), ("llama", "sdpa")])
def test_a_model_without_the_attention_of_torch_takes_its_own(family: str, kind: str, tmp_path: Path) -> None:
    family_config(known(family)).save_pretrained(tmp_path)
    assert attention_kind(str(tmp_path)) == kind


@pytest.mark.parametrize(
    ("family", "more", "most"),
    [
        ("llama", {}, 128), ("gpt2", {}, 128), ("mpt", {}, None), ("mamba", {}, None),
        ("qwen2", {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128,
                                       "rope_theta": 1e4}}, 512),
        ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}}, 256),
        ("llama", {"rope_parameters": {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 16,
                                       "low_freq_factor": 1.0, "high_freq_factor": 4.0, "rope_theta": 1e4}}, 128),
    ],
)  # fmt: skip
def test_rows_are_no_longer_than_a_models_positions(family: str, more: dict[str, Any], most: int | None) -> None:
    config = family_config(known(family), **more).to_dict()
    check_length(most or 10**6, config, "here")
    if most is not None:
        with pytest.raises(TrainingRefused, match=f"more than the {most} positions of the model in here"):
            check_length(most + 1, config, "here")
