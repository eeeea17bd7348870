"""A version as a commit of a repository of the Hub: the real client against a stand-in of the Hub's calls."""

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed")
from platforms.publish import publish_on_hub
from platforms.targets.base import TargetError, TargetUnreachable
from tests.lab.dripper import HEAD, Dripper
from tests.lab.hub_writes import TOKEN, HubWrites, hub_that_is_written_to
from tests.lab.releases import WEIGHTS, make_folder

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning", "ignore::ResourceWarning")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HubWrites]:
    with hub_that_is_written_to() as found:
        monkeypatch.setenv("HF_ENDPOINT", found.address)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)  # the stand-in speaks LFS
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_PROGRESS_BARS", True)
        monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "no-token"))
        yield found


def test_a_version_is_a_tagged_commit_of_a_private_repository(hub: HubWrites, tmp_path: Path) -> None:
    one = make_folder(tmp_path / "one", b"first weights", {"LICENSE": b"free"})
    address = publish_on_hub(one, "org/ufm", "ufm@1", TOKEN)
    assert hub.private == {"org/ufm": True}
    assert hub.head("org/ufm") == {path.name: path.read_bytes() for path in one.iterdir()}
    assert address == f"{hub.address}/org/ufm/commit/{hub.tags['v1']}"
    assert list(hub.large) == [next(iter(hub.large))], "weights went as a large file"
    two = make_folder(tmp_path / "two", b"second weights")
    publish_on_hub(two, "org/ufm", "ufm@2", TOKEN)
    assert hub.head("org/ufm")[WEIGHTS] == (two / WEIGHTS).read_bytes()
    assert "LICENSE" not in hub.head("org/ufm"), "what the version has not goes"
    assert hub.files[hub.tags["v1"]][WEIGHTS] == (one / WEIGHTS).read_bytes()


def test_a_branch_is_made_where_one_is_named(hub: HubWrites, tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "one", b"weights")
    publish_on_hub(folder, "org/ufm@trial", "ufm@1", TOKEN)
    assert hub.head("org/ufm") == {}
    assert WEIGHTS in hub.head("org/ufm", "trial")


def test_what_the_hub_refuses_is_told_without_the_token(hub: HubWrites, tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "one", b"weights")
    with pytest.raises(TargetError, match="the Hub answered 401") as refused:
        publish_on_hub(folder, "org/ufm", "ufm@1", "hf_of_somebody_else")
    assert "hf_of" not in str(refused.value)
    assert "HF_TOKEN" in refused.value.remedy
    with pytest.raises(TargetError, match="not the name of a repository"):
        publish_on_hub(folder, "../etc", "ufm@1", TOKEN)
    hub.breaks = True
    with pytest.raises(TargetUnreachable, match="answered 500"):
        publish_on_hub(folder, "org/ufm", "ufm@1", TOKEN)


def test_a_hub_that_is_away_is_told(hub: HubWrites, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(TargetUnreachable, match="Try again"):
        publish_on_hub(make_folder(tmp_path / "one", b"weights"), "org/ufm", "ufm@1", TOKEN)


@pytest.mark.parametrize("first", [HEAD, b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n"], ids=["head", "body"])
def test_a_hub_that_drips_holds_nobody(
    hub: HubWrites, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: bytes
) -> None:
    server = Dripper(first)
    try:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.port}")
        monkeypatch.setattr("platforms.publish._CALLS_SECONDS", 0.5)
        with pytest.raises(TargetUnreachable, match=r"no whole answer within 0\.5"):
            publish_on_hub(make_folder(tmp_path / "one", b"weights"), "org/ufm", "ufm@1", TOKEN)
    finally:
        server.close()
