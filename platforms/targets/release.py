"""A release: a folder of plain files beside their digests, checked before anything of it is sent anywhere.

Pickles run code where they are loaded. So weights are safetensors or plain NumPy arrays, whatever else is text, and
both the name and the first bytes of each file have to say so.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from platforms.artifacts.keys import is_key
from platforms.targets.base import BadRelease, Release

if TYPE_CHECKING:
    from collections.abc import Iterator

SUMS = "SHA256SUMS"
_LINE = re.compile(r"([0-9a-f]{64}) [ *](\S+)")
_SUMS_MAX_BYTES = 1 << 20
_FILES_MAX = 2_000
_CONFIG_MAX_BYTES = 1 << 20
_HEADER_MAX_BYTES = 1 << 20  # of a safetensors file; those of the largest models have some hundred kilobytes
_NPY_HEADER_MAX_BYTES = 1 << 12
_PIECE_BYTES = 1 << 20
_WEIGHTS = (".safetensors", ".npy", ".gguf")
_KINDS = frozenset({*_WEIGHTS, ".json", ".jsonl", ".md", ".txt", ".model", ".jinja", ".tiktoken"})
_PLAIN_NAMES = frozenset({"LICENSE", "NOTICE", SUMS})
_PICKLES = frozenset({".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".joblib", ".npz", ".dill"})
_ZIP, _PICKLE = b"PK", tuple(bytes([0x80, protocol]) for protocol in range(1, 6))
_MODEL = re.compile(r"[a-z0-9][a-z0-9._-]{0,79}")


def seal(folder: Path) -> None:
    """Write the SHA256SUMS of a folder, in place of one that is there. Raises BadRelease, OSError."""
    sums = "".join(f"{digest_of(folder / name)}  {name}\n" for name in sorted(_names(folder)) if name != SUMS)
    temporary = folder.with_name(f".{folder.name}-{SUMS}")
    temporary.write_text(sums, encoding="ascii")
    temporary.replace(folder / SUMS)


def open_release(model: str, version: int, folder: Path) -> Release:
    """Return the release in a folder after reading every byte of it.

    Raises BadRelease, which names the file, for: a link or a device, a file that SHA256SUMS does not list or that
    differs, and a file whose name or first bytes are those of a pickle. Raises OSError.
    """
    if not _MODEL.fullmatch(model) or version < 1:
        raise _bad(f"{model!r} version {version} is no name of a release", "Names are small letters, digits, . _ -")
    names = _names(folder)
    sums = _read(folder / SUMS, _SUMS_MAX_BYTES) if SUMS in names else b""
    listed = _listed(sums)
    if odd := sorted(names - {SUMS} - set(listed)):
        raise _bad(f"{odd[0]} is not in {SUMS}", "Export the version anew")
    if gone := sorted(set(listed) - names):
        raise _bad(f"{gone[0]} is in {SUMS} and not there", "Export the version anew")
    if not listed:
        raise _bad(f"{folder} has no files, or no {SUMS}", "Export the version anew")
    for name, digest in listed.items():
        _check_kind(folder / name, name)
        if digest_of(folder / name) != digest:
            raise _bad(f"{name} is not as {SUMS} says", "Export the version anew")
    return Release(model, version, folder, listed, sums, hashlib.sha256(sums).hexdigest())


def is_weights(name: str) -> bool:
    """Tell whether a file of this name holds weights."""
    return name.lower().endswith(_WEIGHTS)


def may_be_served(name: str) -> bool:
    """Tell whether a file of this name is of a kind that is served; what it holds is looked at when it is there."""
    last = name.rpartition("/")[2]
    return last in _PLAIN_NAMES or any(last.lower().endswith(kind) for kind in _KINDS)


def _names(folder: Path) -> frozenset[str]:
    """Return the relative names of all files below a folder, all of them plain."""
    found = set()
    for name in _walk(folder):
        if not is_key(name):
            raise _bad(f"{name!r} is no usable name of a file", "Use letters, digits, . _ - and no dot first")
        found.add(name)
        if len(found) > _FILES_MAX:
            raise _bad(f"{folder} has more than {_FILES_MAX} files", "A release is one model: export it anew")
    return frozenset(found)


def _walk(folder: Path) -> Iterator[str]:
    for parent, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(parent, name)
            mode = path.lstat().st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                raise _bad(f"{path.relative_to(folder)} is no plain file", "Put the file itself there, no link")
        yield from (Path(parent, name).relative_to(folder).as_posix() for name in files)


def _listed(sums: bytes) -> dict[str, str]:
    found = {}
    for line in sums.decode("ascii", "replace").splitlines():
        match = _LINE.fullmatch(line)
        if match is None or not is_key(match[2]) or match[2] in found or match[2] == SUMS:
            raise _bad(f"{SUMS} has a line that is none: {line[:80]!r}", "Export the version anew")
        found[match[2]] = match[1]
    return found


def _check_kind(path: Path, name: str) -> None:
    suffix = path.suffix.lower()
    head = _read(path, 16, cut=True)
    if suffix in _PICKLES or head.startswith((_ZIP, *_PICKLE)):
        raise _bad(f"{name} is a pickle or an archive that may hold one", "Save the weights as safetensors")
    if suffix not in _KINDS and path.name not in _PLAIN_NAMES:
        raise _bad(f"{name} is no kind of file that is served", f"Kinds: {' '.join(sorted(_KINDS))}")
    if suffix == ".safetensors":
        _check_safetensors(path, name)
    elif suffix == ".npy":
        _check_array(path, name)
    elif path.name.endswith("config.json"):
        _check_config(path, name)


def _check_safetensors(path: Path, name: str) -> None:
    """Hold the header against the file: eight bytes of its length, JSON, and tensors that fill the rest exactly."""
    size = path.stat().st_size
    with path.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if not 2 <= length <= min(_HEADER_MAX_BYTES, size - 8):
            raise _bad(f"{name} is cut off, or no safetensors", "Save the weights anew")
        try:
            header = json.loads(stream.read(length))
            ends = [tensor["data_offsets"] for key, tensor in header.items() if key != "__metadata__"]
            spans = sorted((int(begin), int(end)) for begin, end in ends)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise _bad(f"{name} has a header that cannot be read", "Save the weights anew") from None
    at = 0
    for begin, end in spans:
        if begin != at or end < begin:
            raise _bad(f"{name} has tensors that overlap or leave gaps", "Save the weights anew")
        at = end
    if at != size - 8 - length or not spans:
        raise _bad(f"{name} is cut off, or longer than its tensors", "Save the weights anew")


def _check_array(path: Path, name: str) -> None:
    """Refuse arrays of Python objects: they are pickles inside."""
    head = _read(path, _NPY_HEADER_MAX_BYTES, cut=True)
    found = re.search(rb"'descr': *'([<>|=]?[a-zA-Z]\d*)'", head)
    if not head.startswith(b"\x93NUMPY") or found is None or b"O" in found[1]:
        raise _bad(f"{name} is no array of plain numbers", "Save it with numpy.save, of a number type")


def _check_config(path: Path, name: str) -> None:
    """Refuse a configuration that asks whoever loads it to run code of the folder or the Hub."""
    try:
        told = json.loads(_read(path, _CONFIG_MAX_BYTES))
    except (ValueError, RecursionError):
        raise _bad(f"{name} is no JSON", "Export the version anew") from None
    if not isinstance(told, dict) or "auto_map" in told:
        raise _bad(f"{name} asks for code of its own (auto_map)", "Serve models of the server's own code alone")


def _read(path: Path, limit_bytes: int, *, cut: bool = False) -> bytes:
    with path.open("rb") as stream:
        data = stream.read(limit_bytes + (0 if cut else 1))
    if len(data) > limit_bytes:
        raise _bad(f"{path.name} is larger than {limit_bytes} bytes", "Export the version anew")
    return data


def digest_of(path: Path) -> str:
    """Return the sha256 of a file. Raises OSError."""
    found = hashlib.sha256()
    with path.open("rb") as stream:
        while piece := stream.read(_PIECE_BYTES):
            found.update(piece)
    return found.hexdigest()


def _bad(why: str, remedy: str) -> BadRelease:
    return BadRelease("(none yet)", "send the release", why, remedy)
