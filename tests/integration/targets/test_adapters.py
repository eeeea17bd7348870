"""Adapters in a server that goes on answering, against a stand-in that has the faults of the real one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from platforms.targets.base import DeployOutcome, TargetContext, TargetError, TargetUnreachable, open_target
from platforms.targets.vllm import VllmTarget
from tests.lab.releases import make_release
from tests.lab.vllm import BASE, Vllm, vllm_server


@pytest.fixture
def server() -> Iterator[Vllm]:
    with vllm_server() as found:
        yield found


@pytest.fixture
def opened(server: Vllm, tmp_path: Path) -> Callable[..., VllmTarget]:
    def make(**more: str) -> VllmTarget:
        options = {"url": f"http://127.0.0.1:{server.port}", "base": BASE, "path": str(tmp_path / "adapters"), **more}
        found = open_target("vllm", "vllm", options, TargetContext(Path, lambda name: f"the {name}"))
        assert isinstance(found, VllmTarget)
        return found

    return make


def answers(server: Vllm, name: str, count: int = 4) -> dict[str, Any]:
    """What the server says for a name, as it is written down when a version is accepted."""
    question = {"model": name, "max_tokens": count}
    logprobs = server.answer("POST", "/v1/completions", question)[1]["choices"][0]["logprobs"]
    return {"prompt": "p", "tokens": logprobs["tokens"], "logprobs": logprobs["token_logprobs"]}


def test_versions_lie_beside_each_other_and_nothing_is_loaded_in_place(
    server: Vllm, opened: Callable[..., VllmTarget], tmp_path: Path
) -> None:
    target = opened()
    for version in (1, 2, 3):
        assert target.deploy(make_release(tmp_path, version)).outcome is DeployOutcome.SERVING
    assert sorted(server.loaded) == ["ufm@2", "ufm@3"]  # the one before stays for requests under way and for a return
    assert server.in_place == []
    assert target.go_back("ufm", 3).version == 2
    assert sorted(server.loaded) == ["ufm@2"]


def test_an_adapter_that_is_loaded_but_not_applied_never_serves(
    server: Vllm, opened: Callable[..., VllmTarget], tmp_path: Path
) -> None:
    """The real server answers 200 for an adapter that fits no module, lists it, and gives the base's words."""
    target = opened()
    target.deploy(make_release(tmp_path, 1))
    server.fits_no_module = True
    done = target.deploy(make_release(tmp_path, 2))
    assert (done.outcome, done.version) == (DeployOutcome.RETURNED, 1)
    assert "loaded but not applied" in done.detail
    assert sorted(server.loaded) == ["ufm@1"]
    assert (target.read("ufm").version, target.read("ufm").proven) == (1, True)


def test_an_adapter_that_answers_otherwise_than_when_it_was_accepted_never_serves(
    server: Vllm, opened: Callable[..., VllmTarget], tmp_path: Path
) -> None:
    """Such as old bytes from a cache by name, after somebody loaded other bytes under the name before."""
    server.cached["ufm@2"] = b"bytes of somebody else"
    target = opened()
    target.deploy(make_release(tmp_path, 1))
    recorded = answers(server, "ufm@1")
    release = make_release(tmp_path, 2, more={"probe.json": json.dumps(recorded).encode()})
    done = target.deploy(release)
    assert done.outcome is DeployOutcome.RETURNED
    assert "does not answer as it did when it was accepted" in done.detail


def test_an_adapter_that_answers_as_recorded_serves(
    server: Vllm, opened: Callable[..., VllmTarget], tmp_path: Path
) -> None:
    first = make_release(tmp_path / "once", 1)
    opened().deploy(first)
    recorded = answers(server, "ufm@1")
    again = make_release(tmp_path / "again", 2, b"weights of ufm 1", more={"probe.json": json.dumps(recorded).encode()})
    assert opened().deploy(again).outcome is DeployOutcome.SERVING


def test_a_server_that_was_restarted_is_given_its_adapters_anew(
    server: Vllm, opened: Callable[..., VllmTarget], tmp_path: Path
) -> None:
    release = make_release(tmp_path, 1)
    target = opened()
    target.deploy(release)
    server.restart()
    assert target.read("ufm").proven is False
    assert target.deploy(release).outcome is DeployOutcome.SERVING
    assert (sorted(server.loaded), target.read("ufm").proven) == (["ufm@1"], True)


def test_a_deployment_that_was_cut_off_before_the_switch_is_taken_back(
    server: Vllm, opened: Callable[..., VllmTarget], tmp_path: Path
) -> None:
    target = opened()
    target.deploy(make_release(tmp_path, 1))
    second = make_release(tmp_path, 2)
    target.folder.place(second)
    place = tmp_path / "adapters" / "ufm" / "releases" / "2"
    server.answer("POST", "/v1/load_lora_adapter", {"lora_name": "ufm@2", "lora_path": str(place)})
    assert target.go_back("ufm", 2).version == 1
    assert sorted(server.loaded) == ["ufm@1"]


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ({"updates": False}, "VLLM_ALLOW_RUNTIME_LORA_UPDATING"),
        ({"refuses": True}, "no memory is left"),
        ({"answers_nonsense": True}, "no tokens with log-probabilities"),
    ],
)
def test_what_the_server_refuses_is_told_and_the_old_version_serves(
    server: Vllm, opened: Callable[..., VllmTarget], tmp_path: Path, fault: dict[str, bool], said: str
) -> None:
    target = opened()
    target.deploy(make_release(tmp_path, 1))
    for name, value in fault.items():
        setattr(server, name, value)
    done = target.deploy(make_release(tmp_path, 2))
    assert (done.outcome, done.version) == (DeployOutcome.RETURNED, 1)
    assert said in done.detail
    assert "ufm@1" in server.loaded


@pytest.mark.parametrize("url", ["http://griffith:8000", "https://127.0.0.1:8000", "http://10.0.0.4:8000", "127.0.0.1"])
def test_only_a_server_of_this_machine_is_administered(opened: Callable[..., VllmTarget], url: str) -> None:
    with pytest.raises(TargetError, match="no address of this machine"):
        opened(url=url)


def test_a_server_without_the_base_is_no_answer(opened: Callable[..., VllmTarget], tmp_path: Path) -> None:
    with pytest.raises(TargetUnreachable, match="does not list another"):
        opened(base="another").deploy(make_release(tmp_path, 1))


def test_an_adapter_that_answers_a_request_is_not_unloaded(
    server: Vllm, opened: Callable[..., VllmTarget], tmp_path: Path
) -> None:
    target = opened(drain_time="1s")
    for version in (1, 2):
        target.deploy(make_release(tmp_path, version))
    server.busy = ["ufm@1"]
    assert target.deploy(make_release(tmp_path, 3)).outcome is DeployOutcome.SERVING
    assert (sorted(server.loaded), server.hurt) == (["ufm@1", "ufm@2", "ufm@3"], [])
    server.busy, server.stale = [], "ufm@1"  # its last request is over, and nothing has renewed what metrics say of it
    target.deploy(make_release(tmp_path, 4))
    assert (sorted(server.loaded), server.hurt) == (["ufm@3", "ufm@4"], [])


def test_going_back_waits_for_requests_of_what_is_left(
    server: Vllm, opened: Callable[..., VllmTarget], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = opened()
    for version in (1, 2):
        target.deploy(make_release(tmp_path, version))
    server.busy = ["ufm@2"]
    monkeypatch.setattr("platforms.targets.vllm._PAUSE", SimpleNamespace(wait=lambda _: server.busy.clear()))
    assert target.go_back("ufm", 2).version == 1
    assert (sorted(server.loaded), server.hurt) == (["ufm@1"], [])
