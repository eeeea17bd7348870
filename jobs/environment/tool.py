"""Resolve and download packages with uv, or with pip if uv is missing. Packages are never built."""

import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from jobs.child_process import child_environment, run_child
from jobs.payload.bounded_file import read_bounded
from jobs.payload.lane.environment import LINE_CHARACTERS, SIGNED, Installed, rules, unmet
from jobs.payload.store.lock import BadLock, Lock, Pin, canonical, requirement_lines, target_name
from jobs.problem import InvalidInput


class RequirementsError(InvalidInput):
    """The requirements of ``source`` cannot be used; the message says why and what to do."""

    def __init__(self, source: str, why: str, remedy: str) -> None:
        super().__init__(f"the requirements in {source} cannot be locked", why, remedy)


# Demands: the requirements of a file. Nothing that the file names is run, downloaded or followed.
_DEMANDS_MAX = 2_000  # lines
_NESTED_MAX = 10  # files that include each other
# A name, extras, bounds and a marker; no character is allowed that a URL or a variable needs.
_DEMAND = re.compile(
    r"(?P<name>[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)\s*"
    r"(?P<extras>\[[A-Za-z0-9._,\s-]*\])?\s*"
    r"(?P<bounds>\(?[A-Za-z0-9.*+!<>=~,\s_-]*\)?)\s*"
    r"(?:;(?P<marker>[A-Za-z0-9_\s'\"<>=!~.,()+*-]*))?",
    re.ASCII,
)
_HASH = re.compile(r"\s--hash=(\S+)")
_SHA256 = re.compile(r"sha256:([0-9a-f]{64})", re.ASCII)
_SCRIPT = re.compile(r"(?m)^# /// script\s*$\s(?P<content>(^#(| .*)$\s)+)^# ///\s*$")
_CLAUSE = re.compile(r"(>=|<=|==|!=|~=|>|<)\s*3\.(\d+)(\.\*|\.\d+)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Demands:
    """Requirements: ``lines`` as in PEP 508, and ``constraints`` on the versions of dependencies.

    ``digests`` are the allowed SHA-256 digests of a package's files, by canonical name; ``python`` is the required
    version of the interpreter. ``exact``: the versions come from the user's own lock file.
    """

    lines: tuple[str, ...]
    constraints: tuple[str, ...] = ()
    digests: Mapping[str, frozenset[str]] = field(default_factory=dict)
    python: str = ""
    exact: bool = False

    def runs_on(self, python: str) -> bool:
        """Return whether the requirement allows a Python such as 3.12; only the minor version is compared."""
        minor = int(python.partition(".")[2])
        return all(_holds(match[1], match[2], match[3], minor) for match in _CLAUSE.finditer(self.python))


def read_demands(source: Path) -> Demands:
    """Return the requirements of a file, project, uv.lock, script or folder. Raises RequirementsError."""
    if source.is_dir():
        files = [source / name for name in ("pyproject.toml", "requirements.txt") if (source / name).is_file()]
        if not files:
            raise RequirementsError(
                str(source), "it has no pyproject.toml and no requirements.txt", "Name the file that lists them"
            )
        source = files[0]
    if source.name in {"pyproject.toml", "uv.lock"}:
        demands = _of_project(source.with_name("pyproject.toml"))
    elif source.suffix == ".py":
        demands = _of_script(source)
    else:
        demands = _of_file(source)
    if not demands.lines:
        raise RequirementsError(str(source), "it asks for nothing", "Leave requirements out of the job, or add some")
    if len(demands.lines) + len(demands.constraints) > _DEMANDS_MAX:
        raise RequirementsError(str(source), f"it has more than {_DEMANDS_MAX:,} lines", "Ask for what is imported")
    return demands


def _holds(sign: str, minor: str, rest: str | None, own: int) -> bool:
    """Return whether the Python 3.``own`` satisfies one clause, such as >=3.10; ``rest`` follows the minor version."""
    bound = int(minor)
    if sign == "~=":
        return own == bound if rest else own >= bound
    if sign == "!=":
        return not (own == bound and rest in {None, ".*"})
    if sign == "==":
        return own == bound
    if sign == "<":
        return own < bound or (own == bound and rest not in {None, ".0"})
    if sign == ">":
        return own > bound or (own == bound and rest is not None)
    return own >= bound if sign == ">=" else own <= bound


def _of_file(source: Path) -> Demands:
    lines: list[str] = []
    constraints: list[str] = []
    digests: dict[str, frozenset[str]] = {}
    for kind, demand, hashes in _lines(source, source.parent.resolve(), "-r", 0):
        (lines if kind == "-r" else constraints).append(demand)
        if hashes:
            digests[_name(demand)] = digests.get(_name(demand), frozenset()) | hashes
    return Demands(tuple(lines), tuple(constraints), digests)


def _lines(source: Path, root: Path, kind: str, depth: int) -> Iterator[tuple[str, str, frozenset[str]]]:
    """Yield (kind, requirement, digests) of each line of a file, and of the files in ``root`` that it includes."""
    text = _read(source)
    for number, raw in enumerate(re.sub(r"\\\r?\n", " ", text).splitlines(), start=1):
        line = re.sub(r"(^|\s)#.*$", "", raw).strip()
        if not line:
            continue
        nested = re.fullmatch(r"(-r|-c|--requirement|--constraint)[\s=]\s*(\S+)", line)
        if nested is not None:
            inner = (source.parent / nested[2]).resolve()
            if depth >= _NESTED_MAX or not inner.is_relative_to(root) or not inner.is_file():
                raise _refused(source, number, line, "it leads out of the folder, or to no file", "copy it beside")
            inner_kind = "-c" if kind == "-c" or nested[1] in {"-c", "--constraint"} else "-r"
            yield from _lines(inner, root, inner_kind, depth + 1)
            continue
        if line.startswith("-"):
            raise _refused(
                source,
                number,
                line,
                "options are not followed",
                "remove it; another index is named in the environment: UV_DEFAULT_INDEX or PIP_INDEX_URL",
            )
        hashes = frozenset(_digest(source, number, line, digest) for digest in _HASH.findall(line))
        yield kind, _demand(str(source), _HASH.sub("", line).strip(), number), hashes


def _digest(source: Path, number: int, line: str, text: str) -> str:
    match = _SHA256.fullmatch(text)
    if match is None:
        raise _refused(source, number, line, "only sha256 digests are checked", "write them so, or leave them out")
    return match[1]


def _of_project(source: Path) -> Demands:
    table = _toml(source, _read(source)).get("project")
    if not isinstance(table, dict):
        raise RequirementsError(str(source), "it has no table [project]", "Name a requirements file instead")
    dynamic = table.get("dynamic")
    if isinstance(dynamic, list) and "dependencies" in dynamic:
        raise RequirementsError(
            str(source), "its dependencies are dynamic: only a build would tell them", "Name a requirements file"
        )
    demands = _of_table(source, table)
    lock = source.with_name("uv.lock")
    if not lock.is_file():
        return demands
    constraints, digests = _of_uv_lock(lock)
    return Demands(demands.lines, constraints, digests, demands.python, exact=True)


def _of_script(source: Path) -> Demands:
    blocks = list(_SCRIPT.finditer(_read(source)))
    if len(blocks) != 1:
        why = "it has no block '# /// script'" if not blocks else "it has two blocks '# /// script'"
        raise RequirementsError(str(source), why, "See PEP 723, or name a requirements file")
    lines = blocks[0]["content"].splitlines()
    return _of_table(source, _toml(source, "\n".join(line[2:] if line.startswith("# ") else "" for line in lines)))


def _of_table(source: Path, table: Mapping[str, Any]) -> Demands:
    dependencies, python = table.get("dependencies", []), table.get("requires-python", "")
    if not isinstance(dependencies, list) or not all(isinstance(text, str) for text in (*dependencies, python)):
        raise RequirementsError(str(source), "its dependencies are no list of texts", "Correct them")
    return Demands(tuple(_demand(str(source), line.strip()) for line in dependencies), python=python)


def _of_uv_lock(source: Path) -> tuple[tuple[str, ...], dict[str, frozenset[str]]]:
    """Return versions and digests of a uv.lock. It is parsed as TOML, because uv would read the whole project."""
    packages = _toml(source, _read(source)).get("package", [])
    constraints: list[str] = []
    digests: dict[str, frozenset[str]] = {}
    for package in packages if isinstance(packages, list) else []:
        name, version, where = (package.get(key) for key in ("name", "version", "source"))
        if not isinstance(where, dict) or where in ({"virtual": "."}, {"editable": "."}):
            continue
        if "registry" not in where:
            raise RequirementsError(
                str(source), f"{name} comes from {next(iter(where), 'nowhere')}, not from an index", _TO_INDEX
            )
        forks = package.get("resolution-markers")
        marks = " or ".join(f"({mark})" for mark in forks) if isinstance(forks, list) and forks else ""
        constraints.append(_demand(str(source), f"{name}=={version}{f' ; {marks}' if marks else ''}"))
        hashes = [wheel.get("hash", "") for wheel in package.get("wheels", [])]
        digests_of = frozenset(match[1] for text in hashes if (match := _SHA256.fullmatch(text)))
        digests[canonical(str(name))] = digests.get(canonical(str(name)), frozenset()) | digests_of
    return tuple(constraints), {name: digests_of for name, digests_of in digests.items() if digests_of}


_ARCHIVES = (".whl", ".zip", ".gz", ".bz2", ".xz", ".tar", ".tgz")
_TO_INDEX = "Name packages of an index; your own modules travel with the code of the job"


def _demand(source: str, line: str, number: int | None = None) -> str:
    match = _DEMAND.fullmatch(line)
    if match is None or match["name"].lower().endswith(_ARCHIVES):
        where = f"line {number}, {line[:100]!a}," if number is not None else f"{line[:100]!a}"
        why = "is an address or a path" if re.search(r"@|://|^[./~]", line) or match else "cannot be read"
        raise RequirementsError(source, f"{where} {why}", _TO_INDEX)
    return line


def _name(demand: str) -> str:
    match = _DEMAND.fullmatch(demand)
    return canonical(match["name"]) if match else ""


def _refused(source: Path, number: int, line: str, why: str, remedy: str) -> RequirementsError:
    return RequirementsError(str(source), f"line {number}, {line[:100]!a}: {why}", remedy[:1].upper() + remedy[1:])


def _read(source: Path) -> str:
    try:
        return read_bounded(source).decode("utf-8-sig")
    except FileNotFoundError:
        raise RequirementsError(str(source), "there is no such file", "Check the path") from None
    except OSError as error:
        raise RequirementsError(str(source), error.strerror or str(error), "Check the path and its mode") from None
    except UnicodeDecodeError:
        raise RequirementsError(str(source), "it is no UTF-8 text", "Save it as UTF-8") from None


def _toml(source: Path, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise RequirementsError(str(source), f"it is no TOML: {error}", "Correct it") from None


# Targets: the Python version and the platform of a session, for which packages are selected.
_PYTHON = re.compile(r"3\.\d{1,2}", re.ASCII)
_PLATFORM = re.compile(r"(x86_64|aarch64)-manylinux_2_(\d{1,2})", re.ASCII)
# The minor versions of the C library (glibc 2.x) that uv supports; for other versions the next older one is used.
_MINORS = (17, 28, *range(31, 41))
_LEGACY = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
_OLDEST = {"x86_64": 5, "aarch64": 17}


class PythonTarget(NamedTuple):
    """A Python such as 3.12 and a platform such as x86_64-manylinux_2_28."""

    python: str
    platform: str

    @property
    def name(self) -> str:
        """The name of the target in locks."""
        return target_name(self.python, self.platform)

    @property
    def machine(self) -> str:
        """The processor: x86_64 or aarch64."""
        return self.platform.partition("-")[0]

    def __str__(self) -> str:
        return f"Python {self.python} on {self.platform}"

    def tags(self) -> list[str]:
        """Return the platform tags of wheels that run on this target, newest first."""
        newest = int(self.platform.rpartition("_")[2])
        tag_list = []
        for minor in range(newest, _OLDEST[self.machine] - 1, -1):
            tag_list.append(f"manylinux_2_{minor}_{self.machine}")
            if minor in _LEGACY:
                tag_list.append(f"{_LEGACY[minor]}_{self.machine}")
        return [*tag_list, f"linux_{self.machine}"]


@cache
def here() -> PythonTarget:
    """Return the target of the running interpreter."""
    machine = platform.machine()
    library, version = platform.libc_ver()
    own = int(version.split(".")[1]) if library == "glibc" and re.match(r"2\.\d+", version) else _MINORS[0]
    minor = max([each for each in _MINORS if each <= own], default=_MINORS[0])
    return PythonTarget(f"{sys.version_info[0]}.{sys.version_info[1]}", f"{machine}-manylinux_2_{minor}")


def parse_target(python: str, where: str) -> PythonTarget:
    """Return the target of a Python version and a platform. Raises BadLock."""
    if not _PYTHON.fullmatch(python):
        raise BadLock(f"{python!r} is no Python version; write it like 3.12")
    match = _PLATFORM.fullmatch(where)
    if match is None or int(match[2]) not in _MINORS:
        raise BadLock(f"{where!r} is no platform; write it like x86_64-manylinux_2_28")
    return PythonTarget(python, where)


_SECONDS = 900  # time limit of a tool
_LINES_SHOWN = 8  # of a tool's output
_PINNED = re.compile(r"([A-Za-z0-9._-]+)==([^\s;\\]+)([^\n]*)")
# Variables that a job or the daemon's environment may pass to a tool: the package indexes, and how to reach them.
# Any other variable could name a program to run, or a file to read or write.
_UV_SAYS = re.compile(
    r"UV_((DEFAULT_|EXTRA_)?INDEX(_URL)?|INDEX_[A-Z0-9_]+_(USERNAME|PASSWORD)|FIND_LINKS|INSECURE_HOST|NATIVE_TLS|"
    r"SYSTEM_CERTS|HTTP_TIMEOUT)"
)
_PIP_SAYS = {
    "PIP_INDEX_URL": "--index-url", "PIP_EXTRA_INDEX_URL": "--extra-index-url", "PIP_FIND_LINKS": "--find-links",
    "PIP_TRUSTED_HOST": "--trusted-host", "PIP_PROXY": "--proxy", "PIP_CERT": "--cert",
    "PIP_DEFAULT_TIMEOUT": "--timeout",
}  # fmt: skip
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
        """The name of the tool that creates locks."""
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
    """Return the packages for a target, by name, from an index that ``variables`` may name. Raises NoWheel, OSError."""
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
    """Return the bytes of each package of a lock by canonical name; {} if uv or the index does not report them."""
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
    """Download one wheel of each pin into an empty folder by pip; return their paths. Raises NoWheel, OSError."""
    with tempfile.TemporaryDirectory(prefix="schedctl-wheels-") as name:
        lock_file = Path(name) / "lock.txt"
        lock_file.write_text(requirement_lines(pins))
        words = ("--require-hashes", "-r", str(lock_file), "--dest", str(folder))
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
        if digest is None and source["url"].startswith("file://"):  # pip before 23.1 does not report digests
            with Path(unquote(urlsplit(source["url"]).path)).open("rb") as wheel:
                digest = hashlib.file_digest(wheel, "sha256").hexdigest()
        if digest is None:
            raise NoWheel(f"pip reported no sha256 of {entry['metadata']['name']}")
        pins.append(Pin(entry["metadata"]["name"], entry["metadata"]["version"], (digest,)))
    return pins


def _check_markers(installs: Sequence[dict[str, Any]], demands: Demands, target: PythonTarget) -> None:
    """Raise NoWheel for markers such as python_version < "3.11" that matter: pip evaluates them for its own Python."""
    packages = {
        canonical(entry["metadata"]["name"]): Installed(
            entry["metadata"]["version"], tuple(entry["metadata"].get("requires_dist") or ())
        )
        for entry in installs
    }
    python = {"python_version": target.python, "python_full_version": f"{target.python}.0"}
    markers = {**python, "platform_machine": target.machine}
    for missing in unmet(rules(), demands.lines, packages.get, {}, markers):
        asker = missing.by or "this job"
        raise NoWheel(
            f"{asker} asks for {missing.text!r} on Python {target.python}, which pip does not see from another; uv does"
        )


def _checked(pin: Pin, demands: Demands) -> Pin:
    """Return a pin with only those files whose digests the user allows. Raises NoWheel if there are none."""
    allowed = demands.digests.get(canonical(pin.name))
    digests = tuple(digest for digest in pin.digests if allowed is None or digest in allowed)
    if not digests:
        raise NoWheel(f"no file of {pin.name} {pin.version} has a digest that the requirements name")
    return pin._replace(digests=digests)


def _pip(variables: Mapping[str, str], command: str, *words: str) -> tuple[str, ...]:
    """Return a pip command without settings files, with the variables of the job, else of this process, as options."""
    environment = {**os.environ, **variables}
    indexes = [
        f"{option}={word}" for name, option in _PIP_SAYS.items() for word in environment.get(name, "").split() if word
    ]
    quiet = ("--isolated", "--disable-pip-version-check", "--no-input", "--no-color")
    return (sys.executable, "-I", "-m", "pip", *quiet, command, "--only-binary", ":all:", *indexes, *words)


def _filed_under(target: PythonTarget) -> list[str]:
    """Return the options of pip that select wheels for a target other than this interpreter."""
    short = target.python.replace(".", "")
    words = ["--implementation", "cp", "--python-version", target.python]
    for abi in (f"cp{short}", "abi3", "none"):
        words += ["--abi", abi]
    for tag in target.tags():
        words += ["--platform", tag]
    return words


def _run(words: Sequence[str], folder: Path, variables: dict[str, str]) -> None:
    """Run a tool in a folder that is also its home, so that it reads no settings. Raises NoWheel with its output."""
    environment = child_environment(more={"HOME": str(folder), **variables})
    try:
        ended = run_child(words, _SECONDS, environment, folder)
    except subprocess.TimeoutExpired:
        raise NoWheel(f"{Path(words[0]).name} did not end within {_SECONDS // 60} minutes") from None
    if ended.returncode:
        output = SIGNED.sub("://***@", (ended.stderr + ended.stdout).decode(errors="replace"))
        lines = output.strip().splitlines()
        raise NoWheel(
            "\n".join(line[:LINE_CHARACTERS] for line in lines[-_LINES_SHOWN:])
            or f"{Path(words[0]).name} ended with {ended.returncode} and said nothing"
        )


# Locks: the exact versions of all packages, for every platform that a session may have.
def make_lock(
    source: Path, demands: Demands, targets: Mapping[PythonTarget, Sequence[str]], variables: Mapping[str, str]
) -> Lock:
    """Return the lock for all ``targets``; ``variables`` may name an index. Raises RequirementsError, OSError."""
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
