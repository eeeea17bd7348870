"""Pack a hand-over: the notebook, and the file of objects that a session without a reachable store starts from."""

from __future__ import annotations

import base64
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jobs.payload.store.manifest import sha256_file
from platforms.artifacts.directory import DirectoryStore
from platforms.base import LaunchRequest
from platforms.bundle import build_bundle
from platforms.manual import bootstrap
from platforms.registry import PlatformContext
from platforms.relay import checkpoint_keys, folder_keys, given_launch, pack_objects
from platforms.remote import payload_of

_ABOUT = """\
# {key}

Trains {jobs}. Everything is in this notebook{beside}.

1. Start a runtime with a GPU, and run the cell below. It trains until its time is over, saves and ends by itself.
2. To end earlier, interrupt the cell: it saves first.
3. Download `{key}-result.zip` and hand it in: `schedctl handover give {key} {key}-result.zip`

If the kernel dies, run the cell again: it trains nothing, and packs what was saved.
"""


def pack(request: LaunchRequest, context: PlatformContext, folder: Path) -> tuple[str, ...]:
    """Write what a person must bring into ``folder``; return the files' names, the notebook first.

    A session whose store is a folder of ours cannot reach it: its data, code and newest checkpoints go with it. Raises
    Misconfigured, StoreError, OSError.
    """
    payload = payload_of("manual", request, context)
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
    (folder / files[0]).write_bytes(_notebook(request.key, order))
    return tuple(files)


def _wanted(store: DirectoryStore, launch: dict[str, Any]) -> tuple[set[str], set[str]]:
    """Return the keys of each lane's data, code and newest checkpoint, and the manifests among them."""
    keys = {key for found in folder_keys(store, launch.get("lanes", ())).values() for key in found}
    attached: set[str] = set()
    for lane in launch.get("lanes", ()):
        found = checkpoint_keys(store, lane)
        keys |= set(found)
        attached |= set(found[:1])
    return keys, attached


def _notebook(key: str, order: Mapping[str, Any]) -> bytes:
    """Return the notebook (nbformat 4.5) of the launch ``key``; ``order`` is what bootstrap.main is given."""
    program = Path(bootstrap.__file__).read_text(encoding="utf-8")
    objects = order["objects"]
    about = _ABOUT.format(
        key=key,
        jobs=" and ".join(str(lane["job"]) for lane in order["launch"].get("lanes", ())) or "nothing",
        beside=f", and in `{objects['name']}`, which must lie beside it" if objects else "",
    )
    call = f"main(json.loads({json.dumps(order, ensure_ascii=True)!r}))"
    document = {
        "nbformat": 4,
        "nbformat_minor": 5,
        "metadata": {
            "kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"},
            "language_info": {"name": "python"},
        },
        "cells": [
            {"cell_type": "markdown", "id": "about", "metadata": {}, "source": _lines(about)},
            {
                "cell_type": "code",
                "id": "session",
                "metadata": {},
                "execution_count": None,
                "outputs": [],
                "source": _lines(f"{program}\n\n{call}\n"),
            },
        ],
    }
    return json.dumps(document, indent=1).encode()


def _lines(text: str) -> list[str]:
    return text.rstrip("\n").splitlines(keepends=True)
