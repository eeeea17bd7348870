"""Resolve and download packages with uv, or with pip if uv is missing. Packages are never built."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from jobs.child_process import child_environment, run_child
from jobs.environment.demands import Demands, PythonTarget, RequirementsError, here
from jobs.payload.lane.environment import Installed, rules, unmet
from jobs.payload.store.lock import Lock, Pin, canonical, requirement_lines

_SECONDS = 900
_SIGNED = re.compile(r"://[^/\s@]+@")  # a URL with a password
_LINES_TOLD = 8
_LINE_CHARACTERS = 400
_PINNED = re.compile(r"([A-Za-z0-9._-]+)==([^\s;\\]+)([^\n]*)")
# The variables that a job or the daemon's environment may pass to a tool: package indexes and how to reach them.
# Any other variable could name a program, a file to read or a file to write.
_UV_SAYS = re.compile(
    r"UV_((DEFAULT_|EXTRA_)?INDEX(_URL)?|INDEX_[A-Z0-9_]+_(USERNAME|PASSWORD)|FIND_LINKS|INSECURE_HOST|NATIVE_TLS|"
    r"SYSTEM_CERTS|HTTP_TIMEOUT)"
)
_PIP_SAYS = {
    "PIP_INDEX_URL": "--index-url",
    "PIP_EXTRA_INDEX_URL": "--extra-index-url",
    "PIP_FIND_LINKS": "--find-links",
    "PIP_TRUSTED_HOST": "--trusted-host",
    "PIP_PROXY": "--proxy",
    "PIP_CERT": "--cert",
    "PIP_DEFAULT_TIMEOUT": "--timeout",
}
_UV = {"UV_NO_CONFIG": "1", "UV_PYTHON_DOWNLOADS": "never", "UV_NO_PROGRESS": "1", "UV_KEYRING_PROVIDER": "disabled"}
_PIP = {"PIP_CONFIG_FILE": os.devnull}


class NoWheel(Exception):
    """A tool found no set of packages; the message is the end of its output."""


@dataclass(frozen=True, slots=True)
class PackageTools:
    """The tools of this machine: the path of uv (empty if missing), and whether this interpreter has pip."""

    uv: str
    pip: bool

    @property
    def name(self) -> str:
        """The name of the tool that makes locks."""
        return "uv" if self.uv else "pip"


def find_tools() -> PackageTools:
    """Find uv beside this interpreter or on PATH, and pip. Raises RequirementsError if there is neither."""
    places = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    tools = PackageTools(shutil.which("uv", path=places) or "", find_spec("pip") is not None)
    if not tools.uv and not tools.pip:
        raise RequirementsError(
            "this job", "neither uv nor pip is here", "Install one: pip install 'uff-scheduler[uv]', or put uv on PATH"
        )
    return tools


def resolve(
    tools: PackageTools, demands: Demands, target: PythonTarget, variables: Mapping[str, str]
) -> tuple[Pin, ...]:
    """Return the resolved packages of the demands on a target, by name.

    ``variables`` are those of the job, which may name an index. Raises NoWheel, OSError.
    """
    with tempfile.TemporaryDirectory(prefix="schedctl-lock-") as name:
        folder = Path(name)
        requirements, bounds = folder / "requirements.in", folder / "constraints.txt"
        requirements.write_text("".join(f"{line}\n" for line in demands.lines))
        bounds.write_text("".join(f"{line}\n" for line in demands.constraints))
        files = (str(requirements), "--constraint", str(bounds))
        if tools.uv:
            pins = _by_uv(tools.uv, files, target, folder, variables)
        else:
            pins = _by_pip(files, demands, target, folder, variables)
    return tuple(sorted(_checked(pin, demands) for pin in pins))


def sizes(
    tools: PackageTools, pins: Sequence[Pin], target: PythonTarget, variables: Mapping[str, str]
) -> dict[str, int]:
    """Return the size in bytes of each package of a lock on a target, by canonical name, if uv and the index report it.

    Sizes are for display only: an error of uv gives an empty result. Raises OSError.
    """
    if not tools.uv:
        return {}
    with tempfile.TemporaryDirectory(prefix="schedctl-sizes-") as name:
        folder = Path(name)
        (folder / "pins.txt").write_text("".join(f"{pin.name}=={pin.version}\n" for pin in pins))
        lock_file = folder / "pylock.toml"
        words = ("--format", "pylock.toml", "--no-deps", *_compiled((str(folder / "pins.txt"),), lock_file, target))
        try:
            _run((tools.uv, "pip", "compile", *words), folder, _of_uv(variables))
            packages = tomllib.loads(lock_file.read_text()).get("packages", [])
            return {
                canonical(package["name"]): max(wheel.get("size", 0) for wheel in package["wheels"])
                for package in packages
            }
        except (NoWheel, AttributeError, KeyError, TypeError, ValueError):
            return {}


def download(pins: Sequence[Pin], target: PythonTarget, folder: Path, variables: Mapping[str, str]) -> list[Path]:
    """Fetch one wheel of each pin into an empty folder, by pip; return them. Raises NoWheel, OSError."""
    with tempfile.TemporaryDirectory(prefix="schedctl-wheels-") as name:
        wanted = Path(name) / "lock.txt"
        wanted.write_text(requirement_lines(pins))
        words = ("--require-hashes", "-r", str(wanted), "--dest", str(folder))
        _run(_pip(variables, "download", "--no-deps", *words, *_filed_under(target)), Path(name), _PIP)
    return sorted(folder.iterdir())


def _of_uv(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables for uv: those of this process, overridden by those of the job."""
    return {name: text for name, text in {**os.environ, **variables}.items() if _UV_SAYS.fullmatch(name)} | _UV


def _by_uv(
    uv: str, files: Sequence[str], target: PythonTarget, folder: Path, variables: Mapping[str, str]
) -> list[Pin]:
    lock_file = folder / "lock.txt"
    words = (uv, "pip", "compile", "--generate-hashes", *_compiled(files, lock_file, target))
    _run(words, folder, _of_uv(variables))
    pins = []
    for line in re.sub(r"\\\n", " ", lock_file.read_text()).splitlines():
        match = _PINNED.fullmatch(line.strip())
        if match is None:
            if line.strip() and not line.lstrip().startswith(("#", "-")):
                raise NoWheel(f"uv named {line.strip()[:100]!a}, which is not a package of an index")
            continue
        pins.append(Pin(match[1], match[2], tuple(sorted(set(re.findall(r"sha256:([0-9a-f]{64})", match[3]))))))
    return pins


def _compiled(files: Sequence[str], lock_file: Path, target: PythonTarget) -> tuple[str, ...]:
    return (
        *(*files, "--output-file", str(lock_file), "--python", sys.executable),
        *("--python-version", target.python, "--python-platform", target.platform, "--only-binary", ":all:"),
        *("--no-header", "--no-annotate", "--no-cache", "--quiet"),
    )


def _by_pip(
    files: Sequence[str], demands: Demands, target: PythonTarget, folder: Path, variables: Mapping[str, str]
) -> list[Pin]:
    report_file = folder / "report.json"
    words = ("--dry-run", "--ignore-installed", "--quiet", "--report", str(report_file), "-r", *files)
    is_foreign = target != here()
    place = ("--target", str(folder / "nothing"), *_filed_under(target)) if is_foreign else ()
    _run(_pip(variables, "install", *words, *place), folder, _PIP)
    installs = json.loads(report_file.read_text())["install"]
    if is_foreign:
        _check_markers(installs, demands, target)
    pins = []
    for entry in installs:
        source = entry["download_info"]
        digest = source.get("archive_info", {}).get("hashes", {}).get("sha256")
        if digest is None and source["url"].startswith("file://"):  # digests are not reported by pip before 23.1
            with Path(unquote(urlsplit(source["url"]).path)).open("rb") as wheel:
                digest = hashlib.file_digest(wheel, "sha256").hexdigest()
        if digest is None:
            raise NoWheel(f"pip reported no sha256 of {entry['metadata']['name']}")
        pins.append(Pin(entry["metadata"]["name"], entry["metadata"]["version"], (digest,)))
    return pins


def _check_markers(installs: Sequence[dict[str, Any]], demands: Demands, target: PythonTarget) -> None:
    """Refuse markers such as python_version < "3.11" if they matter: pip evaluates them for its own Python."""
    there = {
        canonical(entry["metadata"]["name"]): Installed(
            entry["metadata"]["version"], tuple(entry["metadata"].get("requires_dist") or ())
        )
        for entry in installs
    }
    markers = {
        "python_version": target.python,
        "python_full_version": f"{target.python}.0",
        "platform_machine": target.machine,
    }
    for missing in unmet(rules(), demands.lines, there.get, {}, markers):
        asker = missing.by or "this job"
        raise NoWheel(
            f"{asker} asks for {missing.text!r} on Python {target.python}, which pip does not see from another; uv does"
        )


def _checked(pin: Pin, demands: Demands) -> Pin:
    """Keep only the files whose digests the user allows. Raises NoWheel if none is left."""
    allowed = demands.digests.get(canonical(pin.name))
    digests = tuple(digest for digest in pin.digests if allowed is None or digest in allowed)
    if not digests:
        raise NoWheel(f"no file of {pin.name} {pin.version} has a digest that the requirements name")
    return pin._replace(digests=digests)


def _pip(variables: Mapping[str, str], command: str, *words: str) -> tuple[str, ...]:
    """Return a pip command that ignores pip's settings files and uses the variables of the job or of this process."""
    environment = {**os.environ, **variables}
    indexes = [
        f"{option}={word}" for name, option in _PIP_SAYS.items() for word in environment.get(name, "").split() if word
    ]
    quiet = ("--isolated", "--disable-pip-version-check", "--no-input", "--no-color")
    return (sys.executable, "-I", "-m", "pip", *quiet, command, "--only-binary", ":all:", *indexes, *words)


def _filed_under(target: PythonTarget) -> list[str]:
    short = target.python.replace(".", "")
    words = ["--implementation", "cp", "--python-version", target.python]
    for abi in (f"cp{short}", "abi3", "none"):
        words += ["--abi", abi]
    for tag in target.tags():
        words += ["--platform", tag]
    return words


def _run(words: Sequence[str], folder: Path, variables: dict[str, str]) -> None:
    """Run a tool in a folder that is also its home, so that it finds no settings. Raises NoWheel with its output."""
    environment = child_environment(more={"HOME": str(folder), **variables})
    try:
        ended = run_child(words, _SECONDS, environment, folder)
    except subprocess.TimeoutExpired:
        raise NoWheel(f"{Path(words[0]).name} did not end within {_SECONDS // 60} minutes") from None
    if ended.returncode:
        output = _SIGNED.sub("://***@", (ended.stderr + ended.stdout).decode(errors="replace"))
        lines = output.strip().splitlines()
        raise NoWheel(
            "\n".join(line[:_LINE_CHARACTERS] for line in lines[-_LINES_TOLD:])
            or f"{Path(words[0]).name} ended with {ended.returncode} and said nothing"
        )


# Locks: the exact versions of all packages, for every platform that a session may have.
def make_lock(
    source: Path, demands: Demands, targets: Mapping[PythonTarget, Sequence[str]], variables: Mapping[str, str]
) -> Lock:
    """Return the lock of the demands for all ``targets``, each with the names of its pools.

    ``variables`` are those of the job, which may name another index.
    Raises RequirementsError, which names a package without a wheel, and OSError.
    """
    tools = find_tools()
    pins = {}
    for target, pools in sorted(targets.items()):
        where = f"{', '.join(pools)} ({target})"
        leave_out = 'name the pools that can have them: pools = ["..."]'
        if not demands.runs_on(target.python):
            raise RequirementsError(
                str(source), f"they want Python {demands.python}, which is not that of {where}", f"Or {leave_out}"
            )
        try:
            pins[target.name] = resolve(tools, demands, target, variables)
        except NoWheel as error:
            why = f"{tools.name} finds no wheels for {where}:\n{error}\n"
            raise RequirementsError(str(source), why, f"Ask for another version, or {leave_out}") from None
    return Lock(demands.lines, demands.exact, pins)
