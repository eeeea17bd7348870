"""What a job says in its environment starts no program, reads no file and writes none where its packages are locked."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from jobs.child_process import OF_A_PERSON, child_environment, run_child
from jobs.code.git import git
from jobs.environment.tool import NoWheel, PackageTools, download, find_tools, here, read_demands, sizes
from jobs.environment.tool import resolve as resolve_packages
from jobs.payload.store.lock import Pin
from tests.lab.packages import digest_of, use_index, write_wheel

ALLOWED = re.compile(
    r"(PIP|UV)_((DEFAULT_|EXTRA_)?INDEX(_URL)?|FIND_LINKS|TRUSTED_HOST|INSECURE_HOST|PROXY|CERT|NATIVE_TLS|SYSTEM_CERTS|"
    r"DEFAULT_TIMEOUT|HTTP_TIMEOUT)"
)
PYTHON = [
    "PYTHONPATH",
    "PYTHONHOME",
    "PYTHONSTARTUP",
    "PYTHONINSPECT",
    "PYTHONBREAKPOINT",
    "PYTHONWARNINGS",
    "PYTHONUSERBASE",
    "PYTHONPYCACHEPREFIX",
    "PYTHONPLATLIBDIR",
    "PYTHONSAFEPATH",
    "PYTHONCASEOK",
    "LD_PRELOAD",
    "LD_LIBRARY_PATH",
    "LD_AUDIT",
    "BASH_ENV",
    "ENV",
    "EDITOR",
    "PAGER",
]
GIT = [
    "GIT_DIR",
    "GIT_WORK_TREE",
    "GIT_INDEX_FILE",
    "GIT_OBJECT_DIRECTORY",
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_CONFIG_GLOBAL",
    "GIT_SSH",
    "GIT_CONFIG_COUNT",
    "GIT_CONFIG_KEY_0",
    "GIT_CONFIG_VALUE_0",
    "GIT_CONFIG_PARAMETERS",
    "GIT_EXEC_PATH",
    "GIT_SSH_COMMAND",
    "GIT_ASKPASS",
    "GIT_EXTERNAL_DIFF",
    "GIT_PAGER",
    "GIT_EDITOR",
    "GIT_TRACE",
    "GIT_TEMPLATE_DIR",
    "GIT_PROXY_COMMAND",
    "GIT_ATTR_SOURCE",
    "GIT_COMMON_DIR",
]


def of_pip() -> set[str]:
    """Return every variable that pip reads, by its own parsers."""
    from pip._internal.commands import commands_dict, create_command

    options = [
        option
        for name in commands_dict
        for parser in [create_command(name).parser]
        for option in [*parser.option_list, *(one for group in parser.option_groups for one in group.option_list)]
    ]
    long = {word.removeprefix("--") for option in options for word in option._long_opts}
    return {f"PIP_{word.upper().replace('-', '_')}" for word in long} | {"PIP_CONFIG_FILE"}


def of_uv(program: str) -> set[str]:
    """Return every variable that stands in uv's program."""
    return set(map(bytes.decode, re.findall(rb"\bUV_[A-Z][A-Z_]{2,60}\b", Path(program).read_bytes())))


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An index with one package."""
    folder = tmp_path / "index"
    write_wheel(folder, "light", "0.1")
    use_index(folder, monkeypatch)
    return folder


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], dict[str, str]]]:
    """The words and the environment of every child that was started."""
    started: list[tuple[list[str], dict[str, str]]] = []
    run = subprocess.run

    def note(words: Any, **options: Any) -> Any:
        started.append(([*words], dict(options["env"])))
        return run(words, **options)

    monkeypatch.setattr(subprocess, "run", note)
    return started


def lock(tools: PackageTools, folder: Path, variables: Mapping[str, str]) -> None:
    """Lock, measure and fetch one package, whatever comes of it."""
    (folder / "requirements.txt").write_text("light\n")
    wheels = folder / "wheels"
    wheels.mkdir(exist_ok=True)
    pins = resolve_packages(tools, read_demands(folder / "requirements.txt"), here(), variables)
    sizes(tools, pins, here(), variables)
    download(pins, here(), wheels, variables)


@pytest.mark.parametrize("by", ["uv", "pip"])
def test_no_variable_that_a_tool_reads_reaches_it_but_those_of_indexes(
    by: str,
    index: Path,
    tmp_path: Path,
    children: list[tuple[list[str], dict[str, str]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = find_tools()
    assert found.uv, "the development environment has uv"
    tools = found if by == "uv" else PackageTools("", pip=True)
    names = {name for name in of_pip() | of_uv(found.uv) | {*PYTHON, *GIT} if not ALLOWED.fullmatch(name)}
    assert {"PIP_PYTHON", "PIP_REQUIREMENT", "PIP_LOG", "PIP_NO_BINARY", "UV_OVERRIDE", "UV_PYTHON"} <= names
    hostile = dict.fromkeys(sorted(names), str(tmp_path / "hostile"))
    for name in names - {"LD_PRELOAD", "LD_AUDIT", "LD_LIBRARY_PATH"}:
        monkeypatch.setenv(name, hostile[name])  # the daemon's own environment as well
    lock(tools, tmp_path, hostile)
    assert children
    for words, environment in children:
        assert not any(str(tmp_path / "hostile") in word for word in words)
        assert hostile[next(iter(hostile))] not in environment.values()
        own = {"UV_NO_CONFIG", "UV_PYTHON_DOWNLOADS", "UV_NO_PROGRESS", "UV_KEYRING_PROVIDER", "PIP_CONFIG_FILE"}
        assert not {name for name in environment if name in names} - own
        assert environment["HOME"] != str(Path.home())
        if "pip" in words and "-m" in words:
            assert {"--isolated", "--only-binary", "--no-input"} <= {*words}
            assert environment["PIP_CONFIG_FILE"] == os.devnull
    assert not (tmp_path / "hostile").exists()


def test_a_program_that_a_job_names_is_not_started_and_a_file_is_not_told(index: Path, tmp_path: Path) -> None:
    marker, secret, log = tmp_path / "started", tmp_path / "token", tmp_path / "log"
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch {marker}\n")
    program.chmod(0o755)
    secret.write_text("d9587-canary\n")
    (tmp_path / "home" / ".config" / "pip").mkdir(parents=True)
    (tmp_path / "home" / ".config" / "pip" / "pip.conf").write_text(f"[global]\nrequirement = {secret}\n")
    variables = {
        "PIP_PYTHON": str(program),
        "PIP_REQUIREMENT": str(secret),
        "PIP_LOG": str(log),
        "PIP_NO_BINARY": ":all:",
        "HOME": str(tmp_path / "home"),
        "UV_OVERRIDE": str(secret),
    }
    for tools in (find_tools(), PackageTools("", pip=True)):
        lock(tools, tmp_path, variables)
    assert not marker.exists()
    assert not log.exists()
    digest = digest_of(next(index.glob("light-*.whl")))
    with pytest.raises(NoWheel) as refused:
        download([Pin("absent", "1.0", (digest,))], here(), tmp_path / "wheels", variables)
    assert "canary" not in str(refused.value)


def test_git_follows_no_variable_of_this_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("own", "other"):
        subprocess.run(["git", "init", "-q", str(tmp_path / name)], check=True)
    for name in GIT:
        monkeypatch.setenv(name, str(tmp_path / "other" / ".git"))
    (tmp_path / "own" / "mine.py").write_text("")
    assert git(tmp_path / "own", "ls-files", "--others") == b"mine.py\n"


def test_a_child_gets_what_was_asked_for_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAIL_PASSWORD", "canary")
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")
    printed = run_child(["/usr/bin/env"], 60, child_environment(OF_A_PERSON, {"OWN": "1"})).stdout.decode()
    assert "canary" not in printed
    assert "OWN=1\n" in printed
    assert "HTTPS_PROXY=http://127.0.0.1:1\n" in printed
    assert f"PATH={os.environ['PATH']}\n" in printed
