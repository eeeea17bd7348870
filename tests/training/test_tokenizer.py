"""A tokenizer must give back what it was given: several versions of transformers drop DeepSeek-Coder's white space."""

import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed: `make test-train` tests fine-tuning")
import tokenizers
import transformers

from jobs.payload.trainers.tuning.data.documents import PROBES, digest, first_lost, load_tokenizer
from jobs.payload.trainers.tuning.errors import TrainingRefused


def test_a_good_one_is_taken_as_it_is(model: Path) -> None:
    tokenizer = load_tokenizer(str(model))
    assert first_lost(tokenizer, PROBES) is None
    assert tokenizer.eos_token == "<eos>"


def rebuilt_wrongly(model: Path) -> Any:
    """What transformers 5.10 to 5.20 make of a byte-level file whose configuration names Llama's class."""
    words = tokenizers.Tokenizer.from_file(str(model / "tokenizer.json"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(prepend_scheme="never")
    words.decoder = tokenizers.decoders.Metaspace(prepend_scheme="never")
    return transformers.PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<eos>")


def test_one_that_transformers_rebuilds_wrongly_is_read_from_its_own_file(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    right = digest(load_tokenizer(str(model)))
    wrong = rebuilt_wrongly(model)
    lost = first_lost(wrong, PROBES)
    assert lost is not None
    assert " " not in lost[1]
    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", lambda _: wrong)
    tokenizer = load_tokenizer(str(model))
    assert first_lost(tokenizer, PROBES) is None
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<bos>", "<eos>")
    assert "loads this tokenizer wrongly" in capsys.readouterr().err
    assert digest(wrong) != right


def test_one_that_loses_white_space_by_itself_is_refused(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "lossy"
    shutil.copytree(model, folder)
    words = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    words.decoder = tokenizers.decoders.Fuse()
    words.save(str(folder / "tokenizer.json"))
    with pytest.raises(TrainingRefused, match="a model trained on that is lost"):
        load_tokenizer(str(folder))
