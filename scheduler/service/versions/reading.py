"""Reading: an evaluation's scores and its test set, out of the artifact store and through the border."""

from __future__ import annotations

import tempfile
from pathlib import Path

from jobs.payload.scorers.items import BadItems, ItemSet, read_items
from jobs.payload.store.listing import BadListing
from jobs.payload.store.manifest import Manifest, blob_key, sha256_file
from jobs.payload.store.tree import fetch_tree, remove_tree, tree_prefix
from jobs.scores import SCORES_BYTES_MAX, Scores, ScoresError, read_scores
from jobs.spec import TEST_SET, Input
from platforms.artifacts.base import BlobStore, Missing
from scheduler.service.launch.inputs import KIND, bring
from scheduler.service.outside.ports import Ports
from scheduler.store import checkpoints, jobs, trees
from scheduler.store.evaluations import EvaluationJob
from scheduler.store.versions import Version

SCORES = "output/scores.jsonl"  # where a command that is run whole leaves it


class NoScores(Exception):
    """An evaluation left nothing that can be judged; the message says what is wrong and what to do."""


class _Fetching:
    """An artifact store as trees are fetched from it."""

    def __init__(self, artifacts: BlobStore) -> None:
        self._artifacts = artifacts

    def fetch(self, key: str, target: Path) -> str:
        self._artifacts.fetch(key, target)
        return sha256_file(target)


def scores_of(ports: Ports, evaluation: EvaluationJob, version: Version) -> Scores:
    """Return what an evaluation says of a version. Raises NoScores, and StoreError where nothing can be told yet."""
    with ports.database.read() as tx:
        record = jobs.find(tx, evaluation.job)
        saved = checkpoints.find(tx, record.checkpoint) if record is not None and record.checkpoint else None
    test_set = next((one for one in record.spec.inputs if one.name == TEST_SET), None) if record else None
    if saved is None or test_set is None:
        raise NoScores(f"{evaluation.job} left no output. See its log: schedctl queue show {evaluation.job}")
    with tempfile.TemporaryDirectory(prefix="schedctl-scores-") as folder:
        scratch = Path(folder)
        try:
            items = _items(ports, test_set, scratch / "set")
            scores = _fetched(ports.artifacts, saved.manifest, scratch / "scores.jsonl")
            with scores.open("rb") as stream:
                expected = {"model": version.model, "checkpoint": version.digest, "test_set": items.digest}
                return read_scores(stream, **expected, items=items.items)
        except (ScoresError, BadItems, BadListing) as error:
            raise NoScores(str(error)) from None
        finally:
            remove_tree(scratch / "set")


def _items(ports: Ports, test_set: Input, target: Path) -> ItemSet:
    """Return the items of a test set: the one file of JSON lines in its folder."""
    digest = test_set.digest
    if test_set.kind != KIND:
        bring(ports, test_set)
        with ports.database.read() as tx:
            digest = trees.copies(tx)[test_set.digest]
    fetch_tree(_Fetching(ports.artifacts), tree_prefix(KIND, digest), target)
    files = sorted(target.glob("*.jsonl"))
    if len(files) != 1:
        names = ", ".join(path.name for path in files[:5]) or "none"
        raise NoScores(f"the test set {test_set.source} must have one file of JSON lines (.jsonl), and has: {names}")
    return read_items(files[0])


def _fetched(artifacts: BlobStore, manifest: Manifest, target: Path) -> Path:
    component = next((part for part in manifest.components if part.name == SCORES), None)
    if component is None:
        raise NoScores(
            f"{manifest.job} wrote no {Path(SCORES).name}. Let its command leave it in the folder that "
            f"SCHED_OUTPUT_DIR names; see its log: schedctl runs logs {manifest.run}"
        )
    if component.bytes > SCORES_BYTES_MAX:
        raise NoScores(f"its scores have {component.bytes:,} bytes, at most {SCORES_BYTES_MAX:,} are read")
    try:
        artifacts.fetch(blob_key(manifest.job, component.sha256), target)
    except Missing:
        raise NoScores(f"the scores of {manifest.job} are gone from the artifact store. Evaluate it again") from None
    if sha256_file(target) != component.sha256:
        raise NoScores(f"the scores of {manifest.job} are damaged in the artifact store. Evaluate it again")
    return target
