"""Rules of the house that no ready-made checker knows; CONTRIBUTING.md gives the reasons."""

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from platforms import registry

PACKAGES = ("scheduler", "platforms", "jobs", "config")
LINES_LIMIT = 600

# What the images that train bring along; the agent itself must do without.
TRAINERS_MAY = {
    *(
        "PIL",
        "accelerate",
        "bitsandbytes",
        "datasets",
        "huggingface_hub",
        "numpy",
        "peft",
        "torch",
        "transformers",
        "trl",
        "deepspeed",
        "safetensors",
    ),
}
# Of these nothing is ever imported where no training runs; numpy and huggingface_hub have other uses.
OF_TRAINERS = TRAINERS_MAY - {"numpy", "huggingface_hub", "PIL"}
IMPORT_ALL = """
import importlib, json, pkgutil, sys
packages, unwanted = map(json.loads, sys.argv[1:])
looked, tried = [], []
class Watch:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in unwanted:
            tried.append(name)
sys.meta_path.insert(0, Watch())
for package in packages:
    for found in pkgutil.walk_packages(importlib.import_module(package).__path__, package + "."):
        ours = not found.name.startswith(("jobs.payload.trainers.", "jobs.payload.scorers."))
        if ours and "__main__" not in found.name:
            importlib.import_module(found.name)
            looked.append(found.name)
print(json.dumps([looked, tried]))
"""
SCORERS_MAY = {"numpy", "peft", "torch", "transformers", "tree_sitter", "tree_sitter_elixir", "yaml"}

# Slow to import, rude while importing (kaggle logs in and prints), or not installed with the core.
HEAVY = {"boto3", "botocore", "highspy", "kaggle", "kagglesdk", "matplotlib", "mcp", "numpy", "sagemaker"}

# `_typeshed` is how type checkers name the library's own protocols; it is never imported while running.
STANDARD_LIBRARY = sys.stdlib_module_names | {"_typeshed"}

# A stored state and a record that plug-ins make; two kinds of errors that programs read by name.
SHARED_CLASS_NAMES = {"Ended", "Refused", "Throttled"}

# Split, so that this file does not break the rule it states.
REGISTRY_HOSTS = ("pypi" + ".org", "python" + "hosted.org", "anaconda" + ".org", "npmjs" + ".org")
MACHINE_PATHS = re.compile(r"(?<![\w.}])/(work|root)/")


def tracked_files(root: Path) -> list[Path]:
    """Files under version control, and new ones that are not ignored."""
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    output = subprocess.run(listing, cwd=root, check=True, capture_output=True, text=True).stdout
    names = sorted(set(output.split("\0")) - {""})
    return [path for path in (root / name for name in names) if path.is_file()]


def python_files(root: Path, *folders: str) -> Iterator[Path]:
    """Python files of ``folders``, in a stable order."""
    for folder in folders:
        yield from sorted((root / folder).rglob("*.py"))


def imports(tree: ast.Module, *, everywhere: bool) -> set[str]:
    """Top-level names of absolute imports: all of them, or only those that importing the module runs."""
    found: set[str] = set()
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.add(node.module.split(".")[0])
        elif not everywhere and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        elif not everywhere and isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            pending += node.orelse
            continue
        pending += ast.iter_child_nodes(node)
    return found


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def test_a_file_stays_under_600_lines(repository: Path) -> None:
    lines = {
        path.relative_to(repository).as_posix(): len(path.read_text(encoding="utf-8").splitlines())
        for path in python_files(repository, *PACKAGES, "tests", "benchmarks")
    }
    assert lines
    assert {name: count for name, count in lines.items() if count > LINES_LIMIT} == {}


def test_no_module_is_a_drawer_for_everything(repository: Path) -> None:
    drawers = {"utils", "util", "helpers", "helper", "misc", "common"}
    files = python_files(repository, *PACKAGES, "tests", "benchmarks")
    assert [path for path in files if path.stem in drawers] == []


def test_the_name_of_a_class_says_which_one_it_is(repository: Path) -> None:
    modules: dict[str, set[str]] = {}
    for path in python_files(repository, *PACKAGES):
        for node in ast.walk(parse(path)):
            if isinstance(node, ast.ClassDef):
                modules.setdefault(node.name, set()).add(str(path.relative_to(repository)))
    shared = {name: sorted(paths) for name, paths in modules.items() if len(paths) > 1}
    assert {name: paths for name, paths in shared.items() if name not in SHARED_CLASS_NAMES} == {}
    assert shared.keys() == SHARED_CLASS_NAMES, "a name that is shared no more leaves the list"


def test_heavy_libraries_are_imported_inside_the_function_that_needs_them(repository: Path) -> None:
    """Trainers are programs of their own, run where NumPy is: they may import it at the top."""
    trainers = repository / "jobs" / "payload" / "trainers"
    eager = {
        path.relative_to(repository).as_posix(): heavy
        for path in python_files(repository, *PACKAGES)
        if not path.is_relative_to(trainers) and (heavy := imports(parse(path), everywhere=False) & HEAVY)
    }
    assert eager == {}


def test_nothing_of_torch_is_imported_by_daemon_or_command_line(repository: Path) -> None:
    """Neither where a module begins, by whatever it imports, nor inside a function; it need not be there for that."""
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL, json.dumps(PACKAGES), json.dumps(sorted(OF_TRAINERS))],
        capture_output=True, text=True, check=True, cwd=repository,
    )  # fmt: skip
    looked, tried = json.loads(done.stdout)
    assert {"scheduler.daemon", "scheduler.cli.root"} <= set(looked)
    assert tried == []
    inside = {
        path.relative_to(repository).as_posix(): names
        for path in python_files(repository, *PACKAGES)
        if not any(path.is_relative_to(repository / "jobs/payload" / name) for name in ("trainers", "scorers"))
        and (names := imports(parse(path), everywhere=True) & OF_TRAINERS)
    }
    assert inside == {}


@pytest.mark.parametrize(
    ("folder", "allowed"),
    [("jobs", {"jobs"}), ("scheduler/core", {"jobs", "scheduler"})],
    ids=["jobs", "core"],
)
def test_pure_rooms_import_the_standard_library_only(repository: Path, folder: str, allowed: set[str]) -> None:
    payload = repository / "jobs" / "payload"
    foreign = {
        path.relative_to(repository).as_posix(): names
        for path in python_files(repository, folder)
        if not path.is_relative_to(payload)
        and (names := imports(parse(path), everywhere=True) - STANDARD_LIBRARY - allowed)
    }
    assert foreign == {}


def test_the_payload_imports_only_itself_and_the_standard_library(repository: Path) -> None:
    """It is shipped to machines that have nothing of ours; its files find each other as siblings."""
    payload = repository / "jobs" / "payload"
    siblings = {path.stem for path in payload.iterdir()} | {path.stem for path in (payload / "trainers").iterdir()}
    foreign = {}
    for path in python_files(repository, "jobs/payload"):
        programs = {"trainers": TRAINERS_MAY, "scorers": SCORERS_MAY}
        allowed = STANDARD_LIBRARY | siblings | programs.get(path.relative_to(payload).parts[0], set())
        if names := imports(parse(path), everywhere=True) - allowed:
            foreign[path.relative_to(repository).as_posix()] = names
    assert foreign == {}


def test_the_tracked_text_names_no_machine_and_no_package_registry(repository: Path) -> None:
    named = {}
    for path in tracked_files(repository):
        text = path.read_bytes().decode("utf-8", errors="replace")
        found = [host for host in REGISTRY_HOSTS if host in text] + [hit[0] for hit in MACHINE_PATHS.finditer(text)]
        if found:
            named[path.relative_to(repository).as_posix()] = found
    assert named == {}


@pytest.mark.parametrize(
    "lock",
    [
        "core.txt",
        "run.txt",
        "container.txt",
        "dev.txt",
        "train.txt",
        "torch-cpu.txt",
        "torch-cuda.txt",
        "deepspeed.txt",
        "uv.txt",
    ],
)
def test_a_lock_file_pins_and_hashes_everything_and_names_no_address(repository: Path, lock: str) -> None:
    text = (repository / "requirements" / lock).read_text(encoding="utf-8")
    assert "://" not in text
    assert "--index" not in text
    assert "--find-links" not in text
    requirements = re.sub(r"\\\n", "", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE)).splitlines()
    assert requirements
    pinned_and_hashed = re.compile(r"[a-z0-9._-]+(\[[a-z,]+\])?==\S+ .*--hash=sha256:[0-9a-f]{64}")
    assert [line for line in requirements if not pinned_and_hashed.match(line)] == []


@pytest.mark.parametrize(("smaller", "larger"), [("core.txt", "run.txt"), ("run.txt", "dev.txt")])
def test_lock_files_nest_so_that_one_environment_can_grow(repository: Path, smaller: str, larger: str) -> None:
    def pins(name: str) -> set[str]:
        text = (repository / "requirements" / name).read_text(encoding="utf-8")
        return {line.removesuffix("\\").strip() for line in text.splitlines() if "==" in line}

    assert pins(smaller) < pins(larger)


def test_names_from_outside_become_no_names_of_arguments(repository: Path) -> None:
    """A metric named ``event`` ended every cycle when metrics were spread over a log line's fields."""
    ours = {"fields", "data", "detail", "facts", "removed", "changes"}  # made here, or handed on by who named them
    spread = [
        f"{path.relative_to(repository).as_posix()}:{call.lineno}: {ast.unparse(keyword.value)}"
        for path in python_files(repository, *PACKAGES)
        for call in ast.walk(parse(path))
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr in {"debug", "info", "warning", "error", "exception", "append", "change_state"}
        for keyword in call.keywords
        if keyword.arg is None and ast.unparse(keyword.value) not in ours
    ]
    assert spread == []


def test_platforms_are_asked_at_the_border_alone(repository: Path) -> None:
    """What they answer is believed only as far as it can be, and what they raise ends nothing."""
    asked = {"find", "launch", "read_quota", "orphans", "collect", "stop", "sweep"}
    border = repository / "scheduler" / "service" / "outside" / "border.py"
    direct = []
    for path in python_files(repository, *(f"scheduler/{room}" for room in ("service", "views", "notify", "host"))):
        tree = parse(path)
        guarded = {
            inner
            for call in ast.walk(tree)
            if isinstance(call, ast.Call) and ast.unparse(call.func) == "border.call"
            for inner in ast.walk(call)
        }
        direct += [
            f"{path.name}:{call.lineno}: {ast.unparse(call)}"
            for call in ast.walk(tree)
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in asked
            if "platform" in ast.unparse(call.func.value) and call not in guarded and path != border
        ]
    assert direct == []


def test_scripts_install_nothing_that_is_not_pinned_and_hashed(repository: Path) -> None:
    lines = [
        (script.name, line)
        for script in sorted((repository / ".ci").iterdir())
        for line in script.read_text(encoding="utf-8").replace("\\\n", " ").splitlines()
        if re.search(r"\bpip\"? install\b", line)
    ]
    assert lines
    assert [found for found in lines if "--require-hashes" not in found[1]] == []


def test_no_platform_is_asked_for_its_name(repository: Path) -> None:
    """What platforms differ in is declared (platforms.plugin.Traits, Capabilities); rehearsals name their emulators."""
    names = set(registry.shipped())
    compared = []
    for package in ("scheduler", "config", "platforms"):
        for file in sorted((repository / package).rglob("*.py")):
            place = file.relative_to(repository).parts
            if place[1] in {"rehearsal", "emulators", *names}:
                continue
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Compare):
                    inner = (one for side in (node.left, *node.comparators) for one in ast.walk(side))
                    if names & {
                        one.value for one in inner if isinstance(one, ast.Constant) and isinstance(one.value, str)
                    }:
                        compared.append(f"{'/'.join(place)}:{node.lineno}")
    assert compared == []
