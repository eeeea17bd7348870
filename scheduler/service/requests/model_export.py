"""Export: a version as a plain folder that others can use. What is served of it, a card, and digests."""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from jobs.child_process import OF_A_PERSON, child_environment
from jobs.payload.bounded_file import read_bounded
from jobs.payload.bounds import read_json
from jobs.payload.store.manifest import Manifest
from jobs.problem import Refusal
from platforms.artifacts.base import BlobStore
from platforms.targets.base import BadRelease
from platforms.targets.release import SUMS, open_release, seal
from scheduler.service.deploy.release_files import fetch_part, make_release
from scheduler.store.versions import Version

CARD, FACTS = "README.md", "version.json"
ADAPTER = "adapter_config.json"
_NEEDED = (ADAPTER, "adapter_model.safetensors", "fingerprint.json")  # the last names the base by its digest
_PROGRAM = Path(__file__).parents[3] / "jobs" / "payload" / "trainers" / "merge.py"
_KEPT = re.compile(rf"{OF_A_PERSON.pattern}|(HF|CUDA|OMP|MKL|OPENBLAS)_[A-Z_]+")
_WORDS_SHOWN = 1_000


class Exported(NamedTuple):
    """Which files the folder has, and which of the checkpoint it does not."""

    files: tuple[str, ...]
    left_out: tuple[str, ...]


def is_adapter(manifest: Manifest) -> bool:
    """Return whether a checkpoint holds an adapter, which is of no use without its base."""
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
    wanted: Merge | None = None,
) -> Exported:
    """Make the new folder ``target`` of a version's files, every byte checked; it appears only when it is whole.

    ``base`` is the repository of an adapter's base, if it is known. With ``wanted`` both are merged into one model.
    Raises Refusal for a checkpoint without weights that can be given away, or with some that cannot be used;
    StoreError, OSError.
    """
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise Refusal(f"{target} is there already and not an empty folder", remedy="Name another one")

    def add(folder: Path) -> None:
        (folder / CARD).write_text(card, encoding="utf-8")
        (folder / FACTS).write_text(json.dumps(facts, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        # An adapter names its base's repository, or nothing: what stands there is a path of where it was trained.
        config = folder / ADAPTER
        adapter = read_json(read_bounded(config)) if config.is_file() else {}
        if "base_model_name_or_path" in adapter:
            document = json.dumps({**adapter, "base_model_name_or_path": base}, indent=2)
            config.write_text(document + "\n", encoding="utf-8")

    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as scratch:
        work = Path(scratch) / "made"
        try:
            if wanted is None:
                make_release(artifacts, version, manifest, work, add)
            else:
                merge(artifacts, version, manifest, wanted, work)
                add(work)
                seal(work)
            files = open_release(version.model, version.number, work).files
        except BadRelease as error:
            remedy = f"{error.remedy}. To take all as it is: schedctl models pull {version.name} DIR"
            raise Refusal(f"{version.name} cannot be given away", error.why, remedy) from None
        work.chmod(0o755)
        work.replace(target)
    names = {component.name for component in manifest.components} if wanted is None else set()
    return Exported((*sorted(files), SUMS), tuple(sorted(names - (files.keys() - {CARD, FACTS}))))


# An adapter's version made one model with its base, by a Python that has torch. None of that is loaded here.
class Merge(NamedTuple):
    """How to merge: the folder (or name on the Hub) of the base, and a Python with torch, transformers and peft."""

    base: str
    python: str


def merge(artifacts: BlobStore, version: Version, manifest: Manifest, wanted: Merge, folder: Path) -> None:
    """Write a version's adapter, merged into its base, into the new folder. It takes minutes, and memory as the base.

    Raises Refusal for a version without an adapter, another base than it was trained on, and a Python that lacks
    something; BadRelease for files that are damaged; StoreError, OSError.
    """
    parts = [component for component in manifest.components if component.name in _NEEDED]
    if not any(component.name == ADAPTER for component in parts):
        raise Refusal(f"{version.name} is a whole model and no adapter", remedy="Export it without --merge")
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-adapter-", dir=folder.parent) as scratch:
        for component in parts:
            fetch_part(artifacts, version, manifest.job, component, Path(scratch) / component.name)
        words = [wanted.python, str(_PROGRAM), str(folder), "--base", wanted.base, "--adapter", scratch]
        try:
            environment = child_environment(_KEPT)
            ended = subprocess.run(
                words, capture_output=True, text=True, errors="replace", check=False, env=environment
            )
        except OSError as error:
            why = f"{wanted.python} cannot be started: {error.strerror}. Name a Python with torch by --python"
            raise Refusal(f"{version.name} cannot be merged", why) from None
        if ended.returncode:
            last_words = ended.stderr.replace(scratch, version.name).strip()[-_WORDS_SHOWN:].rpartition("merge: ")[2]
            raise Refusal(f"{version.name} cannot be merged", f"{last_words or f'status {ended.returncode}'}")
