"""The tools that know package indexes: uv, and pip where that is not there. Nothing is ever built."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobs.environment.errors import RequirementsError
from jobs.environment.target import here
from jobs.payload.lane.satisfied import Seen, rules, unmet
from jobs.payload.store.lock import Pin, canonical, requirement_lines

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from jobs.environment.demands import Demands
    from jobs.environment.target import Target

_SECONDS = 900
_SIGNED = re.compile(r"://[^/\s@]+@")  # an address with a password in it
_LINES_TOLD = 8
_LINE_CHARACTERS = 400
_PINNED = re.compile(r"([A-Za-z0-9._-]+)==([^\s;\\]+)([^\n]*)")
_OF_TOOLS = ("PIP_", "UV_")
_UV = {"UV_NO_CONFIG": "1", "UV_PYTHON_DOWNLOADS": "never", "UV_NO_PROGRESS": "1"}
_PIP = {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1", "PIP_NO_COLOR": "1"}


class NoWheel(Exception):
    """A tool found no set of packages; the message is the end of what it said."""


@dataclass(frozen=True, slots=True)
class Tools:
    """What there is on this machine: the path of uv, empty without it, and whether this interpreter has pip."""

    uv: str
    pip: bool

    @property
    def name(self) -> str:
        """The one that locks."""
        return "uv" if self.uv else "pip"


def find_tools() -> Tools:
    """Look for uv beside this interpreter and on PATH, and for pip. Raises RequirementsError when there is neither."""
    places = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    found = Tools(shutil.which("uv", path=places) or "", find_spec("pip") is not None)
    if not found.uv and not found.pip:
        raise RequirementsError(
            "this job", "neither uv nor pip is here", "Install one: pip install 'uff-scheduler[uv]', or put uv on PATH"
        )
    return found


def resolve(tools: Tools, demands: Demands, target: Target, variables: Mapping[str, str]) -> tuple[Pin, ...]:
    """Return every package that the demands come to on a target, by name.

    ``variables`` are the job's, which may name an index. Raises NoWheel, OSError.
    """
    with tempfile.TemporaryDirectory(prefix="schedctl-lock-") as name:
        folder = Path(name)
        asked, bounds = folder / "requirements.in", folder / "constraints.txt"
        asked.write_text("".join(f"{line}\n" for line in demands.lines))
        bounds.write_text("".join(f"{line}\n" for line in demands.constraints))
        files = (str(asked), "--constraint", str(bounds))
        given = _of_tools(variables)
        if tools.uv:
            pins = _by_uv(tools.uv, files, target, folder, given)
        else:
            pins = _by_pip(files, demands, target, folder, given)
    return tuple(sorted(_checked(pin, demands) for pin in pins))


def sizes(tools: Tools, pins: Sequence[Pin], target: Target, variables: Mapping[str, str]) -> dict[str, int]:
    """Return how many bytes each package of a lock has on a target, by canonical name, where uv and the index tell it.

    It is told to people and nothing rests on it, so that what goes wrong leaves it untold. Raises OSError.
    """
    if not tools.uv:
        return {}
    with tempfile.TemporaryDirectory(prefix="schedctl-sizes-") as name:
        folder = Path(name)
        (folder / "pins.txt").write_text("".join(f"{pin.name}=={pin.version}\n" for pin in pins))
        made = folder / "pylock.toml"
        words = ("--format", "pylock.toml", "--no-deps", *_compiled((str(folder / "pins.txt"),), made, target))
        try:
            _run((tools.uv, "pip", "compile", *words), folder, {**_of_tools(variables), **_UV})
            packages = tomllib.loads(made.read_text()).get("packages", [])
            return {
                canonical(package["name"]): max(wheel.get("size", 0) for wheel in package["wheels"])
                for package in packages
            }
        except (NoWheel, AttributeError, KeyError, TypeError, ValueError):
            return {}


def download(pins: Sequence[Pin], target: Target, folder: Path, variables: Mapping[str, str]) -> list[Path]:
    """Fetch one wheel of each pin into an empty folder, by pip; return them. Raises NoWheel, OSError."""
    with tempfile.TemporaryDirectory(prefix="schedctl-wheels-") as name:
        wanted = Path(name) / "lock.txt"
        wanted.write_text(requirement_lines(pins))
        words = ("--require-hashes", "-r", str(wanted), "--dest", str(folder))
        _run(_pip("download", "--no-deps", *words, *_filed_under(target)), Path(name), {**_of_tools(variables), **_PIP})
    return sorted(folder.iterdir())


def _of_tools(variables: Mapping[str, str]) -> dict[str, str]:
    """Leave out what is meant for the command alone."""
    return {name: text for name, text in variables.items() if name.startswith(_OF_TOOLS)}


def _by_uv(uv: str, files: Sequence[str], target: Target, folder: Path, variables: Mapping[str, str]) -> list[Pin]:
    made = folder / "lock.txt"
    words = (uv, "pip", "compile", "--generate-hashes", *_compiled(files, made, target))
    _run(words, folder, {**variables, **_UV})
    pins = []
    for line in re.sub(r"\\\n", " ", made.read_text()).splitlines():
        match = _PINNED.fullmatch(line.strip())
        if match is None:
            if line.strip() and not line.lstrip().startswith(("#", "-")):
                raise NoWheel(f"uv named {line.strip()[:100]!a}, which is no package of an index")
            continue
        pins.append(Pin(match[1], match[2], tuple(sorted(set(re.findall(r"sha256:([0-9a-f]{64})", match[3]))))))
    return pins


def _compiled(files: Sequence[str], made: Path, target: Target) -> tuple[str, ...]:
    return (
        *(*files, "--output-file", str(made), "--python", sys.executable),
        *("--python-version", target.python, "--python-platform", target.platform, "--only-binary", ":all:"),
        *("--no-header", "--no-annotate", "--no-cache", "--quiet"),
    )


def _by_pip(
    files: Sequence[str], demands: Demands, target: Target, folder: Path, variables: Mapping[str, str]
) -> list[Pin]:
    made = folder / "report.json"
    words = ("--dry-run", "--ignore-installed", "--quiet", "--report", str(made), "-r", *files)
    elsewhere = target != here()
    place = ("--target", str(folder / "nothing"), *_filed_under(target)) if elsewhere else ("--only-binary", ":all:")
    _run(_pip("install", *words, *place), folder, {**variables, **_PIP})
    installs = json.loads(made.read_text())["install"]
    if elsewhere:
        _check_markers(installs, demands, target)
    pins = []
    for entry in installs:
        known = entry["download_info"].get("archive_info", {}).get("hashes", {}).get("sha256")
        if known is None:
            raise NoWheel(f"pip told no sha256 of {entry['metadata']['name']}")
        pins.append(Pin(entry["metadata"]["name"], entry["metadata"]["version"], (known,)))
    return pins


def _check_markers(installs: Sequence[dict[str, Any]], demands: Demands, target: Target) -> None:
    """Pip reads conditions such as python_version < "3.11" by the Python that runs it: see whether that mattered."""
    there = {
        canonical(entry["metadata"]["name"]): Seen(
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
    """Leave a package only those files that the user's own digests allow. Raises NoWheel when none is left."""
    allowed = demands.digests.get(canonical(pin.name))
    digests = tuple(digest for digest in pin.digests if allowed is None or digest in allowed)
    if not digests:
        raise NoWheel(f"no file of {pin.name} {pin.version} has a digest that the requirements name")
    return pin._replace(digests=digests)


def _pip(*words: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "pip", *words)


def _filed_under(target: Target) -> list[str]:
    short = target.python.replace(".", "")
    words = ["--only-binary", ":all:", "--implementation", "cp", "--python-version", target.python]
    for abi in (f"cp{short}", "abi3", "none"):
        words += ["--abi", abi]
    for tag in target.tags():
        words += ["--platform", tag]
    return words


def _run(words: Sequence[str], folder: Path, variables: dict[str, str]) -> None:
    """Run a tool in a folder of its own, so that it finds no settings of the job's. Raises NoWheel with its words."""
    kept = {name: text for name, text in os.environ.items() if name not in {"PYTHONPATH", "PYTHONHOME"}}
    try:
        ended = subprocess.run(
            words,
            cwd=folder,
            env={**kept, **variables},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise NoWheel(f"{Path(words[0]).name} did not end within {_SECONDS // 60} minutes") from None
    if ended.returncode:
        told = _SIGNED.sub("://***@", (ended.stderr + ended.stdout).decode(errors="replace"))
        said = told.strip().splitlines()
        raise NoWheel(
            "\n".join(line[:_LINE_CHARACTERS] for line in said[-_LINES_TOLD:])
            or f"{Path(words[0]).name} ended with {ended.returncode} and said nothing"
        )
