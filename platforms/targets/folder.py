"""Targets that are folders: a release is copied next to the others, and one symbolic link selects the active one.

The steps that must be atomic run on the target's machine, in activate.sh, which holds a lock.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from platforms.options import Written
from platforms.targets import base
from platforms.targets.reach import HOST, PLAIN_PATH, Here, Ran, Reach, Ssh, SshOptions, shell_script

_ANSWER_SECONDS = 60.0  # for a read, and in addition to the time of restart and health check
_DAMAGED_MAX = 20
_LINE = re.compile(r"(current|proven|kept|digest|damaged) ?(.*)")
_NUMBERS = re.compile(r"(\d{1,9}( \d{1,9})*)?")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_BAD, _RETURNED, _DOWN = 65, 70, 71  # exit codes of activate.sh that report an outcome; the others are errors

Command = Annotated[
    str, Written(form=re.compile(r"(?s)[^\0]{0,2000}"), remedy="Put long commands into a script there, and name it")
]
HealthTime = Annotated[int, Written("health_time", most=3_600)]
CopyTime = Annotated[int, Written("copy_time", most=86_400)]


@dataclass(frozen=True, kw_only=True)
class Commands:
    """Bash commands that run on the target's machine, with MODEL, VERSION and FOLDER set; each may be empty.

    ``restart`` makes the server load the release that ``current`` points at; ``health`` succeeds if it answers. After a
    failed deployment ``return_health`` checks the version before; the default is ``health``, unless that timed out.
    """

    restart: Command = ""
    health: Command = ""
    return_health: Command = ""
    restart_seconds: Annotated[int, Written("restart_time", most=3_600)] = 60
    health_seconds: HealthTime = 120

    @property
    def seconds(self) -> int:
        """The longest time of a deployment that fails, in seconds: both commands, for both versions."""
        return 2 * (self.restart_seconds + self.health_seconds + 10)


@dataclass(frozen=True, kw_only=True)
class DirectoryOptions(Commands):
    """The options of a target on this machine."""

    path: Annotated[str, Written(form=re.compile(r"(?s)(/|~/?).*"), remedy="Write it from / or ~/ on")]
    copy_seconds: CopyTime = 3_600


@dataclass(frozen=True, kw_only=True)
class RemoteOptions(SshOptions):
    """The options to connect to a target on another machine and to copy models there."""

    path: Annotated[str, Written(form=PLAIN_PATH, remedy="Write plain words from / or ~/ on, none of them ..")]
    copy_seconds: CopyTime = 3_600
    connect_seconds: Annotated[int, Written("connect_time", most=300)] = 10
    stall_seconds: Annotated[int, Written("stall_time", most=3_600)] = 30

    def reach(self, name: str, context: base.TargetContext) -> Ssh:
        """Return the ssh connection to the target's machine. ``name`` is the target's name, for errors."""
        identity = (lambda: context.credential(self.identity)) if self.identity else None
        words = self.ssh_words(self.connect_seconds)
        return Ssh(name, self.host, words, identity, self.stall_seconds, self.connect_seconds)


@dataclass(frozen=True, kw_only=True)
class FarOptions(RemoteOptions, Commands):
    """The options of a target on another machine."""

    host: Annotated[str, Written(form=HOST)] = field()


def load_ssh(name: str, options: Mapping[str, str], context: base.TargetContext) -> "FolderTarget":
    """Return a target on another machine; ``host`` and ``path`` are required. Raises TargetError."""
    read = base.target_options(name, FarOptions, options)
    path = read.path.removeprefix("~/")  # the shell on the other machine starts in the home folder
    return FolderTarget(name, read.reach(name, context), path, read, read.copy_seconds)


def load_directory(name: str, options: Mapping[str, str], context: base.TargetContext) -> "FolderTarget":
    """Return a target on this machine; ``path`` is required. Raises TargetError."""
    del context
    read = base.target_options(name, DirectoryOptions, options)
    return FolderTarget(name, Here(name), str(Path(read.path).expanduser()), read, read.copy_seconds)


@dataclass(frozen=True, slots=True)
class FolderTarget:
    """The models below ``path`` on the machine of ``reach``. A copy times out after ``copy_seconds``."""

    name: str
    reach: Reach
    path: str
    commands: Commands = Commands()
    copy_seconds: int = 3_600

    def read(self, model: str, *, deep: bool = False) -> base.Served:
        """See Target.read."""
        seconds = self.copy_seconds if deep else _ANSWER_SECONDS
        ran = self.reach.bash(_script(), ["check" if deep else "read", self.path, model], seconds)
        return self._served(self._passed(ran, "read what it serves").out)

    def deploy(self, release: base.Release) -> base.Deployed:
        """See Target.deploy."""
        serving = self.read(release.model)
        if not (serving.proven and (serving.version, serving.digest) == (release.version, release.digest)):
            ran = self._bring("deploy", release)
            if ran.code == _RETURNED:
                return base.Deployed(base.DeployOutcome.RETURNED, self._served(ran.out).version, ran.last_words)
            if ran.code == _DOWN:
                return base.Deployed(base.DeployOutcome.DOWN, None, ran.last_words)
            serving = self._served(self._passed(ran, f"deploy {release.model} {release.version}").out)
        return base.Deployed(base.DeployOutcome.SERVING, serving.version)

    def go_back(self, model: str, leaving: int) -> base.Deployed:
        """See Target.go_back."""
        ran = self._act("back", model, leaving, "", _ANSWER_SECONDS)
        if ran.code == _DOWN:
            return base.Deployed(base.DeployOutcome.DOWN, None, ran.last_words)
        served = self._served(self._passed(ran, f"go back from {model} {leaving}").out)
        return base.Deployed(base.DeployOutcome.SERVING, served.version)

    def place(self, release: base.Release) -> None:
        """Copy a release to the target and check its digests, without activating it. Raises the errors of deploy."""
        self._passed(self._bring("place", release), f"place {release.model} {release.version}")

    def point(self, model: str, version: int, digest: str) -> None:
        """Activate a release that was placed and whose probe passed. Raises the errors of deploy."""
        self._passed(self._act("point", model, version, digest, self.copy_seconds), f"point at {model} {version}")

    def _bring(self, action: str, release: base.Release) -> Ran:
        """Copy a release to the target and run ``action`` on it. A copy that exists is reused unless it is damaged."""
        answer = self.reach.bash(_script(), ["read", self.path, release.model], _ANSWER_SECONDS)
        lies_there = any(
            line.startswith("kept ") and str(release.version) in line.split()[1:] for line in answer.out.splitlines()
        )
        if not lies_there:
            self._copy(release)
        ran = self._act(action, release.model, release.version, release.digest, self.copy_seconds)
        if ran.code == _BAD and lies_there:
            self._copy(release)
            ran = self._act(action, release.model, release.version, release.digest, self.copy_seconds)
        return ran

    def _copy(self, release: base.Release) -> None:
        folder = f"{self.path}/{release.model}/releases/.in-{release.version}-{release.digest[:12]}"
        self.reach.copy(release, folder, self.copy_seconds)

    def _act(self, action: str, model: str, version: int, digest: str, seconds: float) -> Ran:
        commands = self.commands
        words = [action, self.path, model, str(version), digest]
        words += [commands.restart, commands.health, commands.return_health]
        numbers = [str(number) for number in (commands.restart_seconds, commands.health_seconds, base.KEPT_RELEASES)]
        return self.reach.bash(_script(), [*words, *numbers], seconds + commands.seconds)

    def _served(self, out: str) -> base.Served:
        """Parse the output of activate.sh; ignore other lines that the target prints."""
        data: dict[str, str] = {}
        damaged: list[str] = []
        for line in out.splitlines():
            if match := _LINE.fullmatch(line):
                data[match[1]] = match[2].strip()
                damaged += [match[2][:200]] if match[1] == "damaged" else []
        current, proven = data.get("current", ""), data.get("proven", "")
        if not (_NUMBERS.fullmatch(current) and _NUMBERS.fullmatch(proven)) or " " in current:
            raise base.TargetUnreachable(self.name, "read what it serves", "its answer makes no sense")
        digest = data.get("digest", "")
        answered = [int(number) for number in proven.split()]
        version = int(current) if current else None
        return base.Served(
            version,
            digest if _DIGEST.fullmatch(digest) else "",
            proven=version is not None and answered[:1] == [version],
            before=tuple(number for number in answered if number not in {0, version}),
            damaged=tuple(damaged[:_DAMAGED_MAX]),
        )

    def _passed(self, ran: Ran, action: str) -> Ran:
        """Return a result with exit code 0; raise the error that any other code stands for."""
        why = ran.why
        match ran.code:
            case 0:
                return ran
            case 65:
                raise base.BadRelease(self.name, action, why, "Deploy it again; if that does not help, export it again")
            case 66:
                raise base.TargetError(self.name, action, why, "Deploy a version that is good")
            case 69:
                remedy = f"It needs bash, flock and GNU coreutils, and to write to {self.path}"
                raise base.TargetError(self.name, action, why, remedy)
            case 75:
                raise base.TargetBusy(self.name, action, why, "Try again when that is over")
        raise base.TargetUnreachable(self.name, action, why, "Look at its disk; deploying again finishes or returns")


def _script() -> bytes:
    return shell_script("platforms.targets", "activate.sh").encode()
