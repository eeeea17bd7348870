"""What goes wrong in a session of the real trainer, under the real agent: told, not trained on, and remembered."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lab.desk import Desk, accelerators
from tests.lab.disk import small_disk

pytest.importorskip("torch", reason="torch is not installed: `make test-train` tests fine-tuning")

# Read by each process that trains before anything else: a device that is not this machine's.
DEVICE = """
import os
if "RANK" in os.environ:
    import torch
    torch.cuda.is_available = lambda: True
    torch.cuda.device_count = lambda: 1
    torch.cuda.set_device = lambda _: None
    torch.cuda.get_device_capability = lambda *_: {capability}
    torch.cuda.get_device_name = lambda *_: "{name}"
    torch.cuda.get_arch_list = lambda: ["sm_75", "sm_80", "sm_90"]
"""
# A device whose memory holds so many tokens at a time.
SHORT = """
import os
if "RANK" in os.environ:
    import torch
    whole = torch.nn.Embedding.forward
    def short(self, tokens):
        if tokens.numel() > {tokens}:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")
        return whole(self, tokens)
    torch.nn.Embedding.forward = short
"""

ROOM = 96 << 10  # bytes that are left to a session on a disk that is nearly full


def with_device(desk: Desk, program: str) -> None:
    """Let the processes of a desk's sessions see another device than there is."""
    folder = desk.folder / "device"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(program)
    desk.environment["PYTHONPATH"] = str(folder)


def test_another_card_than_the_pool_promises_ends_the_session_before_it_trains(
    make_desk: Callable[..., Desk], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kaggle gives another accelerator in silence."""
    driver = tmp_path / "nvidia-smi"
    driver.write_text("#!/bin/sh\necho Tesla P100-PCIE-16GB\n")
    driver.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    desk = make_desk("desk", "--lora", "4")
    result = desk.session(expected="NvidiaTeslaT4")
    assert (result["outcome"], result["error_class"], result["step"]) == ("failed", "wrong_device", None)
    assert "expected 1 x NvidiaTeslaT4, got Tesla P100-PCIE-16GB" in result["message"]


def test_a_card_without_kernels_is_told_before_anything_is_loaded(make_desk: Callable[..., Desk]) -> None:
    desk = make_desk("desk", "--lora", "4")
    with_device(desk, DEVICE.format(capability=(7, 0), name="Tesla V100-SXM2-16GB"))
    result = desk.session()
    assert (result["outcome"], result["error_class"]) == ("failed", "device"), desk.log()
    assert "Tesla V100-SXM2-16GB has the compute capability 7.0" in result["message"]
    assert "Use a torch 2.6 to 2.14 built for CUDA 12.6" in result["message"]


@pytest.mark.parametrize(("cache", "step"), [("cache", None), ("../rows", 12)], ids=["rows", "save"])
def test_a_full_disk_is_told_and_leaves_nothing_torn(
    cache: str, step: int | None, make_desk: Callable[..., Desk], tmp_path: Path
) -> None:
    """A session's own disk has no room for its rows; or they lie elsewhere, and it has none for its checkpoint."""
    with small_disk(tmp_path / "desk", "24m") as disk:
        desk = make_desk("desk", "--lora", "4", "--cache", str(disk / cache), target=12)
        shutil.move(desk.store, tmp_path / "store")
        desk.store = tmp_path / "store"
        (disk / "filler").write_bytes(bytes(shutil.disk_usage(disk).free - ROOM))
        full = desk.session()
        assert (full["outcome"], full["error_class"], full["step"]) == ("failed", "store", step), desk.log()
        assert "o space left on device" in full["message"]
        assert not desk.manifests()
        (disk / "filler").unlink()
        whole = desk.session()
        assert (whole["outcome"], whole["restored_step"]) == ("finished", None), desk.log()


def missing(base: Path) -> None:
    shutil.rmtree(base)


def no_model(base: Path) -> None:
    (base / "config.json").unlink()


def an_adapter(base: Path) -> None:
    (base / "config.json").rename(base / "adapter_config.json")


def no_weights(base: Path) -> None:
    (base / "model.safetensors").unlink()


def cut_off(base: Path) -> None:
    os.truncate(base / "model.safetensors", 5_000)


def no_shard(base: Path) -> None:
    index = {"weight_map": {"lm_head.weight": "model-00002-of-00002.safetensors"}}
    (base / "model.safetensors.index.json").write_text(json.dumps(index))


def no_tokenizer(base: Path) -> None:
    for path in base.glob("tokenizer*"):
        path.unlink()


def lost_weights(base: Path) -> None:
    """Libraries fill them with random numbers, and training would go on to its end."""
    from safetensors.torch import load_file, save_file

    weights = load_file(base / "model.safetensors")
    kept = {name: weight for name, weight in weights.items() if "layers.1.mlp" not in name}
    save_file(kept, base / "model.safetensors", metadata={"format": "pt"})


DAMAGE: dict[Callable[[Path], None], str] = {
    missing: "there is no model in",
    no_model: "is no model: it has no config.json",
    an_adapter: "has an adapter",
    no_weights: "has no weights",
    cut_off: "model.safetensors is not complete",
    no_shard: "lacks model-00002-of-00002.safetensors",
    no_tokenizer: "has no tokenizer that can be loaded",
    lost_weights: "lacks 3 of its weights (model.layers.1.mlp.down_proj.weight, ",
}


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda damage: damage.__name__)
def test_a_base_that_is_not_whole_is_never_trained_on(
    damage: Callable[[Path], None], make_desk: Callable[..., Desk], model: Path, tmp_path: Path
) -> None:
    base = tmp_path / "base"
    shutil.copytree(model, base)
    damage(base)
    desk = make_desk("desk", "--model", str(base), "--lora", "4", target=2)
    if damage in (missing, cut_off):  # the others end in the same way, and need no agent to
        result = desk.session()
        assert (result["outcome"], result["error_class"], result["step"]) == ("failed", "code", None), desk.log()
        assert DAMAGE[damage] in result["message"]
        return
    run = desk.run()
    assert run.codes == [1], run.said
    assert DAMAGE[damage] in run.said
    assert "Traceback" not in run.said


def test_damaged_checkpoints_and_rows_are_passed_over_and_made_anew(make_desk: Callable[..., Desk]) -> None:
    desk = make_desk("desk", "--lora", "4", "--schedule", "constant", target=6)
    assert desk.session()["outcome"] == "finished", desk.log()
    desk.target = 12
    assert desk.session()["outcome"] == "finished", desk.log()
    newest = desk.newest()[1]
    os.truncate(desk.store / "jobs/toy/blobs" / newest["optimizer.pt"], 1_000)
    for rows in desk.folder.glob("cache/*/tokens.bin"):
        os.truncate(rows, 100)
    last = desk.session()
    assert (last["outcome"], last["restored_step"], last["checkpoint_step"]) == ("finished", 6, 12), desk.log()
    assert "is damaged and was skipped" in desk.log()
    assert "are not whole, and are made again" in desk.log()
    assert "resuming from step 6, E0" in desk.log()
    assert desk.newest()[1]["adapter_model.safetensors"] == newest["adapter_model.safetensors"]


def test_short_memory_changes_the_step_as_little_as_it_must_and_is_remembered(make_desk: Callable[..., Desk]) -> None:
    if accelerators():
        pytest.skip("memory is made short on processors; on an accelerator it is large for a tiny model")
    options = ("--lora", "4", "--length", "512", "--may-change", "length", "--report-every", "1")
    desk = make_desk("desk", *options, target=200)
    with_device(desk, SHORT.format(tokens=256))
    first = desk.session(cut=4)
    assert first["outcome"] == "preempted", desk.log()
    shutil.copytree(desk.folder / "cache/fits", desk.folder / "first/fits")
    tried = [line.partition("trying again with ")[2] for line in desk.log().splitlines() if "trying again with" in line]
    assert tried == [
        "--rows-at-once 1",
        "--rows-at-once 1 --gradient-checkpointing half",
        "--rows-at-once 1 --gradient-checkpointing all",
        "--rows-at-once 1 --gradient-checkpointing offload",
        "--rows-at-once 1 --gradient-checkpointing offload --length 256 --changed length=512",
    ]
    second = desk.session(cut=first["checkpoint_step"] + 4)
    assert "trying again with" not in desk.log()
    assert f"resuming from step {first['checkpoint_step']}, E0" in desk.log(), desk.log()
    assert second["checkpoint_step"] > first["checkpoint_step"]

    another = make_desk("another", *options, "--cache", str(desk.folder / "first"), target=4)
    with_device(another, SHORT.format(tokens=256))
    assert another.session()["outcome"] == "finished", another.log()
    assert "trying again with" not in another.log()

    least = ("--rows-at-once", "1", "--gradient-checkpointing")
    unasked = make_desk(
        "unasked", *options, *least, "--may-change", "", "--cache", str(desk.folder / "first"), target=4
    )
    with_device(unasked, SHORT.format(tokens=256))
    refused = unasked.session()
    assert (refused["outcome"], refused["error_class"]) == ("failed", "oom"), unasked.log()
    assert "or allow a change of the training (E2): --may-change optimizer,length" in refused["message"]


def test_an_optimizer_in_8_bits_is_kept_for_good(make_desk: Callable[..., Desk]) -> None:
    """Also on a card with memory to spare, in a process that was not asked for it."""
    if accelerators():
        pytest.skip("memory is made short on processors; on an accelerator it is large for a tiny model")
    options = ("--lora", "4", "--rows-at-once", "1", "--gradient-checkpointing", "offload", "--may-change", "optimizer")
    desk = make_desk("desk", *options, target=200)
    with_device(desk, SHORT.format(tokens="64 * ('adamw8bit' in sys.argv)").replace("import os", "import os, sys"))
    first = desk.session(cut=4)
    assert first["outcome"] == "preempted", desk.log()
    assert "--optimizer adamw8bit --changed optimizer=adamw" in desk.log()
    del desk.environment["PYTHONPATH"]
    again = desk.session(cut=first["checkpoint_step"] + 4)
    assert again["outcome"] == "preempted", desk.log()
    assert "E0: nothing has changed" in desk.log()
