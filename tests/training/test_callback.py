"""The callback for Hugging Face's Trainer, on its own: what it refuses, and what it asks the Trainer for."""

import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed: `make test-train` tests fine-tuning")
pytest.importorskip("transformers")
from jobs.payload.trainers.trainer_callback import SchedulerCallback


@pytest.fixture
def callback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SchedulerCallback:
    """A callback of a session whose target is step 9; it takes no signals from pytest."""
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setenv("SCHED_CHECKPOINT_DIR", str(tmp_path))
    monkeypatch.setenv("SCHED_TARGET_STEP", "9")
    return SchedulerCallback()


def test_one_process_with_several_devices_is_refused_with_the_remedy(callback: SchedulerCallback) -> None:
    with pytest.raises(SystemExit, match=r"2 devices and one process.*ranks\.py"):
        callback.on_train_begin(SimpleNamespace(n_gpu=2), SimpleNamespace(global_step=0), None)
    callback.on_train_begin(SimpleNamespace(n_gpu=1), SimpleNamespace(global_step=0), None)


@pytest.mark.parametrize(("step", "asked", "saves", "stops"), [(3, "", False, False), (9, "", True, False),
    (3, "should_save", True, False), (3, "should_stop", True, True)])  # fmt: skip
def test_it_saves_and_stops_between_steps(
    callback: SchedulerCallback, step: int, asked: str, saves: bool, stops: bool
) -> None:
    if asked:
        setattr(callback._training, asked, True)
    control = SimpleNamespace(should_save=False, should_training_stop=False)
    callback.on_step_end(None, SimpleNamespace(global_step=step, is_world_process_zero=True), control)
    assert (control.should_save, control.should_training_stop) == (saves, stops)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # peft asks transformers so
def test_an_adapter_is_loaded_also_where_the_trainer_forgot_it(
    callback: SchedulerCallback, model: Path, tmp_path: Path
) -> None:
    """Transformers 5.17 loads an adapter beside it, the reference, and lets the trained one begin anew."""
    peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")

    def adapted() -> Any:
        base = transformers.AutoModelForCausalLM.from_pretrained(model)
        whole = peft.get_peft_model(base, peft.LoraConfig(r=2, target_modules="all-linear"))
        whole.add_adapter("ref", whole.peft_config["default"])
        return whole

    trained, again = adapted(), adapted()
    for name, part in trained.named_parameters():
        if "lora_" in name:
            part.data.fill_(0.5 if ".default." in name else 0.25)
    trained.save_pretrained(tmp_path / "kept")
    before = {name: part.detach().clone() for name, part in again.named_parameters()}
    callback.resume_from = str(tmp_path / "kept")
    callback.on_train_begin(SimpleNamespace(n_gpu=1), SimpleNamespace(global_step=3), None, model=again)
    for name, part in again.named_parameters():
        expected = 0.5 if "lora_" in name and ".default." in name else before[name]
        assert bool((part == expected).all()), name
