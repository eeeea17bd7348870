"""The local platform's folder of records, where no process is needed to see what it makes of them."""

import json
import sys
from pathlib import Path

import pytest

from platforms.base import LaunchRequest, Misconfigured, Platform, Refused, SessionState, Unreachable
from platforms.registry import PlatformContext, load

NOW = 1_000_000


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def platform(state: Path) -> Platform:
    return load("local", {}, PlatformContext(state, sys.executable, state.parent / "bundle"))


def write(state: Path, key: str, **records: object) -> None:
    (state / key).mkdir(exist_ok=True)
    for name, record in records.items():
        text = record if isinstance(record, str) else json.dumps(record)
        (state / key / f"{name}.json").write_text(text)


ORDER = {"launched_at": NOW, "claim_by": NOW + 30, "deadline": NOW + 100, "devices": []}
END = {"started_at": NOW, "ended_at": NOW + 60, "exit_code": 0, "why": "exit code 0"}


def request(state: Path, key: str) -> LaunchRequest:
    (state.parent / "bundle" / "payload").mkdir(parents=True, exist_ok=True)
    (state.parent / "bundle" / "payload" / "agent.py").touch()
    return LaunchRequest(key, "pool", 1, NOW + 100, {"lanes": []}, "", {})


def test_an_unclaimed_session_is_queued_until_its_time_is_up(platform: Platform, state: Path) -> None:
    write(state, "one", order=ORDER)
    assert platform.find(["one"], NOW + 30)["one"].state == SessionState.QUEUED
    assert platform.find(["one"], NOW + 31)["one"].state == SessionState.ABSENT
    assert platform.find(["one"], NOW)["one"].state == SessionState.ABSENT


def test_an_unclaimed_session_that_is_stopped_never_starts(platform: Platform, state: Path) -> None:
    write(state, "one", order=ORDER)
    platform.stop("one", NOW, force=False)
    assert platform.find(["one"], NOW)["one"].state == SessionState.ABSENT


def test_an_end_is_told_as_it_was_written(platform: Platform, state: Path) -> None:
    write(state, "one", order=ORDER, ended=END)
    observed = platform.find(["one"], NOW + 1000)["one"]
    assert (observed.state, observed.started, observed.ended) == (SessionState.ENDED, NOW, NOW + 60)


@pytest.mark.parametrize("record", ['{"started_at": 1', "[]", "{}", '{"surprise": 1}', "\x00", "[" * 100_000])
@pytest.mark.parametrize("name", ["ended", "claim", "order"])
def test_a_damaged_record_is_no_answer_about_its_own_session(
    platform: Platform, state: Path, name: str, record: str
) -> None:
    write(state, "one", **{name: record})
    write(state, "two", order=ORDER, ended=END)
    seen = platform.find(["one", "two"], NOW)
    assert (seen["one"].state, seen["two"].state) == (SessionState.UNCLEAR, SessionState.ENDED)
    assert f"{name}.json is damaged" in seen["one"].detail
    assert list(platform.sweep(["one", "two"], NOW)) == ["two"]
    with pytest.raises(Unreachable, match="is damaged"):
        platform.launch(request(state, "one"), NOW)


@pytest.mark.parametrize("devices", ["", "0,1"])
def test_a_session_whose_record_is_damaged_keeps_its_seat(state: Path, devices: str) -> None:
    """It may run for all that is known; which of the machine's devices it has is not known at all."""
    context = PlatformContext(state, sys.executable, state.parent / "bundle", sessions_max=1 + bool(devices))
    platform = load("local", {"devices": devices} if devices else {}, context)
    write(state, "one", order="{")
    with pytest.raises(Refused, match=r"order\.json is damaged"):
        platform.launch(request(state, "two"), NOW)


def test_a_bundle_without_agent_needs_a_person_and_starts_nothing(platform: Platform, state: Path) -> None:
    with pytest.raises(Misconfigured, match=r"agent\.py"):
        platform.launch(LaunchRequest("one", "pool", 1, NOW + 100, {"lanes": []}, "", {}), NOW)
    assert [path.name for path in state.iterdir()] == [".lock"]


def test_a_disk_that_takes_no_folder_refuses_and_leaves_nothing(
    platform: Platform, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (state.parent / "bundle" / "payload").mkdir(parents=True)
    (state.parent / "bundle" / "payload" / "agent.py").touch()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(Refused, match="No space"):
        platform.launch(LaunchRequest("one", "pool", 1, NOW + 100, {"lanes": []}, "", {}), NOW)
    assert [path.name for path in state.iterdir()] == [".lock"]


def test_sweeping_clears_what_a_crash_left(platform: Platform, state: Path) -> None:
    (state / ".new-half" / "work").mkdir(parents=True)
    (state / ".gone-half" / "work").mkdir(parents=True)
    write(state, "over", order=ORDER, ended=END)
    write(state, "young", order=ORDER)
    assert platform.sweep(["over", "young"], NOW) == ["over"]
    assert sorted(path.name for path in state.iterdir()) == [".lock", "young"]
