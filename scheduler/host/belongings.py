"""Detects what training can use on this machine: GPUs, a Slurm cluster, accounts, time zone, e-mail address."""

import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from jobs.payload.bounds import digits
from platforms.base import PlatformError
from platforms.slurm.checkup import SlurmNodes, nodes_of

_ASK_GPUS = ("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits")
_ASK_MAIL = ("git", "config", "--get", "user.email")
_PATIENCE_SECONDS = 10.0
_GPUS_MAX = 64
_MEBIBYTES_MAX = 4_000_000
_NAME = re.compile(r"[ -~]{1,80}")
_MAIL = re.compile(r"[^@\s\"\\]{1,64}@[A-Za-z0-9.-]{1,190}")
_ZONE_FILES = Path("/usr/share/zoneinfo")


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU: its name, and its memory in GiB, rounded down to 0.5."""

    name: str
    memory_gib: float


@dataclass(frozen=True, slots=True)
class Belongings:
    """The findings; a finding is empty if it was not detected. ``kaggle`` and ``aws`` say where credentials are."""

    gpus: tuple[Gpu, ...]
    kaggle: str
    aws: str
    zone: str
    mail: str
    slurm: tuple[SlurmNodes, ...] = ()


def look(environ: Mapping[str, str], home: Path, local_time: Path = Path("/etc/localtime")) -> Belongings:
    """Return the findings. Only the commands of Slurm use the network, if they are installed."""
    mail = _answer(_ASK_MAIL).strip()
    return Belongings(
        gpus_of(_answer(_ASK_GPUS)),
        _kaggle(environ, home),
        _aws(environ, home),
        _zone(local_time),
        mail if _MAIL.fullmatch(mail) else "",
        _slurm(environ),
    )


def gpus_of(answer: str) -> tuple[Gpu, ...]:
    """Parse the output of nvidia-smi, lines such as ``NVIDIA H100, 81559``; invalid lines are skipped."""
    gpus = []
    for line in answer.splitlines()[:_GPUS_MAX]:
        name, _, memory = (part.strip() for part in line.rpartition(","))
        if _NAME.fullmatch(name) and (mebibytes := digits(memory, _MEBIBYTES_MAX)):
            gpus.append(Gpu(name.replace('"', "").replace("\\", ""), mebibytes // 512 / 2))
    return tuple(gpus)


def _answer(command: Sequence[str]) -> str:
    """Return the output of a command; empty if it is missing, fails or hangs."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError):
        return ""
    return done.stdout if done.returncode == 0 else ""


def _kaggle(environ: Mapping[str, str], home: Path) -> str:
    if environ.get("KAGGLE_API_TOKEN"):
        return "KAGGLE_API_TOKEN"
    if environ.get("KAGGLE_USERNAME") and environ.get("KAGGLE_KEY"):
        return "KAGGLE_USERNAME and KAGGLE_KEY"
    folder = Path(environ.get("KAGGLE_CONFIG_DIR") or home / ".kaggle")
    return next((str(folder / name) for name in ("access_token", "kaggle.json") if (folder / name).is_file()), "")


def _aws(environ: Mapping[str, str], home: Path) -> str:
    if environ.get("AWS_ACCESS_KEY_ID"):
        return "AWS_ACCESS_KEY_ID"
    file = Path(environ.get("AWS_SHARED_CREDENTIALS_FILE") or home / ".aws" / "credentials")
    return str(file) if file.is_file() else ""


def _slurm(environ: Mapping[str, str]) -> tuple[SlurmNodes, ...]:
    """Return the nodes of the Slurm cluster of this login node; empty if no controller answers in time."""
    if not shutil.which("sinfo"):
        return ()
    conf = environ.get("SLURM_CONF", "")
    options = {"command_seconds": f"{_PATIENCE_SECONDS:g}", **({"slurm_conf": conf} if conf else {})}
    try:
        return tuple(nodes_of(options))
    except PlatformError:
        return ()


def _zone(local_time: Path) -> str:
    """Return the time zone of this machine, UTC if unknown."""
    try:
        name = str(local_time.resolve().relative_to(_ZONE_FILES))
        ZoneInfo(name)
    except (OSError, ValueError, ZoneInfoNotFoundError):
        return "UTC"
    return "UTC" if name == "Etc/UTC" else name
