"""How a session installs packages: what the tool is told and given, and what its end says of the next attempt."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from jobs.payload.lane.environment import Tool, install
from jobs.payload.lane.failure import Failure

Uv = Callable[..., dict[str, object]]


@pytest.fixture
def uv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Uv:
    """A uv that says a text and ends with a status; calling this installs by it and returns what it was told."""
    programs, listed = tmp_path / "programs", tmp_path / "lock.txt"
    programs.mkdir()
    listed.write_text("six==1.0\n")
    told = tmp_path / "told.json"
    script = f"import json, os, sys\njson.dump([sys.argv[1:], dict(os.environ)], open({str(told)!r}, 'w'))\n"
    running = sys.executable

    def run(says: str = "", status: int = 0, wheels: Path | None = None, why: str = "") -> dict[str, object]:
        (programs / "uv").write_text(f"#!{running}\n{script}print({says!r})\nsys.exit({status})\n")
        (programs / "uv").chmod(0o755)
        hold = os.open(tmp_path, os.O_RDONLY)
        try:
            install(Tool(wheels, hold, 0, {"INDEX": "own"}), Path("/made/bin/python"), listed, why)
        finally:
            os.close(hold)
        words, environment = json.loads(told.read_text())
        return {"words": words, "environment": environment}

    monkeypatch.setattr(sys, "executable", str(programs / "python"))
    monkeypatch.setenv("PYTHONPATH", "/of/the/agent")
    return run


def test_only_what_the_lock_names_is_installed_and_nothing_of_the_agents_is_seen(uv: Uv, tmp_path: Path) -> None:
    told = uv()
    words = ["pip", "install", "--python", "/made/bin/python", "--no-cache"]
    checked = ["--no-deps", "--require-hashes", "--only-binary", ":all:"]
    assert told["words"] == [*words, *checked, "-r", str(tmp_path / "lock.txt")]
    environment = told["environment"]
    assert isinstance(environment, dict)
    assert (environment["INDEX"], environment["UV_NO_CONFIG"], environment["UV_NO_PROGRESS"]) == ("own", "1", "1")
    assert "PYTHONPATH" not in environment
    assert uv(wheels=Path("/wheels"))["words"] == [
        *(*words, *checked),
        *("--no-index", "--find-links", "/wheels", "-r", str(tmp_path / "lock.txt")),
    ]


@pytest.mark.parametrize(
    ("says", "error_class"),
    [
        ("error: Connection refused (os error 111)", "network"),
        ("dns error: failed to lookup address", "network"),
        ("OSError: No space left on device, connection reset", "store"),
        ("error: hash mismatch for six==1.0", "environment"),
    ],
)
def test_what_the_tool_says_last_decides_who_is_to_blame(uv: Uv, says: str, error_class: str) -> None:
    with pytest.raises(Failure, match=r"\(exit status 2\); they are needed, since heavy is old: ") as caught:
        uv(says, 2, why="heavy is old")
    assert caught.value.error_class == error_class
    assert caught.value.why.endswith(f": {says}")


def test_twelve_lines_are_told_each_of_400_characters_and_without_passwords(
    uv: Uv, capfd: pytest.CaptureFixture[str]
) -> None:
    lines = ["first", *(f"{number}" for number in range(10)), "x" * 401, "see https://me:secret@index/six"]
    with pytest.raises(Failure) as caught:
        uv("\n\n".join(lines), 1)
    told = [*lines[1:-2], "x" * 400, "see https://***@index/six"]
    assert caught.value.why == "the job's packages cannot be installed (exit status 1): " + "\n".join(told)
    assert capfd.readouterr().err.splitlines() == [f"[agent lane 0] packages: {line}" for line in ["first", *told]]
