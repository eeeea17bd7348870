"""Checkpoint files: select checkpoints, pin one, copy one out of the store, or export a version."""

import json
import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from sqlalchemy import Connection

from jobs.child_process import OF_A_PERSON, child_environment
from jobs.payload.bounded_file import read_bounded
from jobs.payload.bounds import read_json
from jobs.payload.store.manifest import Manifest, blob_key, sha256_file
from jobs.problem import Refusal
from platforms.artifacts.base import BlobStore
from platforms.targets.base import BadRelease
from platforms.targets.release import SUMS, open_release, seal
from scheduler.service.deploy.deployer import fetch_part, make_release
from scheduler.store import checkpoints, jobs
from scheduler.store.checkpoints import CheckpointRecord
from scheduler.store.versions import Version


def select(tx: Connection, subject: str | None) -> list[CheckpointRecord]:
    """Return good checkpoints: of one job, of one key, or all. Raises UnknownJob, NotFound."""
    if subject is not None and "/" in subject:
        return [checkpoints.get(tx, subject)]
    if subject is not None:
        jobs.get(tx, subject, removed=True)
    return [record for record in checkpoints.everything(tx, subject) if record.state == "good"]


def pull(artifacts: BlobStore, manifest: Manifest, target: Path) -> None:
    """Copy the components of a checkpoint to the new folder ``target``, which appears when all of them are verified.

    Raises Refusal, StoreError, OSError.
    """
    with new_folder(target) as fresh:
        fresh.mkdir()
        for component in manifest.components:
            place = fresh / component.name
            place.parent.mkdir(parents=True, exist_ok=True)
            artifacts.fetch(blob_key(manifest.job, component.sha256), place)
            if sha256_file(place) != component.sha256:
                raise Refusal(
                    f"{component.name} of {manifest.key} is damaged in the store",
                    remedy=f"Copy the one before it: schedctl checkpoints list {manifest.job}",
                )


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Yield a temporary folder that is renamed to ``target`` at the end of the body. Raises Refusal."""
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise Refusal(f"{target} exists already and is not an empty folder", remedy="Name another folder")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as scratch:
        fresh = Path(scratch) / "made"
        yield fresh
        fresh.chmod(0o755)
        fresh.replace(target)


def choose(tx: Connection, job: str, step: int | None) -> Manifest:
    """Return a job's newest good checkpoint, or the one at ``step``. Raises UnknownJob, Refusal."""
    jobs.get(tx, job, removed=True)
    good = [record.manifest for record in checkpoints.everything(tx, job) if record.state == "good"]
    chosen = next((manifest for manifest in good if step is None or manifest.step == step), None)
    if chosen is not None:
        return chosen
    if not good:
        raise Refusal(f"{job} has no good checkpoint yet", remedy=f"See: schedctl checkpoints list {job}")
    steps = ", ".join(str(manifest.step) for manifest in good[:10])
    raise Refusal(f"{job} has no good checkpoint at step {step}, but at {steps}", remedy="Choose one of them")


# Export: a version as a plain folder for other programs, with its release files, a model card and digests.
CARD, FACTS = "README.md", "version.json"
ADAPTER = "adapter_config.json"
_NEEDED = (ADAPTER, "adapter_model.safetensors", "fingerprint.json")  # the last one names the base by its digest
_PROGRAM = Path(__file__).parents[3] / "jobs" / "payload" / "trainers" / "merge.py"
_KEPT = re.compile(rf"{OF_A_PERSON.pattern}|(HF|CUDA|OMP|MKL|OPENBLAS)_[A-Z_]+")
_WORDS_SHOWN = 1_000


class Exported(NamedTuple):
    """The exported files, and the files of the checkpoint that were left out."""

    files: tuple[str, ...]
    left_out: tuple[str, ...]


def is_adapter(manifest: Manifest) -> bool:
    """Return whether a checkpoint is an adapter, which needs its base model."""
    return any(component.name == ADAPTER for component in manifest.components)


def export(
    artifacts: BlobStore,
    version: Version,
    manifest: Manifest,
    card: str,
    facts: Mapping[str, Any],
    target: Path,
    *,
    base: str = "",
    wanted: "Merge | None" = None,
) -> Exported:
    """Export a version to the new folder ``target``, which appears when all files are verified.

    ``base`` is the repository of an adapter's base model, if known. With ``wanted`` both are merged into one model.
    Raises Refusal for a checkpoint without usable weights; StoreError, OSError.
    """

    def add(folder: Path) -> None:
        (folder / CARD).write_text(card, encoding="utf-8")
        (folder / FACTS).write_text(json.dumps(facts, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        # The card names the repository of the base, or nothing: the adapter itself contains a path of the session.
        config = folder / ADAPTER
        adapter = read_json(read_bounded(config)) if config.is_file() else {}
        if "base_model_name_or_path" in adapter:
            document = json.dumps({**adapter, "base_model_name_or_path": base}, indent=2)
            config.write_text(document + "\n", encoding="utf-8")

    with new_folder(target) as work:
        try:
            if wanted is None:
                make_release(artifacts, version, manifest, work, add)
            else:
                merge(artifacts, version, manifest, wanted, work)
                add(work)
                seal(work)
            files = open_release(version.model, version.number, work).files
        except BadRelease as error:
            remedy = f"{error.remedy}. To copy all files unchanged: schedctl models pull {version.name} DIR"
            raise Refusal(f"{version.name} cannot be exported", error.why, remedy) from None
    names = {component.name for component in manifest.components} if wanted is None else set()
    return Exported((*sorted(files), SUMS), tuple(sorted(names - (files.keys() - {CARD, FACTS}))))


# Merging an adapter into its base model, in a Python with torch; torch is not loaded here.
class Merge(NamedTuple):
    """A merge: the folder (or Hub name) of the base model, and a Python with torch, transformers and peft."""

    base: str
    python: str


def merge(artifacts: BlobStore, version: Version, manifest: Manifest, wanted: Merge, folder: Path) -> None:
    """Merge a version's adapter into its base model, in a new folder. It takes minutes, and memory for the base.

    Raises Refusal for a version without an adapter, a different base than in training, and a Python without the
    packages; BadRelease for damaged files; StoreError, OSError.
    """
    parts = [component for component in manifest.components if component.name in _NEEDED]
    if not any(component.name == ADAPTER for component in parts):
        raise Refusal(f"{version.name} is a whole model, not an adapter", remedy="Export it without --merge")
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-adapter-", dir=folder.parent) as scratch:
        for component in parts:
            fetch_part(artifacts, version, manifest.job, component, Path(scratch) / component.name)
        command = [wanted.python, str(_PROGRAM), str(folder), "--base", wanted.base, "--adapter", scratch]
        try:
            environ = child_environment(_KEPT)
            ended = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False, env=environ)
        except OSError as error:
            why = f"{wanted.python} cannot be started: {error.strerror}. Name a Python with torch by --python"
            raise Refusal(f"{version.name} cannot be merged", why) from None
        if ended.returncode:
            message = ended.stderr.replace(scratch, version.name).strip()[-_WORDS_SHOWN:].rpartition("merge: ")[2]
            raise Refusal(f"{version.name} cannot be merged", f"{message or f'status {ended.returncode}'}")
