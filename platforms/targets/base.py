"""The target port: where a served model lives, in prose that is the contract, and the errors it may raise.

Errors::

    TargetError            base: a person must act; carries target, action, why and what to do next
      BadTargetOption      an option cannot be used as it is written
      BadRelease           what is to be sent, or what arrived, is not what its digests say, or may not be sent at all
      TargetBusy           somebody else deploys there; nothing was changed
      TargetUnreachable    no answer that can be trusted; what was asked may have happened, and read() will tell
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import Protocol, TypeVar, cast

from jobs.problem import UserError
from platforms.options import read_declared

_Options = TypeVar("_Options")
KEPT_RELEASES = 3  # that each target keeps of a model: the one that serves and those before it


class TargetError(UserError):
    """Base of all target errors. ``remedy`` is the next thing to try, in one sentence."""

    def __init__(self, target: str, action: str, why: str, remedy: str = "") -> None:
        super().__init__(f"target {target}: cannot {action}", why, remedy)
        self.target = target
        self.action = action


class BadTargetOption(TargetError):
    """An option cannot be used as it is written, wherever it is read."""


class BadRelease(TargetError):
    """The files are not those of the release, or are of a kind that is never served."""


class TargetBusy(TargetError):
    """Another deployer is at work there; nothing was changed. Asking again later is safe."""


class TargetUnreachable(TargetError):
    """No trustworthy answer: what was asked may or may not have happened, and repeating it is safe."""


@dataclass(frozen=True, slots=True)
class Release:
    """One version of a model as files.

    ``folder`` is on this machine; ``files`` are the sha256 digests by relative name; ``sums`` is the text of its
    SHA256SUMS, and ``digest`` the sha256 of that text, which names the whole.
    """

    model: str
    version: int
    folder: Path
    files: Mapping[str, str]
    sums: bytes = field(repr=False)
    digest: str


@dataclass(frozen=True, slots=True)
class Served:
    """What a target says of one model.

    ``version`` is what it points at and ``digest`` that release's; None and "" when it serves none. ``proven`` is
    False until it was seen to answer: a deployment was cut off, and is to be finished or taken back. ``before`` are
    the versions that served earlier and are kept, newest first. ``damaged`` tells what is not as the digests say; it is
    looked for only when read() was asked to.
    """

    version: int | None = None
    digest: str = ""
    proven: bool = False
    before: tuple[int, ...] = ()
    damaged: tuple[str, ...] = ()


class DeployOutcome(StrEnum):
    """How a deployment ended. Whatever it is, at most one version serves afterwards."""

    SERVING = "serving"  # the version serves and was seen to answer
    RETURNED = "returned"  # it did not answer: the version before serves again
    DOWN = "down"  # neither it nor the version before answered, or there was none before


@dataclass(frozen=True, slots=True)
class Deployed:
    """What came of deploy() or go_back(): the ``version`` that is pointed at now, and in words what happened."""

    outcome: DeployOutcome
    version: int | None
    detail: str = ""


class Target(Protocol):
    """One place that serves models. Every call has a deadline of its own; any thread may make it, one for each model.

    Versions count up and are never given twice; a target keeps :data:`KEPT_RELEASES` of each model.
    """

    def read(self, model: str, *, deep: bool = False) -> Served:
        """Tell what serves there; with ``deep``, every file is read and held against its digest.

        Changes nothing. Raises TargetError, TargetUnreachable.
        """

    def deploy(self, release: Release) -> Deployed:
        """Bring a release there, point at it, and see it answer; else go back to the version before.

        Idempotent: a version that serves and was seen to answer is left alone, and a deployment that was cut off at any
        point is finished by the next call. Readers see the whole old release or the whole new one. Raises BadRelease,
        TargetBusy, TargetError with the old version untouched, and TargetUnreachable when it is unknown.
        """

    def go_back(self, model: str, leaving: int) -> Deployed:
        """Let the version before ``leaving`` serve again; where ``leaving`` does not serve, nothing is changed.

        Idempotent, and finishes what was cut off. SERVING tells that the version before answers. Raises TargetBusy,
        TargetUnreachable, and TargetError when there is no version before.
        """


@dataclass(frozen=True, slots=True)
class TargetContext:
    """What a target is given besides its own options.

    ``credential`` finds the file of a credential by its name, ``read_secret`` its text; both are asked when they are
    needed, so that a changed one counts at once, and raise what tells a person where it should lie.
    """

    credential: Callable[[str], Path]
    read_secret: Callable[[str], str]


def target_options(name: str, kind: type[_Options], options: Mapping[str, str]) -> _Options:
    """Return the options of a target as ``kind`` declares them. Raises BadTargetOption."""
    refuse = partial(BadTargetOption, name, "use its options")
    return read_declared(kind, options, refuse, "docs/deployment.md")


Loader = Callable[[str, Mapping[str, str], TargetContext], Target]

# kind -> "module:function" with the signature Loader.
_LOADERS: Mapping[str, str] = {
    "directory": "platforms.targets.folder:load_directory",
    "s3": "platforms.targets.s3:load",
    "ssh": "platforms.targets.folder:load_ssh",
    "vllm": "platforms.targets.vllm:load",
}


def open_target(name: str, kind: str, options: Mapping[str, str], context: TargetContext) -> Target:
    """Return the target ``name`` of a kind. Raises TargetError for an unknown kind, a bad option, a missing library."""
    address = _LOADERS.get(kind)
    if address is None:
        raise TargetError(name, "open it", f"there is no kind {kind}", f"Known kinds: {', '.join(sorted(_LOADERS))}")
    try:
        return cast("Loader", resolve_name(address))(name, options, context)
    except ImportError as error:
        raise TargetError(name, "open it", str(error), "Install the extra for AWS: uff-scheduler[aws]") from error
