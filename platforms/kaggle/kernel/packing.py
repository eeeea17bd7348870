"""Pack a launch: its code, data and checkpoints as datasets, and the source that knows them by name and digest."""

from __future__ import annotations

import ast
import base64
import json
import tempfile
import zlib
from collections.abc import Mapping, Sequence
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
from platforms.kaggle.kernel import bootstrap
from platforms.kaggle.kernel.inputs import AttachedInput, Inputs
from platforms.kaggle.settings import KaggleSettings
from platforms.registry import PlatformContext
from platforms.relay import checkpoint_keys, folder_keys, given_launch
from platforms.remote import payload_of

SOURCE_BYTES_MAX = 900_000  # 0.93 MB was seen to pass and 1.14 MB to fail, without a reason

_CALL, _PACKED_CALL, _CALL_END = "main(json.loads(", "main(unpacked(", "))"


# The source: the bootstrap program and its order in one text, small enough for Kaggle, and provably ours. An order with
# the signed addresses of thousands of objects is written packed: their common parts cost nothing then.
def build_source(key: str, order: Mapping[str, Any]) -> str:
    """Return the text to push for the launch ``key``. Raises Refused when the launch document is too large."""
    program = Path(bootstrap.__file__).read_text(encoding="utf-8")
    document = json.dumps(order, ensure_ascii=True)
    text = f"{_first_line(key)}\n{program}\n\n{_CALL}{document!r}{_CALL_END}\n"
    if len(text.encode()) > SOURCE_BYTES_MAX:
        packed = base64.b85encode(zlib.compress(document.encode(), 9)).decode()
        text = f"{_first_line(key)}\n{program}\n\n{_PACKED_CALL}{packed!r}{_CALL_END}\n"
    if len(text.encode()) > SOURCE_BYTES_MAX:
        why = f"the kernel's source has {len(text.encode())} bytes, at most {SOURCE_BYTES_MAX} are taken"
        raise Refused("kaggle", "launch", why, "Shorten the job's command and environment", permanent=True)
    return text


def is_source_of(key: str, source: str) -> bool:
    """Return whether a kernel with this source was pushed for the launch ``key``."""
    return source.partition("\n")[0].strip() == _first_line(key)


def order_of(source: str) -> Mapping[str, Any]:
    """Return the order that a source of ours was built with. Raises ValueError when it was cut or changed."""
    call = source.rstrip().rpartition("\n")[2]
    opening = next((opening for opening in (_CALL, _PACKED_CALL) if call.startswith(opening)), None)
    if opening is None or not call.endswith(_CALL_END):
        raise ValueError("the last line of the kernel's source is not ours")
    try:
        document = ast.literal_eval(call.removeprefix(opening).removesuffix(_CALL_END))
        order = json.loads(document) if opening == _CALL else bootstrap.unpacked(document)
    except (SyntaxError, TypeError, zlib.error) as error:
        raise ValueError("the last line of the kernel's source is not ours") from error
    if not isinstance(order, dict):
        raise ValueError("the kernel's source has no order")
    return order


def _first_line(key: str) -> str:
    return f"# uff-scheduler launch {key}"


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
    request: LaunchRequest, context: PlatformContext, inputs: Inputs, settings: KaggleSettings, now: int, until: float
) -> Packed:
    """Make sure that everything the session needs is on Kaggle, waiting ``until`` (stopwatch), and write its source.

    Raises Refused, Misconfigured, and what Inputs and the artifact store raise.
    """
    payload = payload_of("kaggle", request, context)
    with tempfile.TemporaryDirectory(prefix="uff-kaggle-") as folder:
        bundle = build_bundle(payload, Path(folder))
        mounts = [inputs.give_archive(bundle.path, "code", now, until)]
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
        ask = {"dataset": inputs.full_name(inputs.sign(request.key)), "proof": inputs.full_name(mounts[0].dataset)}
        mounts += objects
    mounted = _mounted(store, launch.get("lanes", []), context)
    order = {"launch": launch, "inputs": [item.order() for item in mounts], "relays": relays, "ask": ask}
    names = sorted({name for lane in launch.get("lanes", ()) for name in lane.get("secrets") or ()})
    if names and settings.secrets == "account":
        order["secrets"] = {"names": names}
    elif request.secrets:  # last of all, so that they are there for as short as may be
        sealed, pad = inputs.give_secrets(request.key, request.secrets, now, until)
        mounts.append(sealed)
        order["secrets"] = {**sealed.order(), "pad": pad.hex()}
    datasets = tuple(sorted({item.dataset for item in mounts}))
    return Packed(build_source(request.key, order), datasets, mounted, relays)


def _give_store(
    store: BlobStore, lanes: Sequence[dict[str, Any]], inputs: Inputs, now: int, until: float
) -> tuple[list[AttachedInput], set[str]]:
    """Hand over each lane's data, code, trees and newest checkpoint; return the inputs and manifests among them."""
    attached: set[str] = set()
    trees = {prefix for lane in lanes for prefix in (lane.get("trees") or {}).values()}
    mounts = [
        inputs.give_objects(store, keys, "data", now, until, "trees" if prefix in trees else "store")
        for prefix, keys in folder_keys(store, lanes).items()
    ]
    for lane in lanes:
        keys = checkpoint_keys(store, lane)
        if keys:
            mounts.append(inputs.give_objects(store, keys, "ckpt", now, until))
            attached.add(keys[0])
    return mounts, attached


def _mounted(address: dict[str, str], lanes: Sequence[dict[str, Any]], context: PlatformContext) -> tuple[str, ...]:
    """Return what Kaggle has itself of the lanes' inputs, as the listings in the artifact store name it.

    Raises Refused for a damaged listing, and what opening and reading the store raise.
    """
    prefixes = {prefix for lane in lanes for prefix in (lane.get("trees") or {}).values()}
    names = sorted(prefix for prefix in prefixes if prefix.startswith(f"{mount.KIND}/"))
    store = _opened(address, context) if names else None
    listings = [store.read(f"{prefix}/{LISTING}", LIMITS.listing_bytes) for prefix in names] if store else []
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
