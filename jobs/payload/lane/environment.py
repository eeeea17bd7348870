"""The virtual environment of a lane: it holds the job's own packages, and falls back on those of the image.

It is built once per lock and image, under a file lock. It is valid only with a marker file, which is written last. An
environment without the marker is deleted and built again, never repaired.
"""

import fcntl
import hashlib
import importlib.util
import json
import os
import re
import shutil
import site
import subprocess
import sys
import tempfile
import venv
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module, metadata
from pathlib import Path
from typing import Any, NamedTuple

from ..log import log
from ..store import lock as locks
from ..store.transport import Transport
from ..whole_file import write_whole
from .failure import ErrorClass, Failure
from .launch import LaneOrder, Launch, Packages

FOLDER, MARK = "environments", "whole.json"
_IMAGE = "_image.pth"
_LISTED_MAX = 12


def build(launch: Launch, order: LaneOrder, packages: Packages, transport: Transport) -> Path:
    """Return the folder of the environment with a lane's packages; build it unless it exists. Raises Failure."""
    try:
        lock = _read_lock(transport, packages)
        pins = _pins(lock, packages)
        image = _image()
        digest = _digest(packages, image)
        folder = launch.cache / FOLDER / digest
        folder.parent.mkdir(parents=True, exist_ok=True)
        # Never closed: the lock keeps the environment from being removed while this process lives.
        hold = os.open(folder.with_name(f"{digest}.lock"), os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(hold, fcntl.LOCK_SH)
        if not _is_complete(folder):
            fcntl.flock(hold, fcntl.LOCK_EX)  # waits while another process builds it
            if not _is_complete(folder):
                scratch = launch.work_dir / f"wheels-{order.lane}"
                wheels = _wheelhouse(transport, packages, scratch)
                _Build(folder, lock, pins, image, Tool(wheels, hold, order.lane, order.environment)).run()
                shutil.rmtree(scratch, ignore_errors=True)
            fcntl.flock(hold, fcntl.LOCK_SH)
        os.utime(folder / MARK)
    except locks.BadLock as error:
        raise Failure("store", f"the lock {packages.lock!r} cannot be used: {error}") from None
    except OSError as error:
        raise Failure("store", f"the packages of the lane cannot be put in place: {error}") from None
    return folder


def _read_lock(transport: Transport, packages: Packages) -> locks.Lock:
    with tempfile.TemporaryDirectory(prefix="uff-lock-") as folder:
        path = Path(folder) / locks.LOCK
        transport.fetch(f"{packages.lock}/{locks.LOCK}", path)
        with path.open("rb") as stream:
            return locks.parse_lock(stream.read(locks.LOCK_BYTES_MAX + 1), packages.lock.rpartition("/")[2])


def _pins(lock: locks.Lock, packages: Packages) -> Mapping[str, locks.Pin]:
    own, wanted = f"{sys.version_info[0]}.{sys.version_info[1]}", packages.target.partition("-")[0]
    if own != wanted:
        raise Failure(
            "environment",
            f"for this pool the job's packages are locked for Python {wanted}, but the image has Python {own}: "
            f'set image_python = "{own}" in the options of the pool, then schedctl queue update JOB',
        )
    if packages.target not in lock.targets:
        raise Failure("environment", f"the lock has no packages for {packages.target}: schedctl queue update JOB")
    return {locks.canonical(pin.name): pin for pin in lock.targets[packages.target]}


def _is_complete(folder: Path) -> bool:
    return (folder / MARK).is_file()


def _image() -> Mapping[str, metadata.Distribution]:
    """Return the packages of the running interpreter by name; of equal names, the first on its path."""
    result: dict[str, metadata.Distribution] = {}
    for distribution in metadata.distributions(path=_site_folders()):
        name = distribution.metadata["Name"]
        if name:
            result.setdefault(locks.canonical(name), distribution)
    return result


def _site_folders() -> list[str]:
    own = [entry for entry in sys.path if entry.endswith("-packages")]
    user = [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
    return [folder for folder in dict.fromkeys([*own, *user, *site.getsitepackages()]) if Path(folder).is_dir()]


def _digest(packages: Packages, image: Mapping[str, metadata.Distribution]) -> str:
    """Return the digest of everything that an environment depends on: its lock, and the image with its packages."""
    facts = [
        packages.lock,
        packages.target,
        sys.version,
        sys.prefix,
        _site_folders(),
        sorted((name, distribution.version) for name, distribution in image.items()),
    ]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]


def _wheelhouse(transport: Transport, packages: Packages, folder: Path) -> Path | None:
    """Return a folder with the wheels from the store, for sessions without a package index; None if there are none."""
    if not packages.wheels:
        return None
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    transport.fetch(f"{packages.wheels}/{locks.WHEELS}", folder / locks.WHEELS)
    for name, digest in locks.parse_wheels((folder / locks.WHEELS).read_bytes()).items():
        if transport.fetch(f"{packages.wheels}/{digest}", folder / name) != digest:
            raise locks.BadLock(f"the wheel {name} does not have the digest it is named by")
    return folder


class _Build:
    """The build of one environment."""

    def __init__(
        self,
        folder: Path,
        lock: locks.Lock,
        pins: Mapping[str, locks.Pin],
        image: Mapping[str, metadata.Distribution],
        tool: "Tool",
    ) -> None:
        self._folder, self._lock, self._pins, self._image = folder, lock, pins, image
        self._tool, self._lane = tool, tool.lane
        self._python = folder / "bin" / "python"
        self._site = folder / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
        self._fetched: dict[str, locks.Pin] = {}
        self._own: dict[str, Installed] = {}

    def run(self) -> None:
        """Build the environment and write the marker; remove a failed build. Raises Failure, OSError."""
        shutil.rmtree(self._folder, ignore_errors=True)
        try:
            venv.EnvBuilder(symlinks=True, with_pip=False).create(self._folder)
            while reasons := self._next_installs():
                self._install(reasons)
            # After its own packages, the interpreter finds those of the image, with the additions of their .pth files.
            lines = [f"import site; site.addsitedir({folder!r})\n" for folder in _site_folders()]
            (self._site / _IMAGE).write_text("".join(lines))
            self._wrap_scripts()
            self._log_packages()
            os.sync()  # without a sync a power failure could leave the marker, but not the files
            fetched = [f"{pin.name}=={pin.version}" for pin in self._fetched.values()]
            write_whole(self._folder / MARK, json.dumps({"fetched": fetched}))
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise

    def _next_installs(self) -> dict[str, str]:
        """Return the names to install next, each with its reason; a package of the image that is good enough stays."""
        requirements = rules()
        if requirements is None:
            return {name: "" for name, pin in self._pins.items() if name not in self._fetched and self._differs(pin)}
        exact = {name: pin.version for name, pin in self._pins.items()} if self._lock.exact else {}
        result: dict[str, str] = {}
        unresolved: list[Unmet] = []
        for missing in unmet(requirements, self._lock.demands, self._installed, exact, {}):
            # If a downloaded package is too new for a package of the image, the latter is downloaded as well.
            names = (missing.name, missing.by)
            name = next((each for each in names if each in self._pins and each not in self._fetched), None)
            if name is None:
                unresolved.append(missing)
            else:
                result.setdefault(name, _why(missing) if missing.version else "")
        if not result:
            for missing in unresolved:
                log(self._lane, f"packages: {_why(missing)}, and the lock has no version that fits")
        return result

    def _differs(self, pin: locks.Pin) -> bool:
        installed = self._image.get(locks.canonical(pin.name))
        return installed is None or installed.version.partition("+")[0] != pin.version

    def _installed(self, name: str) -> "Installed | None":
        if name in self._own:
            return self._own[name]
        installed = self._image.get(name)
        return None if installed is None else Installed(installed.version, tuple(installed.requires or ()))

    def _install(self, reason_by_name: Mapping[str, str]) -> None:
        pins = [self._pins[name] for name in sorted(reason_by_name)]
        for name, why in sorted(reason_by_name.items()):
            if why:
                log(self._lane, f"packages: {self._pins[name].name} {self._pins[name].version} is fetched: {why}")
        requirements_file = self._folder / "lock.txt"
        requirements_file.write_text(locks.requirement_lines(pins))
        reasons = "; ".join(why for why in reason_by_name.values() if why)
        install(self._tool, self._python, requirements_file, reasons)
        self._fetched.update({name: self._pins[name] for name in reason_by_name})
        for distribution in metadata.distributions(path=[str(self._site)]):
            if distribution.metadata["Name"]:
                self._own[locks.canonical(distribution.metadata["Name"])] = Installed(
                    distribution.version, tuple(distribution.requires or ())
                )

    def _wrap_scripts(self) -> None:
        """Wrap programs of the image, such as torchrun, so that they run in this interpreter with its packages."""
        for distribution in self._image.values():
            for entry in distribution.entry_points:
                script = self._folder / "bin" / entry.name
                module, _, attribute = entry.value.partition("[")[0].strip().partition(":")
                if entry.group != "console_scripts" or "/" in entry.name or not attribute or script.exists():
                    continue
                script.write_text(
                    f"#!/bin/sh\n'''exec' \"{self._python}\" \"$0\" \"$@\"\n' '''\n"
                    f"import sys\nfrom {module} import {attribute.partition('.')[0]}\nsys.exit({attribute}())\n"
                )
                script.chmod(0o755)

    def _log_packages(self) -> None:
        """Log which packages were installed, their size on disk, and for which packages the image's version is used."""
        fetched = sorted(f"{pin.name} {pin.version}" for pin in self._fetched.values())
        size = sum(path.lstat().st_size for path in self._site.rglob("*") if path.is_file())
        kept = [
            f"{name} {self._image[name].version}"
            for name in sorted(self._pins)
            if name in self._image and name not in self._fetched
        ]
        log(self._lane, f"packages: fetched {_listed(fetched)}, {size / (1 << 20):,.1f} MiB on disk")
        if kept:
            log(self._lane, f"packages: the image's own versions are used of {_listed(kept)}")


def _why(missing: "Unmet") -> str:
    installed = f"{missing.version} is installed" if missing.version else "is not installed"
    return f"{missing.by or 'the job'} requires {missing.text}, and {missing.name} {installed}"


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _LISTED_MAX} more" if len(names) > _LISTED_MAX else ""
    return (", ".join(names[:_LISTED_MAX]) or "nothing") + more


# Installation with uv or pip: exactly the listed packages, each verified by its digest.
_VARIABLES = {
    "UV_NO_CONFIG": "1", "UV_PYTHON_DOWNLOADS": "never", "UV_NO_PROGRESS": "1",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1", "PIP_NO_COLOR": "1",
}  # fmt: skip
SIGNED = re.compile(r"://[^/\s@]+@")  # the user and password of a URL
_LINES_KEPT = 12
LINE_CHARACTERS = 400
_NETWORK = (
    "temporary failure in name resolution", "name or service not known", "network is unreachable", "no route to host",
    "connection refused", "connection reset", "failed to establish a new connection", "error sending request",
    "read timed out", "dns error",
)  # fmt: skip
_DISK = ("no space left on device", "disk quota exceeded")


class Tool(NamedTuple):
    """How packages are installed: only from the folder ``wheels``, or if it is None from an index.

    ``variables`` of the environment may name the index. The installer inherits the file lock ``hold``: if this process
    is killed, no other process builds here while the installer still writes.
    """

    wheels: Path | None
    hold: int
    lane: int
    variables: Mapping[str, str]


def install(tool: Tool, python: Path, requirements_file: Path, reasons: str) -> None:
    """Install the packages of a file; ``reasons``, for the message, say why. Raises Failure, OSError."""
    source = ("--no-index", "--find-links", str(tool.wheels)) if tool.wheels is not None else ()
    options = ("--no-deps", "--require-hashes", "--only-binary", ":all:", *source, "-r", str(requirements_file))
    variables = {**os.environ, **tool.variables}
    kept = {name: text for name, text in variables.items() if name not in {"PYTHONPATH", "PYTHONHOME"}}
    lines: deque[str] = deque(maxlen=_LINES_KEPT)
    with subprocess.Popen(
        (*_installer(python), *options),
        cwd=requirements_file.parent,
        env={**kept, **_VARIABLES},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        pass_fds=(tool.hold,),
    ) as process:
        if process.stdout is not None:
            for raw in process.stdout:
                line = SIGNED.sub("://***@", raw.decode(errors="replace").rstrip())[:LINE_CHARACTERS]
                if line:
                    log(tool.lane, f"packages: {line}")
                    lines.append(line)
    if process.returncode:
        listing = "\n".join(lines)
        why = f"the job's packages cannot be installed (exit status {process.returncode})"
        because = f"; they are needed, since {reasons}" if reasons else ""
        raise Failure(_class(listing.lower()), f"{why}{because}: {listing}")


def _installer(python: Path) -> tuple[str, ...]:
    search_path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    uv = shutil.which("uv", path=search_path)
    if uv is not None:
        return (uv, "pip", "install", "--python", str(python), "--no-cache")
    if importlib.util.find_spec("pip") is None:
        raise Failure("environment", "the image has neither uv nor pip, and the job needs packages of its own")
    return (sys.executable, "-m", "pip", "--python", str(python), "install", "--no-cache-dir", "--progress-bar", "off")


def _class(output: str) -> ErrorClass:
    if any(words in output for words in _DISK):
        return "store"
    return "network" if any(words in output for words in _NETWORK) else "environment"


# Requirements: which of them the installed packages do not meet.
class Installed(NamedTuple):
    """An installed package: its version and its own requirements."""

    version: str
    demands: tuple[str, ...]


class Unmet(NamedTuple):
    """An unmet requirement of the package ``by``; an empty ``by`` is the job itself."""

    name: str
    by: str
    text: str
    version: str  # the installed version of the package ``name``; empty: not installed


def rules() -> Any:
    """Return the module ``packaging.requirements``, from the interpreter or its pip; None if neither has it."""
    for name in ("packaging.requirements", "pip._vendor.packaging.requirements"):
        try:
            return import_module(name)
        except ImportError:
            continue
    return None


def unmet(
    requirements: Any,
    demands: Iterable[str],
    find_installed: Callable[[str], Installed | None],
    pinned: Mapping[str, str],
    markers: Mapping[str, str],
) -> list[Unmet]:
    """Return the unmet ``demands`` and those of the packages that they need; ``markers`` replace environment values."""
    unmet_by_key: dict[tuple[str, str], Unmet] = {}
    ahead = [("", "", demand) for demand in demands]
    checked: set[tuple[str, str]] = set()
    while ahead:
        by, extra, text = ahead.pop()
        try:
            demand = requirements.Requirement(text)
        except ValueError:
            continue  # an old package of the image has a requirement that pip cannot parse either
        if demand.marker is not None and not demand.marker.evaluate({**markers, "extra": extra}):
            continue
        name = locks.canonical(demand.name)
        installed = find_installed(name)
        if installed is None or not _meets(demand, installed.version, pinned.get(name)):
            unmet_by_key.setdefault((name, by), Unmet(name, by, text, installed.version if installed else ""))
            continue
        for part in ("", *demand.extras):
            if (name, part) not in checked:
                checked.add((name, part))
                ahead += [(name, part, inner) for inner in installed.demands]
    return list(unmet_by_key.values())


def _meets(demand: Any, version: str, pinned: str | None) -> bool:
    if pinned is not None and version.partition("+")[0] != pinned.partition("+")[0]:
        return False
    try:
        return bool(demand.specifier.contains(version, prereleases=True))
    except ValueError:
        return False
