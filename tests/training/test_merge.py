"""Adapters leave as others need them: merged into their base, or several beside each other on one."""

import hashlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed: `make test-train` tests fine-tuning")
pytest.importorskip("peft")
import peft
import torch
import transformers

from jobs.payload.trainers import merge
from tests.lab.desk import Desk

# peft 0.21 asks transformers 5.23 by the older of two names.
pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")
TEXT = "def main(arguments):\n    return 0\n"
STANDARD = re.compile(
    r"base_model\.model\.model\.layers\.\d\.(self_attn\.[qkvo]|mlp\.(gate|up|down))_proj\.lora_[AB]\.weight"
)


def logits(model: Any, folder: Path) -> Any:
    """What a model says after each token of a text."""
    tokens = transformers.PreTrainedTokenizerFast.from_pretrained(folder)(TEXT, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        return model.eval()(input_ids=tokens).logits.float()


def load(folder: Path, dtype: Any = torch.float32) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)


def trained(desk: Desk) -> Path:
    """Train to the end and return the checkpoint."""
    run = desk.run()
    assert run.codes == [0], run.said
    folder = desk.checkpoint()
    assert folder is not None
    return folder


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Path:
    """The checkpoint of an adapter that has learned something."""
    return trained(Desk(tmp_path_factory.mktemp("main"), model, "--lora", "4", "--rate", "1e-2"))


def merged(folder: Path, base: Path, *adapters: Path, more: tuple[str, ...] = ()) -> int:
    words = [word for one in adapters for word in ("--adapter", str(one))]
    return merge.main([str(folder), "--base", str(base), *words, *more])


def test_a_merged_model_says_what_base_and_adapter_say(model: Path, adapter: Path, tmp_path: Path) -> None:
    """And differs from the base alone by far more than rounding does."""
    assert merged(tmp_path / "out", model, adapter) == 0
    bare = logits(load(model), model)
    both = logits(peft.PeftModel.from_pretrained(load(model), adapter), model)
    alone = logits(load(tmp_path / "out"), tmp_path / "out")
    assert (both - bare).abs().max() > 0.5
    assert (alone - both).abs().max() < 0.05, "16 bit have three digits"
    # A tie of so small a model may fall the other way in 16 bits.
    assert (alone.argmax(-1) == both.argmax(-1)).float().mean() > 0.7
    config = json.loads((tmp_path / "out/config.json").read_bytes())
    before = json.loads((model / "config.json").read_bytes())
    assert {**config, "dtype": 0} == {**before, "dtype": 0}
    assert config["dtype"] == "bfloat16"
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja"):
        assert (tmp_path / "out" / name).read_bytes() == (model / name).read_bytes()
    assert {path.suffix for path in (tmp_path / "out").iterdir()} == {".json", ".jinja", ".safetensors"}


def test_an_adapter_of_a_base_in_4_bits_is_merged_into_the_base_in_16(
    make_desk: Callable[..., Desk], model: Path, tmp_path: Path
) -> None:
    pytest.importorskip("bitsandbytes")
    kept = trained(make_desk("qlora", "--use-4bit", "--lora", "4", "--rate", "1e-2"))
    assert merged(tmp_path / "out", model, kept, more=("--precision", "fp16")) == 0
    both = logits(peft.PeftModel.from_pretrained(load(model), kept), model)
    whole = load(tmp_path / "out", torch.float16)
    assert whole.dtype == torch.float16
    assert (logits(load(tmp_path / "out"), tmp_path / "out") - both).abs().max() < 0.01


def test_an_adapter_that_began_with_another_is_merged_as_one(
    make_desk: Callable[..., Desk], model: Path, adapter: Path, tmp_path: Path
) -> None:
    """It goes on with the other's matrices: its file holds both parts, and main's is not needed any more."""
    child = make_desk("child", "--lora", "4", "--rate", "1e-2", target=10)
    run = child.run(environment={"SCHED_INPUT_PARENT": str(adapter)})
    assert run.codes == [0], run.said
    kept = child.checkpoint()
    assert kept is not None
    assert merged(tmp_path / "out", model, kept) == 0
    alone = logits(load(tmp_path / "out"), tmp_path / "out")
    main = logits(peft.PeftModel.from_pretrained(load(model), adapter), model)
    both = logits(peft.PeftModel.from_pretrained(load(model), kept), model)
    assert (alone - both).abs().max() < 0.05
    # Twice what rounding may be. It trains on our own sources, so that the figure changes with them.
    assert (alone - main).abs().max() > 0.1, "it has learned since"


def test_adapters_that_were_trained_apart_are_added_up(model: Path, adapter: Path, tmp_path: Path) -> None:
    twice = tmp_path / "twice"
    shutil.copytree(adapter, twice)
    told = json.loads((twice / "adapter_config.json").read_bytes())
    (twice / "adapter_config.json").write_text(json.dumps({**told, "lora_alpha": 2 * told["lora_alpha"]}))
    assert merged(tmp_path / "one", model, twice) == 0
    assert merged(tmp_path / "two", model, adapter, adapter) == 0
    one, two = (logits(load(tmp_path / name), model) for name in ("one", "two"))
    assert (one - two).abs().max() < 0.1


def test_adapters_of_one_base_lie_beside_each_other_as_servers_load_them(model: Path, adapter: Path) -> None:
    """Servers such as vLLM take PEFT's two files, with PEFT's names, by a path for each adapter."""
    from safetensors import safe_open

    with safe_open(adapter / "adapter_model.safetensors", "pt") as held:
        names = list(held.keys())
    assert len(names) == 2 * 7 * 2
    assert [name for name in names if not STANDARD.fullmatch(name)] == []
    config = json.loads((adapter / "adapter_config.json").read_bytes())
    assert (config["peft_type"], config["r"], config["bias"], config["modules_to_save"]) == ("LORA", 4, "none", None)
    served = peft.PeftModel.from_pretrained(load(model), adapter, adapter_name="uff")
    served.load_adapter(str(adapter), adapter_name="ufm")
    served.set_adapter("ufm")
    assert (logits(served, model) - logits(load(model), model)).abs().max() > 0.5


def test_another_base_is_refused_with_both_digests(
    model: Path, adapter: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other"
    shutil.copytree(model, other)
    weights = bytearray((other / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (other / "model.safetensors").write_bytes(weights)
    assert merged(tmp_path / "out", other, adapter) == 1
    told = capsys.readouterr().err
    trained_on = json.loads((adapter / "fingerprint.json").read_bytes())["job"]["model"]
    assert f"was trained on another base (digest {trained_on[:16]})" in told
    assert not (tmp_path / "out").exists()


def test_what_cannot_be_merged_is_told(
    model: Path, adapter: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bare, few, small = (tmp_path / name for name in ("bare", "few", "small"))
    shutil.copytree(adapter, bare)
    (bare / "fingerprint.json").unlink()
    for folder, change in ((few, {"quantization_config": {}}), (small, {"num_hidden_layers": 1})):
        shutil.copytree(model, folder)
        told = json.loads((folder / "config.json").read_bytes())
        (folder / "config.json").write_text(json.dumps({**told, **change}))
    full = tmp_path / "full"
    full.mkdir()
    (full / "file").touch()
    for base, kept, name, words in (
        (few, adapter, "out", "is a base in few bits"),
        (model, model, "out", "has no adapter_config.json"),
        (small, bare, "out", "which has no place for its base_model"),
        (model, adapter, "full", "not an empty folder"),
        (adapter, adapter, "out", "has no config.json"),
    ):
        assert merged(tmp_path / name, base, kept) == 1
        assert words in capsys.readouterr().err
        assert not (tmp_path / "out").exists()


def test_the_files_that_are_merged_stay_as_they_were(model: Path, adapter: Path, tmp_path: Path) -> None:
    def digests() -> dict[str, str]:
        files = [*model.iterdir(), *(path for path in adapter.iterdir() if path.is_file())]
        return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}

    before = digests()
    program = [sys.executable, merge.__file__, str(tmp_path / "out"), "--base", str(model), "--adapter", str(adapter)]
    ended = subprocess.run(program, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert digests() == before
