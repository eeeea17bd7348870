"""The lock of a job's requirements in the store: every package at one version, with the digests of its files.

The lock is created when the job is added, for each Python version and platform of its sessions. Its SHA-256 names it.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from ..bounds import read_json

FORMAT = 1
LOCK, WHEELS = "lock.json", "listing.json"
LOCK_BYTES_MAX = 16 << 20
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,98}[A-Za-z0-9])?", re.ASCII)
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+!_-]{0,99}", re.ASCII)
_DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)
_TARGET = re.compile(r"3\.\d{1,3}-[a-z0-9][a-z0-9_.-]{0,59}", re.ASCII)
_WHEEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+!-]{0,240}\.whl", re.ASCII)


class BadLock(ValueError):
    """A lock or a list of wheels is invalid; none of its packages is installed."""


class Pin(NamedTuple):
    """One package: its name as in package indexes, its version, and the SHA-256 of each file that may be installed."""

    name: str
    version: str
    digests: tuple[str, ...]


class Lock(NamedTuple):
    """Requirements, and pins by :func:`target_name`. ``exact``: a package of the image must have the pinned version."""

    demands: tuple[str, ...]
    exact: bool
    targets: Mapping[str, tuple[Pin, ...]]


def lock_prefix(digest: str) -> str:
    """Return the key prefix of a lock in the store."""
    return f"lock/{digest}"


def wheels_digest(lock: str, target: str) -> str:
    """Return the digest that names the wheels of a lock for a target."""
    return hashlib.sha256(f"{lock} {target}".encode()).hexdigest()


def wheels_prefix(lock: str, target: str) -> str:
    """Return the key prefix of the wheels of a lock for a target, which sessions without a package index need."""
    return f"wheels/{wheels_digest(lock, target)}"


def target_name(python: str, platform: str) -> str:
    """Return the name of a target: Python 3.12, for example, on x86_64-manylinux_2_28. Raises BadLock."""
    name = f"{python}-{platform}"
    if not _TARGET.fullmatch(name):
        raise BadLock(f"{name!r} is not a Python version and a platform")
    return name


def canonical(name: str) -> str:
    """Return the canonical form of a package's name, as in PEP 503."""
    return re.sub(r"[-_.]+", "-", name).lower()


def encode_lock(lock: Lock) -> bytes:
    """Return a lock as canonical JSON. Raises BadLock if :func:`parse_lock` would refuse it."""
    document = {
        "format": FORMAT,
        "demands": list(lock.demands),
        "exact": lock.exact,
        "targets": {
            target: [[pin.name, pin.version, sorted(pin.digests)] for pin in sorted(pins)]
            for target, pins in lock.targets.items()
        },
    }
    data = json.dumps(document, separators=(",", ":"), sort_keys=True).encode()
    parse_lock(data)
    return data


def parse_lock(data: bytes, digest: str = "") -> Lock:
    """Return the lock in ``data``, which must have the SHA-256 ``digest`` if one is given. Raises BadLock."""
    if len(data) > LOCK_BYTES_MAX:
        raise BadLock(f"the lock is larger than {LOCK_BYTES_MAX >> 20} MiB")
    if digest and hashlib.sha256(data).hexdigest() != digest:
        raise BadLock("the lock does not have the digest it is named by")
    document = _document(data)
    try:
        demands, exact = tuple(document["demands"]), document["exact"]
        targets = {target: tuple(_pin(*fields) for fields in pins) for target, pins in document["targets"].items()}
    except (AttributeError, KeyError, TypeError) as error:
        raise BadLock(f"not a lock: {error}") from None
    if not all(isinstance(demand, str) and "\n" not in demand for demand in demands) or not isinstance(exact, bool):
        raise BadLock('a requirement of the lock is not a line of text, or "exact" is not true or false')
    for target, pins in targets.items():
        if not _TARGET.fullmatch(target):
            raise BadLock(f"{target!r} is not a Python version and a platform")
        if len({canonical(pin.name) for pin in pins}) != len(pins):
            raise BadLock(f"a package is listed twice in the lock for {target}")
    return Lock(demands, exact, targets)


def requirement_lines(pins: Iterable[Pin]) -> str:
    """Return pins as lines of a requirements file, each with its digests."""
    return "".join(
        f"{pin.name}=={pin.version} {' '.join(f'--hash=sha256:{digest}' for digest in pin.digests)}\n"
        for pin in sorted(pins)
    )


def encode_wheels(wheels: Mapping[str, str]) -> bytes:
    """Return a list of wheels as JSON: file names, and the SHA-256 under which each is stored. Raises BadLock."""
    data = json.dumps({"format": FORMAT, "wheels": dict(wheels)}, separators=(",", ":"), sort_keys=True).encode()
    parse_wheels(data)
    return data


def parse_wheels(data: bytes) -> Mapping[str, str]:
    """Return the SHA-256 of each wheel by file name. Raises BadLock."""
    wheels = _document(data).get("wheels")
    if not isinstance(wheels, dict) or not all(
        _WHEEL.fullmatch(name) and _fits(digest, _DIGEST) for name, digest in wheels.items()
    ):
        raise BadLock("not a list of wheels")
    return wheels


def _document(data: bytes) -> dict[str, Any]:
    try:
        document = read_json(data)
    except ValueError as error:
        raise BadLock(f"not JSON: {error}") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise BadLock(f"not a document of format {FORMAT}")
    return document


def _pin(name: Any, version: Any, digests: Any) -> Pin:
    if not (_fits(name, _NAME) and _fits(version, _VERSION)):
        raise BadLock(f"{name!a} {version!a} is not a name and a version of a package")
    if not (isinstance(digests, list) and digests and all(_fits(digest, _DIGEST) for digest in digests)):
        raise BadLock(f"{name} has no SHA-256")
    return Pin(name, version, tuple(digests))


def _fits(value: object, form: re.Pattern[str]) -> bool:
    return isinstance(value, str) and form.fullmatch(value) is not None
