"""A platform that is made when it is needed, and made anew when the files it was made from change."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from platforms.artifacts.s3.client import FreshCredentials
from platforms.base import Capabilities, Misconfigured, Platform
from platforms.record_file import fingerprint
from platforms.wrap import Guarded, LatePlatform
from tests.lab.fake import FakeCloud, FakePlatform


def replace_whole(path: Path, text: str) -> None:
    """Exchange a file as editors and secret managers do, by a new one of the same length and time."""
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    os.utime(fresh, ns=(1, 1))
    fresh.replace(path)


def become_pipe(path: Path) -> None:
    """Put what waits for ever in place of a file."""
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize(
    "change",
    [
        lambda path: replace_whole(path, "new-token"),
        lambda path: path.write_text("longer-token"),
        lambda path: path.chmod(0o640),
        lambda path: path.unlink(),
        become_pipe,
    ],
)
def test_whatever_happens_to_a_file_is_seen_and_a_touch_is_not(
    tmp_path: Path, change: Callable[[Path], object]
) -> None:
    path = tmp_path / "token"
    replace_whole(path, "old-token")
    before = fingerprint([path])
    path.touch()
    assert fingerprint([path]) == before
    change(path)
    assert fingerprint([path]) != before
    assert "token" not in fingerprint([path])


def test_a_platform_that_cannot_be_made_says_why_with_every_call_and_works_when_it_can() -> None:
    problems: list[Exception] = [
        Misconfigured("kaggle", "log in", "no credentials found"),
        PermissionError(13, "Permission denied", "/etc/token"),
        RuntimeError("anything"),
    ]

    def make() -> Platform:
        if problems:
            raise problems[0]
        return FakePlatform(FakeCloud())

    late = LatePlatform("kaggle", make, lambda: "same")
    platform = Guarded(late, "pool", stopwatch=lambda: 0.0, note=lambda *_: None)
    for why in ("no credentials found", "Permission denied", "anything"):
        assert platform.capabilities == Capabilities()
        with pytest.raises(Misconfigured, match=why):
            platform.find(["one"], 5)
        with pytest.raises(Misconfigured, match=why):
            late.open()
        problems.pop(0)
    assert platform.find(["one"], 5) == {}
    assert platform.capabilities == FakePlatform(FakeCloud()).capabilities


def test_a_platform_is_made_anew_when_its_files_change_or_when_asked_and_never_else() -> None:
    made: list[Platform] = []
    mark = ["a"]

    def make() -> Platform:
        if mark[0] == "broken":
            raise Misconfigured("kaggle", "log in", "not yet whole")
        made.append(FakePlatform(FakeCloud()))
        return made[-1]

    late = LatePlatform("kaggle", make, lambda: mark[0])
    assert late.open() == late.open() == "a"
    late.find(["one"], 5)
    assert len(made) == 1
    mark[0] = "b"
    late.find(["one"], 5)
    assert len(made) == 2
    late.open(reload=True)
    assert len(made) == 3
    mark[0] = "broken"
    with pytest.raises(Misconfigured, match="not yet whole"):
        late.find(["one"], 5)  # the credentials before were taken away: they are not used any more
    assert late.capabilities == made[-1].capabilities
    mark[0] = "b"
    late.find(["one"], 5)
    assert len(made) == 4


def test_credentials_of_a_client_are_looked_up_anew_when_their_file_changes() -> None:
    mark, asked = ["a"], []

    class Found:
        """Botocore's credentials."""

        def get_frozen_credentials(self) -> str:
            """Return what signs."""
            return f"frozen {mark[0]}"

    def look_up() -> Any:
        asked.append(mark[0])
        return None if mark[0] == "gone" else Found()

    fresh = FreshCredentials(look_up, lambda: mark[0])
    assert [fresh.get_frozen_credentials() for _ in range(3)] == ["frozen a"] * 3
    mark[0] = "b"
    assert fresh.get_frozen_credentials() == "frozen b"
    mark[0] = "gone"
    assert fresh.get_frozen_credentials() is None
    assert asked == ["a", "b", "gone"]


def test_a_client_signs_with_the_keys_that_its_file_holds_now(tmp_path: Path) -> None:
    pytest.importorskip("boto3", reason="boto3 is not installed")
    from platforms.artifacts.s3.client import connect

    path = tmp_path / "aws"

    def write(key: str) -> None:
        path.write_text(f"[default]\naws_access_key_id = {key}\naws_secret_access_key = secret\n")

    write("AKIAFIRST")
    client = connect("s3", region="us-east-1", credentials=str(path))

    def signed() -> str:
        return cast("str", client.generate_presigned_url("get_object", Params={"Bucket": "b", "Key": "k"}))

    assert "AKIAFIRST" in signed()
    write("AKIASECOND")
    assert "AKIASECOND" in signed()
    path.unlink()
    with pytest.raises(Exception, match="could not be found"):
        signed()
    write("AKIATHIRD")
    assert "AKIATHIRD" in signed()
