"""What every target promises, whatever it is made of: one suite for folder, ssh, bucket and adapter server."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from platforms.targets.base import (
    BadRelease,
    DeployOutcome,
    Release,
    Served,
    Target,
    TargetContext,
    TargetError,
    open_target,
)
from tests.lab.releases import WEIGHTS, make_release, weights
from tests.lab.sshd import ssh_server
from tests.lab.vllm import BASE, vllm_server


@dataclass
class Place:
    """One kind of target: how it is opened anew, and what it gives to whoever asks for a model, past our own code."""

    open: Callable[[], Target]
    seen: Callable[[str], bytes | None]
    hurt: Callable[[str], object]  # changes or removes the weights of what serves


def folder_place(root: Path, opened: Callable[[], Target]) -> Place:
    def file(model: str) -> Path:
        return root / model / "current" / WEIGHTS

    def hurt(model: str) -> None:
        place = file(model).resolve()
        place.chmod(0o644)
        place.write_bytes(b"changed by hand")

    return Place(opened, lambda model: file(model).read_bytes() if file(model).exists() else None, hurt)


@pytest.fixture(params=["directory", pytest.param("ssh", marks=pytest.mark.services), "s3", "vllm"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    context = TargetContext(Path, lambda name: f"the secret {name}")

    def opener(kind: str, options: dict[str, str]) -> Callable[[], Target]:
        return lambda: open_target("there", kind, options, context)

    with ExitStack() as stack:
        match request.param:
            case "directory":
                yield folder_place(tmp_path / "models", opener("directory", {"path": str(tmp_path / "models")}))
            case "ssh":
                server = stack.enter_context(ssh_server())
                yield folder_place(server.folder / "models", opener("ssh", server.options))
            case "s3":
                yield bucket_place(request.getfixturevalue("moto_s3"), opener)
            case _:
                served = stack.enter_context(vllm_server())
                path = tmp_path / "adapters"
                options = {"url": f"http://127.0.0.1:{served.port}", "base": BASE, "path": str(path)}
                yield folder_place(path, opener("vllm", options))


def bucket_place(server: Any, opener: Callable[[str, dict[str, str]], Callable[[], Target]]) -> Place:
    import json

    options = {key: value for key, value in server.options(prefix="served/").items() if key != "create_only"}
    client, bucket = server.client(), options["bucket"]

    def folder(model: str) -> str | None:
        try:
            pointer = client.get_object(Bucket=bucket, Key=f"served/{model}/current.json")["Body"].read()
        except client.exceptions.NoSuchKey:
            return None
        return str(json.loads(pointer)["folder"])

    def seen(model: str) -> bytes | None:
        found = folder(model)
        return None if found is None else bytes(client.get_object(Bucket=bucket, Key=found + WEIGHTS)["Body"].read())

    return Place(
        opener("s3", options), seen, lambda model: client.delete_object(Bucket=bucket, Key=f"{folder(model)}{WEIGHTS}")
    )


def bytes_of(release: Release) -> bytes:
    return (release.folder / WEIGHTS).read_bytes()


def test_nothing_serves_before_the_first_deployment(place: Place) -> None:
    assert place.open().read("ufm") == Served()
    assert place.seen("ufm") is None


def test_a_deployed_version_serves_whole_and_every_opened_target_says_so(place: Place, tmp_path: Path) -> None:
    release = make_release(tmp_path, 1, more={"tokenizer/vocab.json": b"{}"})
    done = place.open().deploy(release)
    assert (done.outcome, done.version) == (DeployOutcome.SERVING, 1)
    assert place.open().read("ufm", deep=True) == Served(1, release.digest, proven=True)
    assert place.seen("ufm") == bytes_of(release)


def test_the_same_version_twice_changes_nothing(place: Place, tmp_path: Path) -> None:
    release = make_release(tmp_path, 1)
    place.open().deploy(release)
    before = place.open().read("ufm")
    assert place.open().deploy(release).outcome is DeployOutcome.SERVING
    assert place.open().read("ufm") == before


def test_a_newer_version_takes_its_place_and_gives_it_back(place: Place, tmp_path: Path) -> None:
    first, second = make_release(tmp_path, 1), make_release(tmp_path, 2)
    target = place.open()
    target.deploy(first)
    target.deploy(second)
    assert target.read("ufm") == Served(2, second.digest, proven=True, before=(1,))
    assert place.seen("ufm") == bytes_of(second)
    for _ in range(2):  # the second time there is nothing left to do
        back = target.go_back("ufm", 2)
        assert (back.outcome, back.version) == (DeployOutcome.SERVING, 1)
        assert target.read("ufm") == Served(1, first.digest, proven=True)
        assert place.seen("ufm") == bytes_of(first)


def test_a_version_that_was_left_can_be_deployed_again(place: Place, tmp_path: Path) -> None:
    first, second = make_release(tmp_path, 1), make_release(tmp_path, 2)
    target = place.open()
    for release in (first, second):
        target.deploy(release)
    target.go_back("ufm", 2)
    assert target.deploy(second).outcome is DeployOutcome.SERVING
    assert place.seen("ufm") == bytes_of(second)


def test_without_a_version_before_there_is_no_way_back(place: Place, tmp_path: Path) -> None:
    target = place.open()
    target.deploy(make_release(tmp_path, 1))
    with pytest.raises(TargetError, match="no version before 1"):
        target.go_back("ufm", 1)
    assert target.read("ufm").version == 1


def test_three_releases_are_kept(place: Place, tmp_path: Path) -> None:
    target = place.open()
    for version in range(1, 6):
        assert target.deploy(make_release(tmp_path, version)).outcome is DeployOutcome.SERVING
    assert target.read("ufm").before == (4, 3)
    assert target.go_back("ufm", 5).version == 4
    assert target.go_back("ufm", 4).version == 3
    with pytest.raises(TargetError, match="no version before 3"):
        target.go_back("ufm", 3)


def test_models_do_not_see_each_other(place: Place, tmp_path: Path) -> None:
    target = place.open()
    mine, other = make_release(tmp_path, 1), make_release(tmp_path, 4, model="ucm")
    target.deploy(mine)
    target.deploy(other)
    assert (target.read("ufm").version, target.read("ucm").version) == (1, 4)
    assert (place.seen("ufm"), place.seen("ucm")) == (bytes_of(mine), bytes_of(other))


def test_a_file_that_changed_on_the_way_is_refused_and_the_old_version_serves(place: Place, tmp_path: Path) -> None:
    first, second = make_release(tmp_path, 1), make_release(tmp_path, 2)
    target = place.open()
    target.deploy(first)
    changed = weights(b"weights of ufm 9")
    assert len(changed) == len(bytes_of(second))
    (second.folder / WEIGHTS).write_bytes(changed)
    with pytest.raises(BadRelease):
        target.deploy(second)
    assert target.read("ufm") == Served(1, first.digest, proven=True)
    assert place.seen("ufm") == bytes_of(first)


def test_other_bytes_under_a_number_that_serves_are_refused(place: Place, tmp_path: Path) -> None:
    first = make_release(tmp_path / "one", 1)
    other = make_release(tmp_path / "two", 1, data=b"other weights")
    target = place.open()
    target.deploy(first)
    with pytest.raises(BadRelease):
        target.deploy(other)
    assert place.seen("ufm") == bytes_of(first)


def test_a_deep_look_finds_what_was_changed_there(place: Place, tmp_path: Path) -> None:
    target = place.open()
    target.deploy(make_release(tmp_path, 1))
    place.hurt("ufm")
    assert target.read("ufm").damaged == ()
    (damage,) = target.read("ufm", deep=True).damaged
    assert WEIGHTS in damage
