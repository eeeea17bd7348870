"""The TPU hours of an account: a pool beside that of the GPUs, with its own quota, sessions and session limit."""

import importlib.util
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from platforms.base import BadOption, Refused, SessionState
from platforms.registry import PlatformContext, checkup, load
from scheduler.app import load_app
from scheduler.clock import real_now
from tests.lab.patience import until

Account = Any
TPU = {"machine_shape": "TpuV5E8"}
EXAMPLES = Path(__file__).parents[3] / "examples"
POOL = """
state_dir = "state"

[[pools]]
name = "gpu"
platform = "kaggle"
accelerator = "T4 x2"

[[pools]]
name = "tpu"
platform = "kaggle"
accelerator = "TPU v5e-8"
"""


def hours(account: Account, **settings: str) -> tuple[int, Any]:
    (week,) = account.adapter(**settings).read_quota(account.now())
    return week.limit_seconds, week.used_seconds


def test_both_quotas_are_read_and_each_session_counts_in_its_own(account: Account) -> None:
    sent = account.server.requests
    account.adapter("tpu-state", **TPU).launch(account.request("uff-jax-0001", "finish"), account.now())
    (push,) = [body for call, body in sent if call == "SaveKernel"]
    assert (push["enableGpu"], push["enableTpu"], push["machineShape"]) == (False, True, "TpuV5E8")
    (session,) = account.place.sessions()
    session.join()
    account.adapter("tpu-state", **TPU).find(["uff-jax-0001"], account.now())
    billed = session.ended_at - session.started_at
    assert hours(account, **TPU) == (72_000, pytest.approx(billed, abs=1))
    assert hours(account) == (108_000, 0)


def test_sessions_are_counted_by_kind(account: Account) -> None:
    """One TPU beside two GPU sessions; the next TPU waits for the end of the first, and costs no kernel."""
    gpu, tpu = account.adapter(), account.adapter("tpu-state", **TPU)
    for number, adapter in enumerate((gpu, gpu, tpu)):
        adapter.launch(account.request(f"uff-ufm-{number:04}", "wait"), account.now())
    with pytest.raises(Refused, match="TPU session count of 1") as refused:
        tpu.launch(account.request("uff-ufm-0009", "finish"), account.now())
    assert not refused.value.permanent
    assert "uff-ufm-0009" not in account.place.kernels
    tpu.stop("uff-ufm-0002", account.now(), force=True)
    until(lambda: not account.place.sessions()[2].live or tpu.stop("uff-ufm-0002", account.now(), force=True), "an end")
    tpu.launch(account.request("uff-ufm-0009", "finish"), account.now())
    for session in account.place.sessions():
        session.cut("CANCEL_ACKNOWLEDGED", "over")


def test_an_account_that_counts_tpus_among_gpu_sessions_refuses_and_nothing_is_lost(
    account_at: Callable[..., Account],
) -> None:
    account = account_at(tpu_counts_as_gpu=True)
    gpu, tpu = account.adapter(), account.adapter("tpu-state", **TPU)
    for number in range(2):
        gpu.launch(account.request(f"uff-ufm-{number:04}", "wait"), account.now())
    with pytest.raises(Refused, match="GPU session count of 2"):
        tpu.launch(account.request("uff-jax-0001", "finish"), account.now())
    for session in account.place.sessions():
        session.cut("CANCEL_ACKNOWLEDGED", "over")
    tpu.launch(account.request("uff-jax-0001", "finish"), account.now())
    until(lambda: not account.place.sessions()[-1].live, "the end")
    assert hours(account, **TPU)[1] > 0


def test_used_up_tpu_hours_close_only_their_pool(account_at: Callable[..., Account]) -> None:
    account = account_at(tpu_seconds_per_week=0)
    with pytest.raises(Refused, match="weekly TPU quota") as refused:
        account.adapter("tpu-state", **TPU).launch(account.request("uff-jax-0001", "finish"), account.now())
    assert refused.value.used_up
    assert refused.value.wait_until == account.place.week(account.now())[1]
    account.adapter().launch(account.request("uff-ufm-0001", "finish"), account.now())


def test_the_accelerator_of_a_pool_decides(account: Account, tmp_path: Path) -> None:
    """Its name is enough; a session ends within nine hours, unless the settings say otherwise."""
    (tmp_path / "settings.toml").write_text(POOL)
    pools = load_app(tmp_path / "settings.toml", {}).pools
    assert (pools["gpu"].kind, pools["gpu"].session_cap_seconds, dict(pools["gpu"].options)) == ("gpu", 43_200, {})
    tpu = pools["tpu"]
    assert (tpu.kind, tpu.session_cap_seconds, dict(tpu.options)) == ("tpu", 32_400, TPU)
    (tmp_path / "settings.toml").write_text(POOL + 'session_cap = "6h"\n')
    assert load_app(tmp_path / "settings.toml", {}).pools["tpu"].session_cap_seconds == 21_600


@pytest.mark.parametrize(
    ("kind", "shape", "devices", "says"),
    [
        ("tpu", "NvidiaTeslaT4", 1, "does not fit the pool's accelerator"),
        ("gpu", "TpuV5E8", 1, "does not fit the pool's accelerator"),
        ("tpu", "TpuV5E8", 8, "trains one job"),
    ],
)
def test_contradictions_are_refused(account: Account, kind: str, shape: str, devices: int, says: str) -> None:
    context = PlatformContext(account.folder / "other", "", Path(), kind=kind, devices_per_session=devices)
    credentials = str(account.folder / "kaggle.json")
    with pytest.raises(BadOption, match=says):
        load("kaggle", {"machine_shape": shape, "credentials": credentials}, context)


def test_doctor_shows_the_hours_of_tpus(account: Account) -> None:
    options = {"emulator": account.server.address, "credentials": str(account.folder / "kaggle.json"), **TPU}
    checks = checkup("kaggle", options, {}, real_now(), probe=False)
    assert checks["quota"]().found == "20.0 of 20.0 TPU hours are left this week"
    retired = checkup("kaggle", options | {"machine_shape": "TpuV38"}, {}, real_now(), probe=False)["accelerator"]()
    assert (retired.grade, retired.remedy) == ("warning", "Set machine_shape = TpuV5E8")


@pytest.mark.parametrize("example", ["plain", "jax"])
def test_an_example_runs_unchanged_on_a_tpu_session(account: Account, example: str) -> None:
    """Stopped and resumed; JAX sees no TPU here, and trains on the processor."""
    if example == "jax" and importlib.util.find_spec("jax") is None:
        pytest.skip("jax is not installed: examples/jax is not tried on the emulator here")
    code = account.folder / "code"
    shutil.copytree(EXAMPLES / example, code)
    adapter = account.adapter("tpu-state", **TPU)
    lane = {"command": ["{python}", str(code / "train.py")], "target_step": 30}
    adapter.launch(account.request("uff-jax-0001", "", **lane), account.now())
    until(lambda: adapter.find(["uff-jax-0001"], account.now())["uff-jax-0001"].state is SessionState.ENDED, "the end")
    adapter.collect("uff-jax-0001", account.store, account.now())
    result = account.result("uff-jax-0001")
    assert (result["outcome"], result["checkpoint_step"]) == ("finished", 30), account.output("uff-jax-0001")
    assert hours(account)[1] == 0 < hours(account, **TPU)[1]
