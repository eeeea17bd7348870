"""A bucket whose releases are asked for by a command: proven, returned, or finished after a crash."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest

from platforms.targets.base import DeployOutcome, Served, TargetContext, TargetError, open_target
from platforms.targets.s3 import S3Target
from tests.lab.releases import make_release


@pytest.fixture
def opened(moto_s3: Any, tmp_path: Path) -> Callable[..., S3Target]:
    options = {key: value for key, value in moto_s3.options(prefix="served/").items() if key != "create_only"}

    def make(health: str, time: str = "20s") -> S3Target:
        more = {"health": health, "health_time": time} if health else {}
        found = open_target("bucket", "s3", {**options, **more}, TargetContext(Path, str))
        assert isinstance(found, S3Target)
        return found

    return make


def test_what_answers_is_proven_and_what_does_not_is_taken_back(
    opened: Callable[..., S3Target], tmp_path: Path
) -> None:
    one, two = make_release(tmp_path, 1), make_release(tmp_path, 2)
    asked = tmp_path / "asked"
    target = opened(
        f'echo "$MODEL $VERSION $FOLDER" >> {asked}; test "$VERSION" = 1 || {{ echo no words >&2; exit 3; }}'
    )
    assert target.deploy(one).outcome is DeployOutcome.SERVING
    assert target.read("ufm") == Served(1, one.digest, proven=True)
    assert target.deploy(one).outcome is DeployOutcome.SERVING, "and what was proven is not asked again"
    done = target.deploy(two)
    assert (done.outcome, done.version) == (DeployOutcome.RETURNED, 1)
    assert "failed with 3: no words" in done.detail
    assert target.read("ufm") == Served(1, one.digest, proven=True)
    folder = f"s3://{target.store.bucket}/served/ufm/releases"
    assert asked.read_text().splitlines() == [
        f"ufm 1 {folder}/1-{one.digest[:12]}/",
        f"ufm 2 {folder}/2-{two.digest[:12]}/",
    ]


def test_the_first_release_that_does_not_answer_leaves_nothing_proven(
    opened: Callable[..., S3Target], tmp_path: Path
) -> None:
    target = opened("sleep 30", "1s")
    done = target.deploy(make_release(tmp_path, 1))
    assert (done.outcome, done.version) == (DeployOutcome.DOWN, None)
    assert "took longer than 1 s" in done.detail
    assert target.read("ufm").proven is False
    good = opened("true").deploy(make_release(tmp_path / "again", 1))
    assert good.outcome is DeployOutcome.SERVING
    assert target.read("ufm").proven is True


def test_a_deployment_that_was_cut_off_before_the_check_is_proven_by_the_next_call(
    opened: Callable[..., S3Target], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        """As the end of a process."""

    def dies(*_: Any) -> str:
        raise Killed

    release = make_release(tmp_path, 1)
    target = opened("true")
    with monkeypatch.context() as patched:
        patched.setattr(S3Target, "_fault", dies)
        with pytest.raises(Killed):
            target.deploy(release)
    assert target.read("ufm").proven is False
    assert target.deploy(release).outcome is DeployOutcome.SERVING
    assert target.read("ufm").proven is True
    pointer = target.store.client.get_object(Bucket=target.store.bucket, Key="served/ufm/current.json")["Body"].read()
    assert json.loads(pointer)["proven"] is True


def test_a_bucket_without_a_check_is_proven_as_before_and_a_command_that_is_none_is_refused(
    opened: Callable[..., S3Target], tmp_path: Path
) -> None:
    target = opened("")
    target.deploy(make_release(tmp_path, 1))
    assert target.read("ufm").proven is True
    with pytest.raises(TargetError, match=r"health = .*Put long commands into a script there, and name it"):
        opened("x" * 3_000)


def test_a_deployment_cut_off_before_any_request_points_at_whole_releases_alone(
    opened: Callable[..., S3Target], tmp_path: Path
) -> None:
    """Before the pointer is written nobody sees what was sent, and the next deployment sends only what is missing."""

    class Killed(BaseException):
        """As the end of a process."""

    one, *others = (make_release(tmp_path, version) for version in range(1, 40))
    opened("").deploy(one)
    serving = 1
    for cut, release in enumerate(others, 1):
        first, second = list[str](), list[str]()
        with pytest.MonkeyPatch.context() as patch:
            _note_puts(patch, target := opened(""), first, cut, Killed)
            try:
                target.deploy(release)
            except Killed:
                found = opened("").read("ufm", deep=True)
                assert (found.version, found.damaged) == (release.version if "current.json" in first else serving, ())
            else:
                break
        with pytest.MonkeyPatch.context() as patch:
            _note_puts(patch, target := opened(""), second)
            assert target.deploy(release).outcome is DeployOutcome.SERVING
        assert sorted(name for name in first + second if name in release.files) == sorted(release.files)
        assert opened("").read("ufm", deep=True) == Served(release.version, release.digest, proven=True, before=ANY)
        serving = release.version
    else:
        pytest.fail("it makes more requests than that")
    assert cut > len(one.files)


def _note_puts(
    patch: pytest.MonkeyPatch, target: S3Target, names: list[str], cut: int = 0, killed: type[BaseException] = OSError
) -> None:
    """Note the names of what a target sends, and end its process before request number ``cut``."""
    asked = target.store.client._make_api_call
    number = count(1)

    def ask(operation: str, words: dict[str, Any]) -> Any:
        if next(number) == cut:
            raise killed
        if operation == "PutObject":
            names.append(words["Key"].rpartition("/")[2])
        return asked(operation, words)

    patch.setattr(target.store.client, "_make_api_call", ask)
