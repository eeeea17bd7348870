"""Test sets of evaluations, and the leak check: items that a version or its ancestors were trained on.

Reading training data takes a minute per million texts, and the index of the items some hundred megabytes, so the daemon
uses a separate process for it.
"""

import json
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from sqlalchemy import Connection

from jobs.corpus.errors import CorpusError, Findings
from jobs.corpus.folder import CorpusFolder
from jobs.corpus.leaks import OF_EXCERPTS, SHARED, ItemIndex, text_of
from jobs.corpus.manifest import CorpusManifest, rows_of
from jobs.corpus.options import CorpusOptions
from jobs.corpus.read.sources import Files, Loader
from jobs.payload.scorers.items import Item, ItemSet, items_at
from jobs.payload.store.manifest import sha256_file, split_key
from jobs.payload.store.tree import LIMITS, LISTING, fetch_tree, parse_listing, remove_tree, tree_prefix
from jobs.payload.trainers.tuning.data.reader import files
from jobs.problem import Refusal
from jobs.spec import HELD_OUT, TEST_SET, Input, JobSpec
from platforms.artifacts.base import BlobStore, StoreUnreachable
from scheduler.service.faults.isolation import why as error_text
from scheduler.service.launch.inputs import KIND, bring, put_tree
from scheduler.service.outside.child_process import ChildFailed, call_in_child
from scheduler.service.outside.ports import Ports
from scheduler.store import events, generations, jobs, trees, versions
from scheduler.store.engine import Database
from scheduler.store.errors import StoreFailure
from scheduler.store.evaluations import EvaluationJob
from scheduler.store.versions import Version

_SECONDS_MAX = 6 * 3_600.0
_LISTED = 20  # reported items of a corpus, with their positions
_CHANGES = 1_000  # keys of a job's definition that name corpora or inputs
_ABSENT = "corpus {} is not on this machine"
_UNKNOWN = "it was trained on no corpus and on no input"
_INPUT_BYTES_MAX = 4 << 30
_WEIGHTS = (".safetensors", ".gguf", ".bin", ".pt", ".pth", ".onnx")
_HELD_OUT_FILE = re.compile(r"(?i)(held.?out|valid|eval|test)")

Trained = str | Input
"""The training data of a version: the name of a corpus, or an input; "" if it is unknown."""
Place = CorpusFolder | Path | str
"""The folder of a corpus, the folder of an input's files, or the reason why the data are not compared."""


def lineage(tx: Connection, version: Version) -> list[tuple[str, Trained]]:
    """Return (version, data) for the version and its ancestors and each of their corpora and inputs."""
    result: list[tuple[str, Trained]] = []
    key: str | None = version.checkpoint
    visited: set[str] = set()
    while key is not None and key not in visited and (parts := split_key(key)):
        visited.add(key)
        job, step, attempt = parts
        ancestor = versions.of_checkpoint(tx, key)
        began = generations.of_attempt(tx, job, attempt)
        name = ancestor.name if ancestor else f"{job} at step {step}"
        result += [(name, data) for data in _data_of(tx, job, ancestor) or [""]]
        key = ancestor.parent_key if ancestor else began.parent_key if began else None
    return result


def _data_of(tx: Connection, job: str, version: Version | None) -> list[Trained]:
    """Return all corpora and inputs that a job used until the version was created; without one, until now."""
    record = jobs.find(tx, job)
    mixture = record.spec.mixture if record is not None else None
    corpora = {version.corpus} if version else {mixture.corpus if mixture else None}
    inputs = {one.digest: one for one in record.spec.inputs} if record is not None else {}
    for event in events.tail(tx, limit=_CHANGES, kinds=("job.changed",), subject=job):
        if version is None or event.at <= version.created_at:
            for values in (event.data.get("old"), event.data.get("new")):
                changed = values.get("mixture") if isinstance(values, Mapping) else None
                corpora.add(changed.get("corpus") if isinstance(changed, Mapping) else None)
                earlier = values.get("inputs") if isinstance(values, Mapping) else None
                inputs |= {one["digest"]: Input(**one) for one in earlier or ()}
    return [*sorted(corpus for corpus in corpora if corpus), *(one for digest, one in inputs.items() if digest)]


def places_of(trained: Sequence[tuple[str, Trained]], folder: CorpusFolder | None) -> dict[Trained, Place]:
    """Return the folder of each data set of :func:`lineage`, or why it is not compared, such as unfetched inputs."""
    here = folder.versions() if folder is not None else []

    def place_of(data: Trained) -> Place:
        if isinstance(data, Input):
            return f"the daemon compares its input {data.name} when it judges a version"
        return folder if folder is not None and data in here else _ABSENT.format(data) if data else _UNKNOWN

    return {data: place_of(data) for _, data in trained}


def leaks_in(ports: Ports, evaluation: EvaluationJob, version: Version) -> dict[str, Any]:
    """Return the leaks of an evaluation's test set, see :func:`leaks_of`. Raises what :func:`items_of` raises."""
    with ports.database.read() as tx:
        trained = lineage(tx, version)
        test_set = next(one for one in jobs.get(tx, evaluation.job).spec.inputs if one.name == TEST_SET)
    items = items_of(ports, test_set).items
    held_out = test_set.source == HELD_OUT
    shared = OF_EXCERPTS if held_out else SHARED
    places = places_of(trained, ports.corpora() if ports.corpora is not None else None)
    with ExitStack() as fetched:
        places |= {one: _fetched_input(ports, one, fetched) for one in places if isinstance(one, Input)}
        if all(isinstance(place, str) for place in places.values()):
            return leaks_of(items, trained, places)
        try:
            leaks: dict[str, Any] = call_in_child("leak check", _SECONDS_MAX, leaks_of, items, trained, places, shared)
        except ChildFailed as error:
            return leaks_of(items, trained, dict.fromkeys(places, str(error)))
    return {**leaks, "held_out": held_out}


def _fetched_input(ports: Ports, wanted: Input, fetched: ExitStack) -> Path | str:
    """Return the folder with an input's files, which ``fetched`` removes, or why it is not compared."""
    try:
        listing = ports.artifacts.read(f"{tree_prefix(wanted.kind, wanted.digest)}/{LISTING}", LIMITS.listing_bytes)
        entries, _ = parse_listing(listing, LIMITS)
        if any(entry.path.lower().endswith(_WEIGHTS) for entry in entries):
            return f"its input {wanted.name} holds the weights of a model"
        if sum(entry.bytes for entry in entries) > _INPUT_BYTES_MAX:
            return f"its input {wanted.name} has more than {_INPUT_BYTES_MAX >> 30} GiB"
        return fetched.enter_context(_files_of(ports, wanted))
    except (StoreFailure, StoreUnreachable):
        raise  # to be tried again
    except Exception as error:  # noqa: BLE001 - an unreadable input must not prevent the verdict
        return f"its input {wanted.name} cannot be read: {error_text(error)}"


def leaks_of(
    items: Mapping[str, Item],
    trained: Sequence[tuple[str, Trained]],
    places: Mapping[Trained, Place],
    shared: float = SHARED,
) -> dict[str, Any]:
    """Return the items that occur in the data of :func:`lineage`, in plain JSON types.

    ``share`` is None if nothing could be compared; ``leaked`` has the IDs of all items that were seen. Data that were
    not compared have ``why``. :func:`places_of` explains ``places``; ``shared`` is the share of an item in a text.
    """
    compared = not all(isinstance(place, str) for place in places.values())
    index = ItemIndex({name: text_of(item.task) for name, item in items.items()} if compared else {}, shared)
    leaked: set[str] = set()
    rows: list[dict[str, Any]] = []
    sentences: list[str] = []
    for data, place in places.items():
        names = [name for name, other in trained if other == data]
        where = {"input": data.name, "source": data.source} if isinstance(data, Input) else {"corpus": data}
        row: dict[str, Any] = {**where, "versions": names}
        rows.append(row)
        who, why = " and ".join(names), place
        try:
            seen_in = None if isinstance(place, str) else index.seen_in(_texts(data, place))
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
        of_what = f"input {data.name}" if isinstance(data, Input) else f"corpus {data}"
        sentences.append(f"{who} saw {len(seen_in)} of {len(items)} items{by_kind} in {of_what}")
    share = len(leaked) / len(items) if any("seen" in row for row in rows) else None
    counts = {"items": len(items), "seen": len(leaked), "share": share}
    return {**counts, "leaked": sorted(leaked), "sentences": sentences, "corpora": rows}


def _texts(data: Trained, place: CorpusFolder | Path) -> Iterator[tuple[str, str]]:
    """Yield source and text of all training texts; a mixture only repeats some of those of a corpus.

    For an input, these are the files that our trainer reads, or else all files whose names do not say held out.
    """
    if isinstance(place, CorpusFolder):
        corpus = place.open(str(data))
        for shard in corpus.train:
            for row in rows_of(corpus.folder, shard):
                yield row["source"], row["text"]
        return
    loader = Loader(Findings(), CorpusOptions(), place)
    for path in files(place, "train-*") or [place]:
        for document in loader.load(Files(path)):
            if not _HELD_OUT_FILE.match(Path(document.source).name):
                yield document.source, document.text


# Test sets: the one that a definition names, or one made of the held-out texts of a corpus.
ITEMS = 300  # most items made of a corpus; a file of items may have more
TEXT_CHARACTERS = 1_000  # of an item; longer texts are cut


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
    with _files_of(ports, test_set) as folder:
        return items_at(folder)


@contextmanager
def _files_of(ports: Ports, wanted: Input) -> Iterator[Path]:
    """Yield a temporary folder with the files of an input. Raises BadListing, StoreError, OSError."""
    digest = wanted.digest
    if wanted.kind != KIND:
        bring(ports, wanted)
        with ports.database.read() as tx:
            digest = trees.copies(tx)[wanted.digest]
    with tempfile.TemporaryDirectory(prefix="schedctl-set-") as scratch:
        target = Path(scratch) / wanted.name
        try:
            fetch_tree(_Fetching(ports.artifacts), tree_prefix(KIND, digest), target)
            yield target
        finally:
            remove_tree(target)


def _items(corpus: CorpusManifest) -> Iterator[dict[str, str]]:
    """Yield the first held-out texts as items, ordered by their digests, which is a random order."""
    for row in islice(rows_of(corpus.folder, corpus.held_out), ITEMS):
        domain = row["domains"][0] if row["domains"] else ""
        text = row["text"][:TEXT_CHARACTERS]
        yield {"id": row["id"], "cluster": str(row["cluster"]), "domain": domain, "text": text}
