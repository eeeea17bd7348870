"""The target ``s3``: releases are objects of a bucket, and a small object points at the active one.

A server reads the pointer ``MODEL/current.json``. Only conditional writes change it, so of two concurrent deployments
one fails with TargetBusy. The version in the pointer counts as serving, because a bucket cannot answer a prompt. With a
health check, a command on this machine that queries the server behind the bucket, the pointer also records whether the
version passed it.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

from jobs.payload.bounds import INSTANT_MAX, digits, read_json
from jobs.payload.store.manifest import sha256_file
from platforms.artifacts.base import Missing, StoreError, StoreUnreachable
from platforms.artifacts.s3.client import CONTENDED, EXISTS, S3Options, code_of, translated
from platforms.artifacts.s3.store import S3Store
from platforms.targets import base
from platforms.targets.folder import Command, Commands, HealthTime
from platforms.targets.reach import run
from platforms.targets.release import SUMS

_POINTER_MAX_BYTES = 1 << 14
_FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class S3TargetOptions(S3Options):
    """The options of an ``s3`` target; ``credentials`` is a path, or the name of a credential."""

    health: Command = ""
    health_seconds: HealthTime = 120


def load(name: str, options: Mapping[str, str], context: base.TargetContext) -> "S3Target":
    """Return the target; ``bucket`` and ``region`` are required. Raises TargetError."""
    read = base.target_options(name, S3TargetOptions, options)
    named = read.credentials and "/" not in read.credentials
    credentials = str(context.credential(read.credentials)) if named else ""
    from botocore.exceptions import BotoCoreError

    try:
        client = read.client(credentials=credentials)
    except (BotoCoreError, ValueError) as error:
        remedy = "Correct profile, credentials, region or endpoint"
        raise base.BadTargetOption(name, "use its options", str(error), remedy) from error
    commands = Commands(health=read.health, health_seconds=read.health_seconds)
    return S3Target(name, S3Store(client, read.bucket, prefix=read.prefix), commands)


@dataclass(frozen=True, slots=True)
class _Pointer:
    """The content of ``current.json``: (version, digest) pairs, the active one first.

    ``mark`` is the ETag of the object, "" if there is none. ``proven`` is False until the active version passed its
    health check.
    """

    releases: tuple[tuple[int, str], ...] = ()
    mark: str = ""
    proven: bool = True


@dataclass(frozen=True, slots=True)
class S3Target:
    """Models in an S3 store. Of ``commands`` only the health check is used."""

    name: str
    store: S3Store
    commands: Commands

    def read(self, model: str, *, deep: bool = False) -> base.Served:
        """See Target.read."""
        with self._explained("read what it serves"):
            pointer = self._pointer(model)
            if not pointer.releases:
                return base.Served()
            (version, digest), *before = pointer.releases
            damaged = tuple(self._damaged(model, version, digest)) if deep else ()
            older = tuple(number for number, _ in before)
            return base.Served(version, digest, proven=pointer.proven, before=older, damaged=damaged)

    def deploy(self, release: base.Release) -> base.Deployed:
        """See Target.deploy."""
        with self._explained(f"deploy {release.model} {release.version}"):
            pointer, new = self._pointer(release.model), (release.version, release.digest)
            if pointer.releases[:1] != (new,):
                if any(number == release.version and digest != release.digest for number, digest in pointer.releases):
                    why = f"another release of version {release.version} was served there"
                    raise base.BadRelease(self.name, "deploy it", why, "Export it under a new number")
                self._send(release)
                kept = (new, *(one for one in pointer.releases if one != new))[: base.KEPT_RELEASES]
                self._point(release.model, kept, pointer.mark, proven=not self.commands.health)
            back = self._proved(release.model, new)
            self._prune(release.model)
            return back or base.Deployed(base.DeployOutcome.SERVING, release.version)

    def go_back(self, model: str, leaving: int) -> base.Deployed:
        """See Target.go_back."""
        with self._explained(f"go back from {model} {leaving}"):
            pointer = self._pointer(model)
            now = pointer.releases[0][0] if pointer.releases else None
            if now != leaving:
                return base.Deployed(base.DeployOutcome.SERVING, now)
            if len(pointer.releases) < 2:
                raise base.TargetError(
                    self.name, "go back", f"no version before {leaving} is kept", "Deploy a version that is good"
                )
            self._point(model, pointer.releases[1:], pointer.mark, proven=True)
            return base.Deployed(base.DeployOutcome.SERVING, pointer.releases[1][0])

    def _proved(self, model: str, new: tuple[int, str]) -> base.Deployed | None:
        """Check the health of the active version unless it is proven; return the outcome if it fails, else None.

        On failure the pointer goes back to the version before, if there is one. Raises TargetBusy.
        """
        if self._pointer(model).proven:
            return None
        why = self._fault(model, *new)
        now = self._pointer(model)
        if now.releases[:1] != (new,):
            raise base.TargetBusy(self.name, "prove it", "another deployer was faster", "Try again")
        if not why:
            self._point(model, now.releases, now.mark, proven=True)
            return None
        if len(now.releases) < 2:
            return base.Deployed(base.DeployOutcome.DOWN, None, why)
        self._point(model, now.releases[1:], now.mark, proven=True)
        return base.Deployed(base.DeployOutcome.RETURNED, now.releases[1][0], why)

    def _fault(self, model: str, version: int, digest: str) -> str:
        """Run the health check; return why it fails, or ""."""
        folder = f"s3://{self.store.bucket}/{self.store.prefix}{_folder(model, version, digest)}"
        variables = ("env", f"MODEL={model}", f"VERSION={version}", f"FOLDER={folder}")
        ran = run((*variables, "bash", "-c", self.commands.health), self.commands.health_seconds)
        if ran.code is None:
            return f"the health check took longer than {self.commands.health_seconds} s"
        return f"the health check failed with {ran.code}: {ran.last_words}" if ran.code else ""

    def _send(self, release: base.Release) -> None:
        """Upload the missing files of a release, SHA256SUMS last. Existing objects must have the right size."""
        folder = _folder(release.model, release.version, release.digest)
        for name, digest in release.files.items():
            if sha256_file(release.folder / name) != digest:
                raise base.BadRelease(self.name, "send it", f"{name} changed since it was exported", "Export it again")
            self.store.create(f"{folder}{name}", release.folder / name)
            if self.store.size(f"{folder}{name}") != (release.folder / name).stat().st_size:
                why = f"{name} lies there already and is of another size"
                raise base.BadRelease(self.name, "send it", why, f"Look at {folder} in the bucket, and delete it")
        self.store.create(f"{folder}{SUMS}", release.sums)

    def _point(self, model: str, releases: tuple[tuple[int, str], ...], mark: str, *, proven: bool) -> None:
        from botocore.exceptions import ClientError

        data: dict[str, Any] = {"format": _FORMAT, "model": model, "version": releases[0][0], "digest": releases[0][1]}
        data["proven"] = proven
        data["folder"] = self.store.prefix + _folder(model, *releases[0])
        data["before"] = [{"version": version, "digest": digest} for version, digest in releases[1:]]
        condition = {"IfMatch": mark} if mark else {"IfNoneMatch": "*"}
        with translated("write", f"{model}/current.json", self.store.bucket):
            try:
                self.store.client.put_object(
                    Bucket=self.store.bucket, Key=self._key(model), Body=json.dumps(data).encode(), **condition
                )
            except ClientError as error:
                if code_of(error) not in EXISTS | CONTENDED:
                    raise
                raise base.TargetBusy(self.name, "point at it", "another deployer was faster", "Try again") from error

    def _pointer(self, model: str) -> _Pointer:
        """Read the pointer, empty if there is no object. Raises StoreError; TargetUnreachable if it is malformed."""
        try:
            with translated("read", f"{model}/current.json", self.store.bucket):
                answer = self.store.client.get_object(Bucket=self.store.bucket, Key=self._key(model))
                with closing(answer["Body"]) as body:
                    data = body.read(_POINTER_MAX_BYTES)
        except Missing:
            return _Pointer()
        try:
            document = read_json(data)
            listed = [document, *document["before"]]
            releases = tuple((int(one["version"]), str(one["digest"])) for one in listed)
            if document["model"] != model or document["format"] != _FORMAT or len(releases) > base.KEPT_RELEASES:
                raise ValueError(model)
        except (ValueError, KeyError, TypeError):
            raise base.TargetUnreachable(
                self.name, "read what it serves", f"{model}/current.json makes no sense", "Mend or delete that object"
            ) from None
        return _Pointer(releases, str(answer["ETag"]), document.get("proven") is not False)

    def _damaged(self, model: str, version: int, digest: str) -> Iterator[str]:
        """Yield a text for each missing file of a release. Content is not compared: a bucket keeps objects intact."""
        folder = _folder(model, version, digest)
        there = {key.removeprefix(folder) for key in self.store.keys(folder)}
        if SUMS not in there:
            yield f"{SUMS} is missing"
            return
        listed = self.store.read(f"{folder}{SUMS}").decode("ascii", "replace").splitlines()
        for name in sorted({line[66:] for line in listed} - there):
            yield f"{name} is missing"

    def _prune(self, model: str) -> None:
        """Delete older releases that the pointer does not name; a newer one may belong to a deployment in progress."""
        pointer = self._pointer(model)
        kept = {_folder(model, *one) for one in pointer.releases}
        for key in list(self.store.keys(f"{model}/releases/")):
            folder = "/".join(key.split("/")[:3]) + "/"
            number = digits(folder.split("/")[2].partition("-")[0], INSTANT_MAX)
            if folder not in kept and number is not None and number < pointer.releases[0][0]:
                self.store.delete(key)

    def _key(self, model: str) -> str:
        return f"{self.store.prefix}{model}/current.json"

    @contextmanager
    def _explained(self, action: str) -> Iterator[None]:
        try:
            yield
        except StoreUnreachable as error:
            raise base.TargetUnreachable(self.name, action, error.why, error.remedy) from error
        except StoreError as error:
            raise base.TargetError(self.name, action, error.why, error.remedy) from error


def _folder(model: str, version: int, digest: str) -> str:
    """Return the key prefix of a release's objects, with its digest, so that releases never share objects."""
    return f"{model}/releases/{version}-{digest[:12]}/"
