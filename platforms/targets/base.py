"""The interface of a deployment target, whose docstrings are the contract, and the errors that targets raise.

Errors::

    TargetError            base: a person must act; carries target, action, why and what to do next
      BadTargetOption      the value of an option is not valid
      BadRelease           files do not match their digests, before or after the copy, or are of a kind never served
      TargetBusy           another deployment to this target is in progress; nothing was changed
      TargetUnreachable    no reliable answer; the action may have happened, and read() returns the state
"""

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
KEPT_RELEASES = 3  # releases of a model that a target keeps: the serving one and those before it


class TargetError(UserError):
    """Base of all target errors. ``remedy`` is the next thing to try, in one sentence."""

    def __init__(self, target: str, action: str, why: str, remedy: str = "") -> None:
        super().__init__(f"target {target}: cannot {action}", why, remedy)
        self.target = target
        self.action = action


class BadTargetOption(TargetError):
    """The value of an option is not valid, wherever the option was read."""


class BadRelease(TargetError):
    """The files do not match the digests of the release, or are of a kind that is never served."""


class TargetBusy(TargetError):
    """Another deployment to this target is in progress; nothing was changed. A retry is safe."""


class TargetUnreachable(TargetError):
    """No reliable answer: the action may or may not have happened. A retry is safe."""


@dataclass(frozen=True, slots=True)
class Release:
    """One version of a model as files.

    ``folder`` is on this machine; ``files`` maps relative file names to sha256 digests; ``sums`` is the content of
    SHA256SUMS, and ``digest`` the sha256 of that content, which identifies the release.
    """

    model: str
    version: int
    folder: Path
    files: Mapping[str, str]
    sums: bytes = field(repr=False)
    digest: str


@dataclass(frozen=True, slots=True)
class Served:
    """The state of one model on a target.

    ``version`` is the active version and ``digest`` the digest of its release; None and "" if there is none. ``proven``
    is False until that version passed its health check: a deployment was interrupted and must be finished or rolled
    back. ``before`` are the kept versions that served earlier, newest first. ``damaged`` lists the files that do not
    match their digests; it is filled only by read() with ``deep``.
    """

    version: int | None = None
    digest: str = ""
    proven: bool = False
    before: tuple[int, ...] = ()
    damaged: tuple[str, ...] = ()


class DeployOutcome(StrEnum):
    """How a deployment ended. After each outcome at most one version serves."""

    SERVING = "serving"  # the version serves and passed its health check
    RETURNED = "returned"  # the version failed its health check, and the version before serves again
    DOWN = "down"  # the version failed its health check, and so did the version before, or there is none


@dataclass(frozen=True, slots=True)
class Deployed:
    """The result of deploy() or go_back(): the ``version`` that is active now, and a text that says what happened."""

    outcome: DeployOutcome
    version: int | None
    detail: str = ""


class Target(Protocol):
    """One target that serves models. Every call has a timeout. Calls may come from any thread, one per model at a time.

    Version numbers increase and are never reused; a target keeps :data:`KEPT_RELEASES` of each model.
    """

    def read(self, model: str, *, deep: bool = False) -> Served:
        """Return which version serves. With ``deep``, read every file and compare it with its digest.

        Changes nothing. Raises TargetError, TargetUnreachable.
        """

    def deploy(self, release: Release) -> Deployed:
        """Copy a release to the target, activate it and check its health; on failure reactivate the version before.

        Idempotent: a version that serves and passed its health check is not deployed again, and the next call finishes
        an interrupted deployment. Readers see either the complete old release or the complete new one. Raises
        BadRelease, TargetBusy or TargetError with the old version unchanged, TargetUnreachable if the state is unknown.
        """

    def go_back(self, model: str, leaving: int) -> Deployed:
        """Reactivate the version before ``leaving``; change nothing if ``leaving`` is not the active version.

        Idempotent; finishes an interrupted rollback. SERVING means that the version before answers. Raises TargetBusy,
        TargetUnreachable, and TargetError if there is no version before.
        """


@dataclass(frozen=True, slots=True)
class TargetContext:
    """Access to credentials, which a target gets in addition to its options.

    ``credential`` returns the path of a credential's file by name, ``read_secret`` returns its text. Targets call both
    at each use, so that a changed credential takes effect at once. Both raise an error that names the expected path.
    """

    credential: Callable[[str], Path]
    read_secret: Callable[[str], str]


def target_options(name: str, kind: type[_Options], options: Mapping[str, str]) -> _Options:
    """Return the options of a target as ``kind`` declares them. Raises BadTargetOption."""
    return read_declared(kind, options, partial(BadTargetOption, name, "use its options"), "docs/deployment.md")


Loader = Callable[[str, Mapping[str, str], TargetContext], Target]

# The function with the signature Loader of each kind of target, as "module:function".
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
