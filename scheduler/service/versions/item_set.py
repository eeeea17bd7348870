"""Test sets: the one that a definition names, or one made of what a corpus keeps out of training."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from jobs.corpus.errors import reading
from jobs.corpus.folder import CorpusFolder
from jobs.corpus.manifest import CorpusManifest
from jobs.payload.bounds import read_json
from jobs.payload.scorers.items import BadItems, ItemSet, read_items
from jobs.payload.store.manifest import sha256_file
from jobs.payload.store.tree import fetch_tree, remove_tree, tree_prefix
from jobs.problem import Refusal
from jobs.spec import HELD_OUT, TEST_SET, Input, JobSpec
from platforms.artifacts.base import BlobStore
from scheduler.service.launch.inputs import KIND, bring, put_tree
from scheduler.service.outside.ports import Ports
from scheduler.store import trees
from scheduler.store.engine import Database

ITEMS = 300  # of a corpus; a person who wants more, or others, names a file of items
TEXT_CHARACTERS = 1_000  # of an item, its beginning


def set_for(
    spec: JobSpec, database: Database, artifacts: BlobStore, corpora: Callable[[], CorpusFolder] | None, delete_at: int
) -> Input:
    """Return what a model is evaluated on now, stored; it goes after ``delete_at`` if no job names it by then.

    May take a while: a corpus' held-out texts are read. Raises Refusal, CorpusError, Refused, StoreError,
    OSError.
    """
    wanted = spec.evaluation
    if wanted is None:
        raise Refusal(
            f"the definition of {spec.name} does not say how it is evaluated",
            remedy=f"Add evaluation and gates to it: schedctl queue edit {spec.name}; docs/models.md shows them",
        )
    if wanted.test_set.source != HELD_OUT:
        return wanted.test_set
    corpus = spec.mixture.corpus if spec.mixture else ""
    if not corpus or corpora is None:
        raise Refusal(f"{spec.name} has no corpus yet whose held-out part it could be evaluated on")
    with tempfile.TemporaryDirectory(prefix="schedctl-set-") as scratch:
        folder = Path(scratch) / "files"
        folder.mkdir()
        with (folder / "held-out.jsonl").open("w", encoding="utf-8") as stream:
            for item in _items(corpora().open(corpus)):
                stream.write(json.dumps(item) + "\n")
        packed = put_tree(database, artifacts, folder, KIND, delete_at)
    test_set = Input(TEST_SET, HELD_OUT, revision=corpus)
    return replace(test_set, digest=packed.digest, files=1, bytes=packed.tree.bytes)


# The test set that an evaluation was given, out of the artifact store.
class _Fetching:
    """An artifact store as trees are fetched from it."""

    def __init__(self, artifacts: BlobStore) -> None:
        self._artifacts = artifacts

    def fetch(self, key: str, target: Path) -> str:
        self._artifacts.fetch(key, target)
        return sha256_file(target)


def items_of(ports: Ports, test_set: Input) -> ItemSet:
    """Return the items of a test set: the one file of JSON lines in its folder.

    Raises BadItems, BadListing, StoreError, OSError.
    """
    digest = test_set.digest
    if test_set.kind != KIND:
        bring(ports, test_set)
        with ports.database.read() as tx:
            digest = trees.copies(tx)[test_set.digest]
    with tempfile.TemporaryDirectory(prefix="schedctl-set-") as scratch:
        target = Path(scratch) / "set"
        try:
            fetch_tree(_Fetching(ports.artifacts), tree_prefix(KIND, digest), target)
            files = sorted(target.glob("*.jsonl"))
            if len(files) != 1:
                names = ", ".join(path.name for path in files[:5]) or "none"
                why = f"the test set {test_set.source} must have one file of JSON lines (.jsonl), and has: {names}"
                raise BadItems(why)
            return read_items(files[0])
        finally:
            remove_tree(target)


def _items(corpus: CorpusManifest) -> Iterator[dict[str, str]]:
    """Yield the first held-out texts as items; their order is that of their digests, which is as good as chance."""
    path = corpus.folder / corpus.held_out.name
    with reading(path, "not rows of a corpus"), path.open("rb") as file:
        for line, _ in zip(file, range(ITEMS), strict=False):
            row = read_json(line)
            domain = row["domains"][0] if row["domains"] else ""
            text = row["text"][:TEXT_CHARACTERS]
            yield {"id": row["id"], "cluster": str(row["cluster"]), "domain": domain, "text": text}
