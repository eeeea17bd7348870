"""A release: a folder of plain files with their digests, all checked before any file is sent to a target.

Loading a pickle can run code. So weights must be safetensors or plain arrays of numbers and all other files text; the
name, the first bytes and the header of each file are checked. Files that only training needs are left out.
"""

import ast
import hashlib
import json
import math
import os
import re
import stat
import zipfile
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

from jobs.payload.bounds import read_json
from jobs.payload.store.manifest import sha256_file
from jobs.payload.whole_file import write_whole
from platforms.artifacts.base import is_key
from platforms.targets.base import BadRelease, Release

SUMS = "SHA256SUMS"
_LINE = re.compile(r"([0-9a-f]{64}) [ *](\S+)")
_SUMS_MAX_BYTES = 1 << 20
_FILES_MAX = 2_000
_MODEL = re.compile(r"[a-z0-9][a-z0-9._-]{0,79}")


def seal(folder: Path) -> None:
    """Write the SHA256SUMS of a folder, replacing an existing one. Raises BadRelease, OSError."""
    sums = "".join(f"{sha256_file(folder / name)}  {name}\n" for name in sorted(_names(folder)) if name != SUMS)
    write_whole(folder / SUMS, sums)


def open_release(model: str, version: int, folder: Path) -> Release:
    """Return the release in a folder after reading every byte of it.

    Raises BadRelease, which names the file, for a link or a device, a file that SHA256SUMS does not list, a missing
    file, a digest that differs, and a file that check_file or check_whole rejects. Raises OSError.
    """
    if not _MODEL.fullmatch(model) or version < 1:
        raise _bad(f"{model!r} version {version} is not a release name", "Use lower case a to z, digits, . _ -")
    names = _names(folder)
    sums = _read(folder / SUMS, _SUMS_MAX_BYTES) if SUMS in names else b""
    listed = _listed(sums)
    if odd := sorted(names - {SUMS} - set(listed)):
        raise _bad(f"{odd[0]} is not in {SUMS}", "Export the version again")
    if missing := sorted(set(listed) - names):
        raise _bad(f"{missing[0]} is in {SUMS} and not there", "Export the version again")
    if not listed:
        raise _bad(f"{folder} has no files, or no {SUMS}", "Export the version again")
    for name, digest in listed.items():
        try:
            check_file(folder / name, name)
        except BadTensors as error:
            raise _bad(f"{name}: {error.why}", error.remedy) from None
        if sha256_file(folder / name) != digest:
            raise _bad(f"{name} is not as {SUMS} says", "Export the version again")
    try:
        check_whole(folder, listed)
    except BadTensors as error:
        raise _bad(error.why, error.remedy) from None
    return Release(model, version, folder, listed, sums, hashlib.sha256(sums).hexdigest())


def _names(folder: Path) -> frozenset[str]:
    """Return the relative names of all files below a folder. Raises BadRelease for links, devices and odd names."""
    names = set()
    for name in _walk(folder):
        if not is_key(name):
            raise _bad(f"{name!r} cannot be a file name", "Use a to z, digits, . _ - and no leading dot")
        names.add(name)
        if len(names) > _FILES_MAX:
            raise _bad(f"{folder} has more than {_FILES_MAX} files", "A release is one model: export it again")
    return frozenset(names)


def _walk(folder: Path) -> Iterator[str]:
    for parent, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(parent, name)
            mode = path.lstat().st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                raise _bad(f"{path.relative_to(folder)} is no plain file", "Put the file itself there, no link")
        yield from (Path(parent, name).relative_to(folder).as_posix() for name in files)


def _listed(sums: bytes) -> dict[str, str]:
    result = {}
    for line in sums.decode("ascii", "replace").splitlines():
        match = _LINE.fullmatch(line)
        if match is None or not is_key(match[2]) or match[2] in result or match[2] == SUMS:
            raise _bad(f"{SUMS} has a line that is none: {line[:80]!r}", "Export the version again")
        result[match[2]] = match[1]
    return result


def _read(path: Path, limit_bytes: int) -> bytes:
    with path.open("rb") as stream:
        data = stream.read(limit_bytes + 1)
    if len(data) > limit_bytes:
        raise _bad(f"{path.name} is larger than {limit_bytes} bytes", "Export the version again")
    return data


def _bad(why: str, remedy: str) -> BadRelease:
    return BadRelease("(none yet)", "send the release", why, remedy)


# File checks: which files of a version go to a target or into an export, and what they may contain.
_PIECE_BYTES = 1 << 20  # a multiple of the size of every number type
_HEADER_MAX_BYTES = 1 << 20  # of a safetensors file; the largest models have some hundred kilobytes
_NPY_HEADER_MAX_BYTES = 1 << 12
_MEMBERS_MAX = 2_000
_UNPACKED_MAX = 100  # ratio of unpacked to packed size; trained weights hardly compress
_NUMBERS_MAX = 1 << 50
_DIMENSIONS_MAX = 8
# Type -> (bytes of a number, (byte index, mask) of its exponent bits). For F8_E4M3 the mask is the pattern of NaN.
_FLOATS: Mapping[str, tuple[int, tuple[tuple[int, int], ...]]] = {
    "F64": (8, ((7, 0x7F), (6, 0xF0))),
    "F32": (4, ((3, 0x7F), (2, 0x80))),
    "F16": (2, ((1, 0x7C),)),
    "BF16": (2, ((1, 0x7F), (0, 0x80))),
    "F8_E5M2": (1, ((0, 0x7C),)),
    "F8_E4M3": (1, ((0, 0x7F),)),
}
_WHOLE = {"BOOL": 1, "U8": 1, "I8": 1, "U16": 2, "I16": 2, "U32": 4, "I32": 4, "U64": 8, "I64": 8}
_NUMPY = re.compile(r"([<>|=])([fiub])([1248])")
_NUMPY_FLOATS = {"2": "F16", "4": "F32", "8": "F64"}
_ADAPTER = re.compile(r"(.+\.lora_)([AB])(\..+|$)")
WEIGHTS = (".safetensors", ".npy", ".npz", ".gguf")
KINDS = (*WEIGHTS, ".json", ".jsonl", ".md", ".txt", ".model", ".jinja", ".tiktoken")
_NAMES = frozenset({"LICENSE", "NOTICE"})
# The beginnings of the names of files that trainers write, which inference does not need.
_OF_TRAINING = (
    "optimizer", "scheduler", "rng", "trainer_state", "training_args", "state.", "fingerprint.", "meta.json",
)  # fmt: skip
_REFERENCE = "ref/"  # the reference adapter of preference training
_PICKLES = frozenset({".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".joblib", ".dill"})
_ZIP, _PICKLE = b"PK", tuple(bytes([0x80, protocol]) for protocol in range(1, 6))
_JSON_MAX_BYTES = 1 << 25
_INDEX = ".safetensors.index.json"


# Weight checks: a tensor file must match its header, and all its numbers must be finite. Files are read as streams, a
# megabyte at a time, with the standard library only. A floating-point number is not finite exactly if all its exponent
# bits are set, which is tested on whole slices of bytes at once.
class BadTensors(Exception):
    """A tensor file that must not be loaded: ``why``, with the tensor's name if there is one, and ``remedy``."""

    def __init__(self, why: str, remedy: str = "Save the weights again") -> None:
        super().__init__(why)
        self.why = why
        self.remedy = remedy


class Tensor(NamedTuple):
    """One tensor of a safetensors file: its type, its shape, and its range of bytes, counted from the header's end."""

    name: str
    kind: str
    shape: tuple[int, ...]
    begin: int
    end: int


def check_safetensors(path: Path) -> None:
    """Check that a file matches its header and that every number is finite. Raises BadTensors, OSError."""
    tensors = read_header(path)
    with path.open("rb") as stream:
        stream.seek(path.stat().st_size - tensors[-1].end)
        for tensor in tensors:
            _check_finite(stream, tensor.end - tensor.begin, tensor.kind, tensor.name)


def read_header(path: Path) -> list[Tensor]:
    """Return the tensors of a safetensors file in file order; they must fill it exactly. Raises BadTensors, OSError."""
    size = path.stat().st_size
    with path.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if not 2 <= length <= min(_HEADER_MAX_BYTES, size - 8):
            raise BadTensors("it is cut off, or no safetensors")
        data = stream.read(length)
    try:
        header = json.loads(data, object_pairs_hook=_once)
        tensors = [_tensor(name, description) for name, description in header.items() if name != "__metadata__"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise BadTensors("it has a header that cannot be read") from None
    tensors.sort(key=lambda tensor: (tensor.begin, tensor.end))
    at = 0
    for tensor in tensors:
        if tensor.begin != at or tensor.end < at:
            raise BadTensors(f"it has tensors that overlap or leave gaps, at {tensor.name}")
        at = tensor.end
    if at != size - 8 - length or not tensors:
        raise BadTensors("it is cut off, or longer than its tensors")
    return tensors


def check_array(path: Path) -> None:
    """Check that every number of a NumPy array (.npy) is finite. Raises BadTensors, OSError."""
    with path.open("rb") as stream:
        _check_npy(stream, path.name)


def check_arrays(path: Path) -> None:
    """Check all numbers of an archive of NumPy arrays (.npz); other members are errors. Raises BadTensors, OSError."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            if not members or len(members) > _MEMBERS_MAX:
                raise BadTensors(f"it has {len(members):,} arrays, where 1 to {_MEMBERS_MAX:,} are read")
            if sum(member.file_size for member in members) > _UNPACKED_MAX * path.stat().st_size:
                raise BadTensors(f"it unpacks to more than {_UNPACKED_MAX} times its size", "Save it unpacked")
            for member in members:
                if not member.filename.endswith(".npy"):
                    raise BadTensors(f"{member.filename!r:.80} in it is no array", "Save it with numpy.savez")
                with archive.open(member) as stream:
                    _check_npy(stream, member.filename.removesuffix(".npy"))
    except (zipfile.BadZipFile, RuntimeError, EOFError) as error:
        raise BadTensors(f"it is no archive of arrays ({error})") from None


def check_pairs(headers: Mapping[str, list[Tensor]]) -> None:
    """Check that each low-rank adapter has both its matrices A and B, of the same rank. Raises BadTensors."""
    for tensors in headers.values():
        halves: dict[str, dict[str, Tensor]] = {}
        for tensor in tensors:
            if (match := _ADAPTER.fullmatch(tensor.name)) and len(tensor.shape) == 2:
                halves.setdefault(match[1] + "*" + match[3], {})[match[2]] = tensor
        for pair in halves.values():
            one = next(iter(pair.values())).name
            if len(pair) < 2:
                raise BadTensors(f"{one} has no other half: an adapter's A and B belong together")
            ranks = pair["A"].shape[0], pair["B"].shape[1]
            if ranks[0] != ranks[1]:
                raise BadTensors(f"{pair['A'].name} has the rank {ranks[0]}, and its other half {ranks[1]}")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        raise ValueError("a name stands twice")
    return result


def _tensor(name: str, description: Any) -> Tensor:
    """Parse a tensor of a header and check its size in bytes. Raises BadTensors, ValueError, KeyError, TypeError."""
    kind, shape = description["dtype"], description["shape"]
    begin, end = description["data_offsets"]
    whole = all(type(number) is int and 0 <= number <= _NUMBERS_MAX for number in (begin, end, *shape))
    if not whole or len(shape) > _DIMENSIONS_MAX or not isinstance(kind, str):
        raise ValueError(name)
    width = _FLOATS[kind][0] if kind in _FLOATS else _WHOLE.get(kind)
    if width is None:
        raise BadTensors(f"{name} is of the type {kind!r:.40}, which is not known here", "Save it as F32, F16 or BF16")
    if begin <= end and math.prod(shape) * width != end - begin:
        raise BadTensors(f"{name} has {end - begin:,} bytes, where its shape {shape} of {kind} has another number")
    return Tensor(name, kind, tuple(shape), begin, end)


def _check_npy(stream: IO[bytes], name: str) -> None:
    """Check one array and all its numbers; arrays of objects are rejected, as they contain pickles."""
    remedy = "Save it with numpy.save, of a number type"
    start = stream.read(8)
    size = {1: 2, 2: 4, 3: 4}.get(start[6] if len(start) == 8 else 0)
    if not start.startswith(b"\x93NUMPY") or size is None:
        raise BadTensors("it is no array of plain numbers", remedy)
    length = int.from_bytes(stream.read(size), "little")
    try:
        header = ast.literal_eval(stream.read(min(length, _NPY_HEADER_MAX_BYTES)).decode("latin-1").strip())
        match, shape = _NUMPY.fullmatch(header["descr"]), header["shape"]
        whole = all(type(number) is int and 0 <= number <= _NUMBERS_MAX for number in shape)
        if match is None or not whole or len(shape) > _DIMENSIONS_MAX:
            raise ValueError(name)
    except (ValueError, SyntaxError, KeyError, TypeError, MemoryError, RecursionError):
        raise BadTensors(f"{name} is no array of plain numbers", remedy) from None
    kind = _NUMPY_FLOATS.get(match[3], "") if match[2] == "f" else ""
    _check_finite(stream, math.prod(shape) * int(match[3]), kind, name, reverse=match[1] == ">")
    if stream.read(1):
        raise BadTensors(f"{name} is longer than its shape")


def _check_finite(stream: IO[bytes], count: int, kind: str, name: str, *, reverse: bool = False) -> None:
    """Read ``count`` bytes of a tensor; raise BadTensors if there are fewer or a number is not finite.

    ``kind`` is a key of ``_FLOATS``, or another text for integers; ``reverse`` is True for big-endian numbers.
    """
    width, exponent = _FLOATS.get(kind, (1, ()))
    places = [(width - 1 - place if reverse else place, bits) for place, bits in exponent]
    for piece in _pieces(stream, count, name):
        marks = [piece[place::width].translate(_SET[bits]) for place, bits in places]
        if not marks or b"\1" not in marks[0]:
            continue
        together = int.from_bytes(marks[0], "big")
        for mark in marks[1:]:
            together &= int.from_bytes(mark, "big")
        if together:
            raise BadTensors(f"{name} has a number that is not finite (NaN or infinite)", "Train it again from before")


def _pieces(stream: IO[bytes], count: int, name: str) -> Iterator[bytes]:
    while count:
        piece = stream.read(min(count, _PIECE_BYTES))
        if not piece:
            raise BadTensors(f"{name} is cut off")
        whole = piece
        while len(whole) < min(count, _PIECE_BYTES) and (piece := stream.read(min(count, _PIECE_BYTES) - len(whole))):
            whole += piece
        count -= len(whole)
        yield whole


_SET = {bits: bytes(byte & bits == bits for byte in range(256)) for _, places in _FLOATS.values() for _, bits in places}


_CHECKS = {".safetensors": check_safetensors, ".npy": check_array, ".npz": check_arrays}


def is_weights(name: str) -> bool:
    """Return whether a file of this name contains weights."""
    return name.lower().endswith(WEIGHTS)


def leaves(name: str) -> bool:
    """Return whether a checkpoint's file of this name belongs into a release; its content is checked later."""
    last = name.rpartition("/")[2]
    plain = last in _NAMES or last.lower().endswith(KINDS)
    return plain and not last.startswith(_OF_TRAINING) and not name.startswith(_REFERENCE)


def check_file(path: Path, name: str) -> None:
    """Check a file's kind, its weights, and that loading it runs no code. Raises BadTensors, OSError."""
    suffix = path.suffix.lower()
    with path.open("rb") as stream:
        head = stream.read(16)
    if suffix in _PICKLES or head.startswith(_PICKLE) or (head.startswith(_ZIP) and suffix != ".npz"):
        raise BadTensors("it is a pickle or an archive that may hold one", "Save the weights as safetensors")
    if suffix not in KINDS and path.name not in _NAMES:
        raise BadTensors("it is no kind of file that is served", f"Kinds: {' '.join(sorted(KINDS))}")
    if suffix in _CHECKS:
        _CHECKS[suffix](path)
    elif name.endswith("config.json"):
        document = _document(path)
        if not isinstance(document, dict) or "auto_map" in document:
            raise BadTensors("it asks for code of its own (auto_map)", "Serve models of the server's own code alone")


def check_whole(folder: Path, names: Collection[str]) -> None:
    """Check the adapters of a folder, and that it has all tensors of its indexes. Raises BadTensors, OSError."""
    headers = {name: read_header(folder / name) for name in sorted(names) if name.endswith(".safetensors")}
    check_pairs(headers)
    for name in sorted(names):
        if not name.endswith(_INDEX):
            continue
        document = _document(folder / name)
        listed = document.get("weight_map") if isinstance(document, dict) else None
        if not isinstance(listed, dict):
            raise BadTensors(f"{name} has no weight_map")
        parent = name.rpartition("/")[0]
        where = {f"{parent}/{part}" if parent else str(part) for part in listed.values()}
        there = {tensor.name for part in where & headers.keys() for tensor in headers[part]}
        if missing := sorted(listed.keys() - there):
            raise BadTensors(f"{missing[0]} is in {name}, and no file here has it")


def _document(path: Path) -> Any:
    with path.open("rb") as stream:
        data = stream.read(_JSON_MAX_BYTES + 1)
    if len(data) > _JSON_MAX_BYTES:
        raise BadTensors(f"it is larger than {_JSON_MAX_BYTES >> 20} MiB", "Export the version again")
    try:
        return read_json(data)
    except ValueError:
        raise BadTensors("it is no JSON", "Export the version again") from None
