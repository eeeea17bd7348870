"""Test sets of evaluations, and the leak check: items that a version or its ancestors were trained on.

Reading a corpus takes a minute per million texts, and the index of the items some hundred megabytes, so the daemon uses
a separate process for it.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from sqlalchemy import Connection

from jobs.corpus.errors import CorpusError
from jobs.corpus.folder import CorpusFolder
from jobs.corpus.leaks import OF_EXCERPTS, SHARED, ItemIndex, text_of
from jobs.corpus.manifest import CorpusManifest, rows_of
from jobs.payload.scorers.items import Item, ItemSet, items_at
from jobs.payload.store.manifest import sha256_file, split_key
from jobs.payload.store.tree import fetch_tree, remove_tree, tree_prefix
from jobs.problem import Refusal
from jobs.spec import HELD_OUT, TEST_SET, Input, JobSpec
from platforms.artifacts.base import BlobStore
from scheduler.service.launch.inputs import KIND, bring, put_tree
from scheduler.service.outside.child_process import ChildFailed, call_in_child
from scheduler.service.outside.ports import Ports
from scheduler.store import events, generations, jobs, trees, versions
from scheduler.store.engine import Database
from scheduler.store.evaluations import EvaluationJob
from scheduler.store.versions import Version

_SECONDS_MAX = 6 * 3_600.0
_LISTED = 20  # reported items of a corpus, with their positions
_CHANGES = 1_000  # keys of a job's definition that name corpora
_ABSENT = "corpus {} is not on this machine"
_NO_CORPUS = "it was trained on no corpus, and its inputs are not compared"


def lineage(tx: Connection, version: Version) -> list[tuple[str, str]]:
    """Return (version, corpus) for the version and its ancestors and each of their corpora; corpus "" if unknown."""
    result: list[tuple[str, str]] = []
    key: str | None = version.checkpoint
    visited: set[str] = set()
    while key is not None and key not in visited and (parts := split_key(key)):
        visited.add(key)
        job, step, attempt = parts
        ancestor = versions.of_checkpoint(tx, key)
        began = generations.of_attempt(tx, job, attempt)
        name = ancestor.name if ancestor else f"{job} at step {step}"
        result += [(name, corpus) for corpus in sorted(_corpora(tx, job, ancestor)) or [""]]
        key = ancestor.parent_key if ancestor else began.parent_key if began else None
    return result


def _corpora(tx: Connection, job: str, version: Version | None) -> set[str]:
    """Return all corpora that a job was pinned to until the version was created."""
    record = jobs.find(tx, job)
    mixture = record.spec.mixture if record is not None else None
    corpora = {version.corpus} if version else {mixture.corpus if mixture else None}
    for event in events.tail(tx, limit=_CHANGES, kinds=("job.changed",), subject=job):
        if version is None or event.at <= version.created_at:
            for values in (event.data.get("old"), event.data.get("new")):
                changed = values.get("mixture") if isinstance(values, Mapping) else None
                corpora.add(changed.get("corpus") if isinstance(changed, Mapping) else None)
    return {corpus for corpus in corpora if corpus}


def leaks_in(ports: Ports, evaluation: EvaluationJob, version: Version) -> dict[str, Any]:
    """Return the leaks of an evaluation's test set, see :func:`leaks_of`. Raises what :func:`items_of` raises."""
    with ports.database.read() as tx:
        trained = lineage(tx, version)
        test_set = next(one for one in jobs.get(tx, evaluation.job).spec.inputs if one.name == TEST_SET)
    folder = ports.corpora() if ports.corpora is not None else None
    items = items_of(ports, test_set).items
    if not folder or {corpus for _, corpus in trained}.isdisjoint(folder.versions()):
        return leaks_of(items, trained, None)
    held_out = test_set.source == HELD_OUT
    shared = OF_EXCERPTS if held_out else SHARED
    try:
        leaks: dict[str, Any] = call_in_child("leak check", _SECONDS_MAX, leaks_of, items, trained, folder, shared)
    except ChildFailed as error:
        return leaks_of(items, trained, None, failed=str(error))
    return {**leaks, "held_out": held_out}


def leaks_of(
    items: Mapping[str, Item],
    trained: Sequence[tuple[str, str]],
    folder: CorpusFolder | None,
    shared: float = SHARED,
    failed: str = "",
) -> dict[str, Any]:
    """Return the items that occur in the corpora of :func:`lineage`, in plain JSON types.

    ``share`` is None if nothing could be compared; ``leaked`` are the ids of all items that were seen. A corpus that
    was not compared has ``why``: it is not in ``folder``, or its reading ``failed``. ``shared`` is the share of an item
    that a text contains.
    """
    here = folder.versions() if folder is not None else []
    index = ItemIndex({name: text_of(item.task) for name, item in items.items()} if here else {}, shared)
    leaked: set[str] = set()
    rows: list[dict[str, Any]] = []
    sentences: list[str] = []
    for corpus in dict.fromkeys(corpus for _, corpus in trained):
        versions_of_it = [name for name, other in trained if other == corpus]
        row: dict[str, Any] = {"corpus": corpus, "versions": versions_of_it}
        rows.append(row)
        who, why = " and ".join(versions_of_it), failed or (_ABSENT.format(corpus) if corpus else _NO_CORPUS)
        try:
            seen_in = index.seen_in(_texts(folder.open(corpus))) if folder is not None and corpus in here else None
        except CorpusError as error:
            seen_in, why = None, str(error)
        if seen_in is None:
            row["why"] = why
            sentences.append(f"{who} not checked: {why}")
            continue
        leaked |= seen_in.keys()
        kinds = Counter(leak["kind"] for leak in seen_in.values())
        row |= {"seen": len(seen_in), "kinds": kinds, "items": dict(islice(seen_in.items(), _LISTED))}
        by_kind = f" ({', '.join(f'{count} {kind}' for kind, count in sorted(kinds.items()))})" if kinds else ""
        sentences.append(f"{who} saw {len(seen_in)} of {len(items)} items{by_kind} in corpus {corpus}")
    share = len(leaked) / len(items) if any("seen" in row for row in rows) else None
    counts = {"items": len(items), "seen": len(leaked), "share": share}
    return {**counts, "leaked": sorted(leaked), "sentences": sentences, "corpora": rows}


def _texts(corpus: CorpusManifest) -> Iterator[tuple[str, str]]:
    """Yield source and text of all training texts; a mixture only repeats some of them."""
    for shard in corpus.train:
        for row in rows_of(corpus.folder, shard):
            yield row["source"], row["text"]


# Test sets: the one that a definition names, or one made of the held-out texts of a corpus.
ITEMS = 300  # most items made of a corpus; a file of items may have more
TEXT_CHARACTERS = 1_000  # of an item; the rest is cut


def set_for(
    spec: JobSpec, database: Database, artifacts: BlobStore, corpora: Callable[[], CorpusFolder] | None, delete_at: int
) -> Input:
    """Return the present test set of a model, stored; it is deleted at ``delete_at`` unless a job names it by then.

    Slow: it may read the held-out texts of a corpus. Raises Refusal, CorpusError, Refused, StoreError, OSError.
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


# Reading the test set of an evaluation from the artifact store.
class _Fetching:
    """Downloads of trees from an artifact store."""

    def __init__(self, artifacts: BlobStore) -> None:
        self._artifacts = artifacts

    def fetch(self, key: str, target: Path) -> str:
        self._artifacts.fetch(key, target)
        return sha256_file(target)


def items_of(ports: Ports, test_set: Input) -> ItemSet:
    """Return the items of a test set, from the only file of records in its folder.

    Raises BadItems, BadListing, StoreError, OSError.
    """
    digest = test_set.digest
    if test_set.kind != KIND:
        bring(ports, test_set)
        with ports.database.read() as tx:
            digest = trees.copies(tx)[test_set.digest]
    with tempfile.TemporaryDirectory(prefix="schedctl-set-") as scratch:
        target = Path(scratch) / "test set"
        try:
            fetch_tree(_Fetching(ports.artifacts), tree_prefix(KIND, digest), target)
            return items_at(target)
        finally:
            remove_tree(target)


def _items(corpus: CorpusManifest) -> Iterator[dict[str, str]]:
    """Yield the first held-out texts as items, ordered by their digests, which is a random order."""
    for row in islice(rows_of(corpus.folder, corpus.held_out), ITEMS):
        domain = row["domains"][0] if row["domains"] else ""
        text = row["text"][:TEXT_CHARACTERS]
        yield {"id": row["id"], "cluster": str(row["cluster"]), "domain": domain, "text": text}
