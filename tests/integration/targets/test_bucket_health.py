"""A bucket whose releases are asked for by a command: proven, returned, or finished after a crash."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from platforms.targets.base import Outcome, Served, TargetContext, TargetError
from platforms.targets.registry import open_target
from platforms.targets.s3 import S3Target
from tests.lab.releases import make_release


@pytest.fixture
def opened(moto_s3: Any, tmp_path: Path) -> Callable[..., S3Target]:
    options = {key: value for key, value in moto_s3.options(prefix="served/").items() if key != "create_only"}

    def make(health: str, time: str = "20s") -> S3Target:
        more = {"health": health, "health_time": time} if health else {}
        found = open_target("bucket", "s3", {**options, **more}, TargetContext(tmp_path / "scratch", Path, str))
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
    assert target.deploy(one).outcome is Outcome.SERVING
    assert target.read("ufm") == Served(1, one.digest, proven=True)
    assert target.deploy(one).outcome is Outcome.SERVING, "and what was proven is not asked again"
    done = target.deploy(two)
    assert (done.outcome, done.version) == (Outcome.RETURNED, 1)
    assert "failed with 3: no words" in done.detail
    assert target.read("ufm") == Served(1, one.digest, proven=True)
    folder = f"s3://{target.bucket}/served/ufm/releases"
    assert asked.read_text().splitlines() == [
        f"ufm 1 {folder}/1-{one.digest[:12]}/",
        f"ufm 2 {folder}/2-{two.digest[:12]}/",
    ]


def test_the_first_release_that_does_not_answer_leaves_nothing_proven(
    opened: Callable[..., S3Target], tmp_path: Path
) -> None:
    target = opened("sleep 30", "1s")
    done = target.deploy(make_release(tmp_path, 1))
    assert (done.outcome, done.version) == (Outcome.DOWN, None)
    assert "took longer than 1 s" in done.detail
    assert target.read("ufm").proven is False
    good = opened("true").deploy(make_release(tmp_path / "again", 1))
    assert good.outcome is Outcome.SERVING
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
    assert target.deploy(release).outcome is Outcome.SERVING
    assert target.read("ufm").proven is True
    pointer = target.client.get_object(Bucket=target.bucket, Key="served/ufm/current.json")["Body"].read()
    assert json.loads(pointer)["proven"] is True


def test_a_bucket_without_a_check_is_proven_as_before_and_a_command_that_is_none_is_refused(
    opened: Callable[..., S3Target], tmp_path: Path
) -> None:
    target = opened("")
    target.deploy(make_release(tmp_path, 1))
    assert target.read("ufm").proven is True
    with pytest.raises(TargetError, match="health is no command"):
        opened("x" * 3_000)
