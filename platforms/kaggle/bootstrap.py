"""The program that Kaggle runs: it finds its inputs, starts the agent, and always leaves in good order.

This text is pushed as the kernel's source, so it stands alone: standard library, no file of its own, Python 3.10 or
later. It exits 0 whatever happens, because Kaggle throws the output of a failed kernel away; how the session really
ended is in the agent's result and in the last line that begins with the mark.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

_MARK = "##uff-scheduler##"
# Every checkpoint that comes home counts its training time; above this size only the newest do.
_BYTES_KEPT = 2 << 30
_MANIFESTS_KEPT = 2
_PIECE_BYTES = 1 << 20


def main(order: dict[str, Any]) -> None:
    """Run one session.

    ``order`` has ``launch`` (the agent's document), ``inputs`` (``name``, ``sha256`` and ``into``: ``code`` or
    ``store``) and ``relays``: whether the store is a folder of this session that is brought home after its end.
    """
    say({"begins": order["launch"]["run"], "container": os.environ.get("KAGGLE_CONTAINER_NAME", "")})
    code: int | str = "not started"
    working = working_folder()
    store = working / "store"
    given: list[Path] = []
    try:
        scratch = Path(tempfile.mkdtemp(prefix="uff-"))
        for wanted in order["inputs"]:
            into = scratch / "code" if wanted["into"] == "code" else store
            given += unpack(find_input(working, wanted["name"], wanted["sha256"]), into)
        code = run_agent(order, scratch, store)
    except BaseException as error:  # noqa: BLE001 - a traceback would cost everything that was trained
        say({"trouble": f"{type(error).__name__}: {error}"[:2000]})
    finally:
        if order["relays"]:
            tidy(store, given)
    say({"ends": order["launch"]["run"], "code": code})


def say(document: dict[str, Any]) -> None:
    """Print a line for the adapter."""
    sys.stdout.write(f"{_MARK} {json.dumps(document)}\n")
    sys.stdout.flush()


def working_folder() -> Path:
    """Return the folder whose content is kept: where a kernel is started."""
    here = Path.cwd()
    usual = Path("/kaggle/working")
    return usual if here.name != "working" and usual.is_dir() else here


def find_input(working: Path, name: str, sha256: str) -> Path:
    """Return an attached file by name and digest, wherever this year's layout has put it."""
    roots = [working.parent / "input", Path("/kaggle/input")]
    for root in roots:
        for path in sorted(root.rglob(name)):
            if digest_of(path) == sha256:
                return path
    seen = [str(path) for root in roots for path in sorted(root.rglob("*"))[:20]]
    raise FileNotFoundError(f"no input {name} with digest {sha256}; there are {seen}")


def digest_of(path: Path) -> str:
    """Return the sha256 (hex) of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while piece := stream.read(_PIECE_BYTES):
            digest.update(piece)
    return digest.hexdigest()


def unpack(archive: Path, folder: Path) -> list[Path]:
    """Unpack one of our own archives; return the files it gave."""
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive) as opened:
        opened.extractall(folder, filter="data")
        return [folder / member.name for member in opened.getmembers() if member.isfile()]


def run_agent(order: dict[str, Any], scratch: Path, store: Path) -> int:
    """Start the agent and pass on what it prints; a notebook keeps only what its own process prints."""
    launch = {**order["launch"], "work_dir": "work"}
    if order["relays"]:
        store.mkdir(exist_ok=True)
        launch["store"] = {"kind": "directory", "root": str(store)}
    (scratch / "launch.json").write_text(json.dumps(launch))
    (scratch / "work").mkdir()
    agent = scratch / "code" / "payload" / "agent.py"
    command = [sys.executable, "-u", str(agent), str(scratch / "launch.json")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=scratch) as agent_process:
        if agent_process.stdout is not None:
            for line in agent_process.stdout:
                sys.stdout.write(line.decode(errors="replace"))
                sys.stdout.flush()
    return agent_process.returncode


def tidy(store: Path, given: list[Path]) -> None:
    """Leave only what is new: what was given is home already, and of many large checkpoints the newest are enough."""
    for path in given:
        if path.is_relative_to(store):
            path.unlink(missing_ok=True)
    for job in store.glob("jobs/*"):
        manifests = sorted(job.glob("manifests/*.json"), reverse=True)
        kept: dict[str, int] = {}
        for number, path in enumerate(manifests):
            components = json.loads(path.read_bytes())["components"]
            wanted = {component["sha256"]: component["bytes"] for component in components}
            if number < _MANIFESTS_KEPT or sum((kept | wanted).values()) <= _BYTES_KEPT:
                kept |= wanted
            else:
                path.unlink()
        for path in job.glob("blobs/*"):
            if path.name not in kept:
                path.unlink()
    for folder in sorted((path for path in store.rglob("*") if path.is_dir()), reverse=True):
        if not any(folder.iterdir()):
            folder.rmdir()
