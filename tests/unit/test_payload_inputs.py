"""A lane's inputs: one tree in the store, fetched for a session."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import pytest

from jobs.payload.clock import Clock
from jobs.payload.lane.failure import Failure
from jobs.payload.lane.prepare import fetch_inputs
from jobs.payload.store.transport import DirectoryTransport
from jobs.payload.store.tree import Entry, Tree, encode_tree, sweep_trees, tree_prefix
from tests.lab.launch_file import LANE, launch_in

if TYPE_CHECKING:
    from pathlib import Path

    from jobs.payload.lane.launch import Launch

WORDS = b"first words"
DIGEST = hashlib.sha256(WORDS).hexdigest()
LISTING = encode_tree("input", Tree((Entry("words", "file", DIGEST, len(WORDS)),), (DIGEST,)))
PREFIX = tree_prefix("input", hashlib.sha256(LISTING).hexdigest())


@pytest.fixture
def store(tmp_path: Path) -> DirectoryTransport:
    """A store with the tree of one small file."""
    made = DirectoryTransport(tmp_path / "store")
    made.put(f"{PREFIX}/{DIGEST}", WORDS)
    made.put(f"{PREFIX}/listing.json", LISTING)
    return made


def launch(folder: Path) -> Launch:
    """A session that has an hour left."""
    trees = {"input.tests": PREFIX, "wheels": "wheels/0"}
    return launch_in(folder, lanes=[{**LANE, "trees": trees}], deadline=Clock().now() + 3_600)


def test_an_input_is_a_folder_that_stays_until_the_session_ends(tmp_path: Path, store: DirectoryTransport) -> None:
    session = launch(tmp_path)
    found = fetch_inputs(session, session.lanes[0], store)
    assert found == {"SCHED_INPUT_TESTS": str(session.cache / PREFIX.replace("/", "-"))}
    words = session.cache / PREFIX.replace("/", "-") / "words"
    assert words.read_bytes() == WORDS
    now = Clock().now()
    assert sweep_trees(session.cache, now + 3_500) == []
    assert sweep_trees(session.cache, now + 3_700) == [words.parent.name]
    assert not words.exists()


def test_what_is_damaged_in_the_store_is_told_with_what_sends_it_again(
    tmp_path: Path, store: DirectoryTransport
) -> None:
    store.put(f"{PREFIX}/{DIGEST}", b"other words")
    session = launch(tmp_path)
    with pytest.raises(Failure, match=r"tests .*: piece 0 .*schedctl queue update ufm --input tests") as caught:
        fetch_inputs(session, session.lanes[0], store)
    assert caught.value.error_class == "store"
