"""Repositories of the Hub: pinned with every file's digest, downloaded on and on, and believed by nothing else."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jobs.inputs import folder as client
from jobs.inputs.folder import TreeError
from jobs.payload.store import hub
from jobs.payload.store.hub import HubDenied, fetch_repository
from jobs.payload.store.transport import DirectoryTransport
from jobs.payload.store.tree import LIMITS, LISTING, BadListing, parse_listing
from tests.lab.hub import COMMIT, NAME, TOKEN, StandInHub

FILES = {
    "config.json": b'{"a": 1}',
    "empty.txt": b"",
    "sub/weights.bin": os.urandom(5_000),
    "tokens é.json": b"{}",
}


@pytest.fixture
def place() -> Iterator[StandInHub]:
    """A Hub with one small repository."""
    with StandInHub(FILES) as made:
        yield made


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No token of whoever runs this, and no waiting."""
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr(hub, "_WAIT_SECONDS_MAX", 0.0)


@pytest.fixture
def pinned(place: StandInHub, tmp_path: Path) -> Callable[[], str]:
    """Pins the repository and stores its listing; returns the prefix."""

    def run() -> str:
        found = client.pin(f"hf:{NAME}", place.endpoint, "")
        folder = tmp_path / "store" / "hub" / found.digest
        folder.mkdir(parents=True, exist_ok=True)
        (folder / LISTING).write_bytes(found.listing)
        place.seen.sent.clear()
        place.seen.ranges.clear()
        return f"hub/{found.digest}"

    return run


@pytest.fixture
def fetch(tmp_path: Path) -> Callable[[str], Path]:
    """Fetches a repository as a session does."""

    def run(prefix: str) -> Path:
        fetch_repository(DirectoryTransport(tmp_path / "store"), prefix, tmp_path / "cache" / "base")
        return tmp_path / "cache" / "base"

    return run


def content(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_branch_is_pinned_to_its_commit_with_every_files_digest(place: StandInHub) -> None:
    place.habits.busy = 2
    found = client.pin(f"hf:{NAME}@main", place.endpoint, "")
    entries, document = parse_listing(found.listing, LIMITS)
    assert (document["commit"], document["name"], document["endpoint"]) == (COMMIT, NAME, place.endpoint)
    assert [entry.path for entry in entries] == sorted(FILES)
    assert sorted(entry.content.partition(":")[0] == "git" for entry in entries) == [False, True, True, True]
    assert client.pin(f"hf:{NAME}@{COMMIT}", place.endpoint, "").digest == found.digest
    assert not found.at_home


def test_of_a_repository_only_the_files_that_fit_are_pinned_and_fetched(
    place: StandInHub, fetch: Callable[[str], Path], tmp_path: Path
) -> None:
    found = client.pin(f"hf:{NAME}@main#*.json,s*.bin", place.endpoint, "")
    chosen = {path: data for path, data in FILES.items() if path != "empty.txt"}
    assert {entry.path for entry in found.repository.entries} == set(chosen)
    assert found.digest != client.pin(f"hf:{NAME}@main", place.endpoint, "").digest
    folder = tmp_path / "store" / "hub" / found.digest
    folder.mkdir(parents=True)
    (folder / LISTING).write_bytes(found.listing)
    place.seen.asked.clear()
    assert content(fetch(f"hub/{found.digest}")) == chosen
    assert not [path for path in place.seen.asked if path.endswith("empty.txt")]
    with pytest.raises(TreeError, match=r"none of its 4 files is called '\*\.gguf'; it has "):
        client.pin(f"hf:{NAME}@main#*.gguf", place.endpoint, "")


def test_a_download_that_breaks_off_goes_on_by_ranges_and_is_checked(
    place: StandInHub, pinned: Callable[[], str], fetch: Callable[[str], Path]
) -> None:
    prefix = pinned()
    place.habits.cut_after, place.habits.busy, place.habits.expired = 1_000, 2, 2
    folder = fetch(prefix)
    assert content(folder) == FILES
    assert folder.stat().st_mode & 0o222 == 0
    assert place.seen.sent["weights.bin"] == 5_000, "nothing is sent twice"
    assert [asked for asked in place.seen.ranges if asked] == [
        f"bytes={start}-" for start in range(1_000, 5_000, 1_000)
    ]
    asked = place.seen.asked.total()
    fetch(prefix)
    assert place.seen.asked.total() == asked, "what is there is not asked for"


def test_a_download_that_brings_a_byte_at_a_time_is_given_up(
    place: StandInHub, pinned: Callable[[], str], fetch: Callable[[str], Path]
) -> None:
    prefix = pinned()
    place.habits.cut_after = 1
    with pytest.raises(ConnectionError, match="broke off at byte 6 of 8, 6 times"):
        fetch(prefix)


def test_what_a_killed_process_left_is_gone_on_with_and_what_is_wrong_in_it_found(
    place: StandInHub, pinned: Callable[[], str], fetch: Callable[[str], Path], tmp_path: Path
) -> None:
    prefix = pinned()
    left = tmp_path / "cache" / ".base.making" / "files" / "sub"
    left.mkdir(parents=True)
    (left / "weights.bin").write_bytes(FILES["sub/weights.bin"][:3_000])
    fetch(prefix)
    assert place.seen.sent["weights.bin"] == 2_000
    place.seen.sent.clear()
    other = tmp_path / "cache" / ".other.making" / "files" / "sub"
    other.mkdir(parents=True)
    (other / "weights.bin").write_bytes(bytes(3_000))
    fetch_repository(DirectoryTransport(tmp_path / "store"), prefix, tmp_path / "cache" / "other")
    assert content(tmp_path / "cache" / "other") == FILES
    assert place.seen.sent["weights.bin"] == 7_000, "on from what was there, and then all of it"


def test_a_server_that_knows_no_ranges_is_asked_for_all_of_it(
    place: StandInHub, pinned: Callable[[], str], fetch: Callable[[str], Path], tmp_path: Path
) -> None:
    prefix = pinned()
    left = tmp_path / "cache" / ".base.making" / "files" / "sub"
    left.mkdir(parents=True)
    (left / "weights.bin").write_bytes(bytes(3_000))
    place.habits.ignores_ranges = True
    assert content(fetch(prefix)) == FILES
    place.habits.cut_after = 1_000
    with pytest.raises(ConnectionError, match="broke off at byte 1000 of 5000, 6 times"):
        fetch_repository(DirectoryTransport(tmp_path / "store"), prefix, tmp_path / "cache" / "never")


@pytest.mark.parametrize(
    ("habit", "error", "why"),
    [
        ({"garbage": True}, BadListing, "does not have the digest that was pinned"),
        ({"longer": True}, ConnectionError, "bytes were pinned"),
        ({"gated": True}, HubDenied, "Put a token that may read it into HF_TOKEN"),
        ({"expired": 99}, ConnectionError, "may have expired"),
        ({"busy": 99}, ConnectionError, "the Hub answers 429"),
        ({"leads_to": "file://"}, OSError, "redirects to file://"),
    ],
)
def test_what_the_hub_does_otherwise_is_told_and_nothing_of_it_kept(
    place: StandInHub,
    pinned: Callable[[], str],
    fetch: Callable[[str], Path],
    habit: dict[str, object],
    error: type[Exception],
    why: str,
    tmp_path: Path,
) -> None:
    prefix = pinned()
    for name, value in habit.items():
        setattr(place.habits, name, value)
    with pytest.raises(error, match=why):
        fetch(prefix)
    assert not (tmp_path / "cache" / "base").exists()


def test_the_token_is_shown_to_the_hub_alone(
    place: StandInHub, pinned: Callable[[], str], fetch: Callable[[str], Path], tmp_path: Path
) -> None:
    prefix = pinned()
    place.habits.gated = True
    with pytest.raises(TreeError, match="accept its terms"):
        client.pin(f"hf:{NAME}", place.endpoint, "")
    found = client.pin(f"hf:{NAME}", place.endpoint, TOKEN)
    assert found.at_home
    assert TOKEN.encode() not in found.listing
    target = tmp_path / "cache" / "gated"
    fetch_repository(DirectoryTransport(tmp_path / "store"), prefix, target, token=TOKEN)
    assert content(target) == FILES
    assert {shown for host, shown in place.seen.shown if host == "store"} == {""}


@pytest.mark.parametrize(
    ("source", "files", "pages_at", "why"),
    [
        ("hf:org/none", FILES, "", "the Hub has no org/none at main"),
        (f"hf:{NAME}@v9", FILES, "", "at v9"),
        (f"hf:{NAME}", {}, "", "it has no files"),
        (f"hf:{NAME}", {"../../etc/passwd": b"x"}, "", "not a path inside the folder"),
        (f"hf:{NAME}", {"a": b"x", "a/b": b"y"}, "", "lies in what is a file"),
        (f"hf:{NAME}", FILES, "http://127.0.0.2:9", "goes on at another place"),
    ],
)
def test_odd_answers_of_the_hub_are_refused_when_the_job_is_added(
    place: StandInHub, source: str, files: dict[str, bytes], pages_at: str, why: str
) -> None:
    place.files, place.habits.pages_at = dict(files), pages_at
    with pytest.raises(TreeError, match=why):
        client.pin(source, place.endpoint, "")


@pytest.mark.parametrize(
    "source",
    [
        "hf:o/n?x=1",
        "hf:../../x/y",
        "hf:o/n\nx",
        "hf:o/n/p",
        "hf:o/..",
        "hf:o/n@v 1",
        "hf:o/n@a/../b",
        "hf:o\0/n",
        "hf:",
    ],
)
def test_an_odd_name_is_refused_before_the_hub_is_asked(place: StandInHub, source: str) -> None:
    with pytest.raises(TreeError, match="names no repository of the Hub"):
        client.pin(source, place.endpoint, TOKEN)
    assert not place.seen.sent


def test_a_hub_out_of_reach_is_told(place: StandInHub) -> None:
    with pytest.raises(TreeError, match=r"the Hub cannot be asked: .*6 times"):
        client.pin(f"hf:{NAME}", "http://127.0.0.1:9", "")


def test_a_listing_without_end_is_given_up(place: StandInHub, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of its pages may come in time: a thousand of them would hold a command for hours."""
    monkeypatch.setattr(client, "_LISTING_SECONDS", -1)
    with pytest.raises(TreeError, match="the Hub's listing takes more than -1 s"):
        client.pin(f"hf:{NAME}", place.endpoint, "")
