"""Pack a launch: its code, data and checkpoints as datasets, and the source that knows them by name and digest."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jobs.payload.store import mount
from jobs.payload.store.listing import LISTING, BadListing
from jobs.payload.store.tree import LIMITS
from platforms.artifacts.base import BlobStore
from platforms.artifacts.directory import DirectoryStore
from platforms.base import LaunchRequest, Misconfigured, Refused
from platforms.bundle import build_bundle
from platforms.kaggle.kernel.inputs import Input, Inputs
from platforms.kaggle.kernel.source import build_source
from platforms.kaggle.settings import Settings
from platforms.registry import PlatformContext
from platforms.relay import checkpoint_keys, folder_keys, given_launch
from platforms.remote import payload_of


@dataclass(frozen=True, slots=True)
class Packed:
    """What to push: the source, the slugs of our datasets to attach, and what of others' is attached.

    ``relays``: the session cannot reach the artifact store; what it needs goes with it, what it leaves is fetched.
    """

    source: str
    datasets: tuple[str, ...]
    mounted: tuple[str, ...]  # as kaggle-model:... or kaggle-dataset:...
    relays: bool


def pack(
    request: LaunchRequest, context: PlatformContext, inputs: Inputs, settings: Settings, now: int, until: float
) -> Packed:
    """Make sure that everything the session needs is on Kaggle, waiting ``until`` (stopwatch), and write its source.

    Raises Refused, Misconfigured, and what Inputs and the artifact store raise.
    """
    payload = payload_of("kaggle", request, context)
    with tempfile.TemporaryDirectory(prefix="uff-kaggle-") as folder:
        bundle = build_bundle(payload, Path(folder))
        given = [inputs.give_archive(bundle.path, "code", now, until)]
    launch: dict[str, Any] = dict(request.launch)
    store = launch.get("store") or {}
    ask: dict[str, str] | None = None
    relays = settings.relays(str(store.get("kind", "")))
    if relays:
        lanes = launch.get("lanes", [])
        objects, attached = _give_store(_opened(store, context), lanes, inputs, now, until)
        launch = given_launch(launch, attached)
        launch.pop("store")  # its own folder is the session's store; addresses that were signed for it stay here
        # The store is out of its reach, so the session looks for a dataset in place of the stop flag, if it can look
        # for one at all: it tries with one that is there.
        ask = {"dataset": inputs.full_name(inputs.sign(request.key)), "proof": inputs.full_name(given[0].dataset)}
        given += objects
    mounted = _mounted(store, launch.get("lanes", []), context)
    order = {"launch": launch, "inputs": [item.order() for item in given], "relays": relays, "ask": ask}
    names = sorted({name for lane in launch.get("lanes", ()) for name in lane.get("secrets") or ()})
    if names and settings.secrets == "account":
        order["secrets"] = {"names": names}
    elif request.secrets:  # last of all, so that they are there for as short as may be
        sealed, pad = inputs.give_secrets(request.key, request.secrets, now, until)
        given.append(sealed)
        order["secrets"] = {**sealed.order(), "pad": pad.hex()}
    datasets = tuple(sorted({item.dataset for item in given}))
    return Packed(build_source(request.key, order), datasets, mounted, relays)


def _give_store(
    store: BlobStore, lanes: Sequence[dict[str, Any]], inputs: Inputs, now: int, until: float
) -> tuple[list[Input], set[str]]:
    """Hand over each lane's data, code, trees and newest checkpoint; return the inputs and manifests among them."""
    attached: set[str] = set()
    trees = {prefix for lane in lanes for prefix in (lane.get("trees") or {}).values()}
    given = [
        inputs.give_objects(store, keys, "data", now, until, "trees" if prefix in trees else "store")
        for prefix, keys in folder_keys(store, lanes).items()
    ]
    for lane in lanes:
        keys = checkpoint_keys(store, lane)
        if keys:
            given.append(inputs.give_objects(store, keys, "ckpt", now, until))
            attached.add(keys[0])
    return given, attached


def _mounted(address: dict[str, str], lanes: Sequence[dict[str, Any]], context: PlatformContext) -> tuple[str, ...]:
    """Return what Kaggle has itself of the lanes' inputs, as the listings in the artifact store name it.

    Raises Refused for a damaged listing, and what opening and reading the store raise.
    """
    prefixes = {prefix for lane in lanes for prefix in (lane.get("trees") or {}).values()}
    found = sorted(prefix for prefix in prefixes if prefix.startswith(f"{mount.KIND}/"))
    store = _opened(address, context) if found else None
    listings = [store.read(f"{prefix}/{LISTING}", LIMITS.listing_bytes) for prefix in found] if store else []
    try:
        return tuple(sorted({mount.parse_mounted(listing).source for listing in listings}))
    except BadListing as error:
        remedy = "Take the input anew: schedctl queue update JOB --input NAME"
        raise Refused("kaggle", "launch", f"the list of an input is damaged: {error}", remedy, permanent=True) from None


def _opened(address: dict[str, str], context: PlatformContext) -> BlobStore:
    if address.get("kind") == "directory":
        return DirectoryStore(Path(address["root"]))
    if context.open_store is None:
        why = f"a store of the kind {address.get('kind')} cannot be read from here"
        raise Misconfigured("kaggle", "launch", why, "Set checkpoints = direct: the session reaches it by itself")
    return context.open_store()
