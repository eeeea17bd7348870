"""Pack a hand-over: the notebook, and the file of objects that a session without a reachable store starts from."""

from __future__ import annotations

import base64
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobs.checkpoint import sha256_file
from platforms.artifacts.directory import DirectoryStore
from platforms.base import Misconfigured
from platforms.bundle import build_bundle
from platforms.manual.notebook import build_notebook
from platforms.relay import checkpoint_keys, given_launch, pack_objects

if TYPE_CHECKING:
    from platforms.base import LaunchRequest


def pack(request: LaunchRequest, bundle: Path, folder: Path) -> tuple[str, ...]:
    """Write what a person must bring into ``folder``; return the files' names, the notebook first.

    A session whose store is a folder of ours cannot reach it: its data and newest checkpoints go with it. Raises
    Misconfigured, StoreError, OSError.
    """
    payload = Path(request.bundle or bundle).absolute() / "payload"
    if not (payload / "agent.py").is_file():
        raise Misconfigured("manual", "launch", f"there is no agent in {payload}", "Check the bundle folder")
    with tempfile.TemporaryDirectory(prefix="uff-manual-") as temporary:
        code = base64.b64encode(build_bundle(payload, Path(temporary)).path.read_bytes()).decode()
    launch: dict[str, Any] = dict(request.launch)
    store = launch.get("store") or {}
    order: dict[str, Any] = {
        "key": request.key,
        "launch": launch,
        "code": code,
        "relays": store.get("kind") == "directory",
        "objects": None,
    }
    files = [f"{request.key}.ipynb"]
    if order["relays"]:
        keys, attached = _wanted(DirectoryStore(Path(store["root"])), launch)
        order["launch"] = given_launch(launch, attached)
        if keys:
            archive = folder / f"{request.key}-objects.tar"
            pack_objects(DirectoryStore(Path(store["root"])), keys, archive)
            order["objects"] = {"name": archive.name, "sha256": sha256_file(archive)}
            files.append(archive.name)
    (folder / files[0]).write_bytes(build_notebook(request.key, order))
    return tuple(files)


def _wanted(store: DirectoryStore, launch: dict[str, Any]) -> tuple[set[str], set[str]]:
    """Return the keys of each lane's data and newest checkpoint, and the manifests among them."""
    keys: set[str] = set()
    attached: set[str] = set()
    for lane in launch.get("lanes", ()):
        if prefix := str(lane.get("data") or ""):
            keys |= set(store.keys(f"{prefix}/"))
        found = checkpoint_keys(store, [str(key) for key in lane.get("restore", ())])
        keys |= set(found)
        attached |= set(found[:1])
    return keys, attached
