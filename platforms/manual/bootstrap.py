"""The program in the notebook that a person runs: it unpacks the payload, runs the agent and packs the results.

This text is copied into the notebook, so it must run alone: standard library, Python 3.11 or later.
"""

import base64
import hashlib
import json
import os
import signal
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

_MANIFESTS_KEPT = 2


def main(order: dict[str, Any], here: Path | None = None) -> Path:
    """Run one session in the folder ``here`` and return the file to upload.

    ``order`` has ``key``, ``launch`` (the agent's document), ``code`` (the payload, a base64 tar.gz), ``relays``
    (whether the store is a folder that is uploaded afterwards) and ``objects`` (``name`` and ``sha256`` of the file
    that came with the notebook, or None). A second call only packs the results of the first.
    """
    here = here or Path.cwd()
    home = here / order["key"]
    if home.exists():
        say(f"{order['key']} was started before; packing its results")
    else:
        prepare(order, here, home)
        say(f"the session ended (exit code {run_agent(home)})")
    result = here / f"{order['key']}-result.zip"
    pack(home, result)
    say(f"Download {result.name} and hand it in: schedctl handover submit {order['key']} {result.name}")
    return result


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"uff-scheduler: {line}\n")
    sys.stdout.flush()


def prepare(order: dict[str, Any], here: Path, home: Path) -> None:
    """Create the session's folder completely before it gets its name, so that a second run can trust it."""
    unfinished = here / f".{order['key']}.{os.getpid()}"
    (unfinished / "work").mkdir(parents=True)
    code = unfinished / "code.tar.gz"
    code.write_bytes(base64.b64decode(order["code"]))
    unpack(code, unfinished / "code")
    launch = {**order["launch"], "work_dir": "work"}
    names: list[str] = []
    if order["relays"]:
        (unfinished / "store").mkdir()
        launch["store"] = {"kind": "directory", "root": "store"}
    if order["objects"] is not None:
        archive = here / order["objects"]["name"]
        if not archive.is_file():
            raise FileNotFoundError(f"upload {archive.name} beside this notebook, then run this cell again")
        if digest_of(archive) != order["objects"]["sha256"]:
            raise ValueError(f"{archive.name} is damaged or incomplete: upload it again, then run this cell again")
        names = unpack(archive, unfinished / "store")
    (unfinished / "given.json").write_text(json.dumps(names))
    (unfinished / "launch.json").write_text(json.dumps(launch))
    unfinished.rename(home)


def digest_of(path: Path) -> str:
    """Return the sha256 (hex) of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def unpack(archive: Path, folder: Path) -> list[str]:
    """Unpack one of our own archives; return the names of its files."""
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive) as opened:
        opened.extractall(folder, filter="data")
        return [member.name for member in opened.getmembers() if member.isfile()]


def run_agent(home: Path) -> int:
    """Run the agent and print its output. If the cell is interrupted, the agent saves and exits."""
    command = [sys.executable, "-u", str(home / "code" / "payload" / "agent.py"), str(home / "launch.json")]
    started: list[subprocess.Popen[bytes]] = []
    interrupted: list[int] = []

    def ask_agent_to_save(number: int, _frame: object) -> None:
        interrupted.append(number)
        say("interrupted: the session saves and ends, please wait")
        for agent in started:
            agent.terminate()

    previous_handler = signal.signal(signal.SIGINT, ask_agent_to_save)
    try:
        # The agent has a session of its own, so that the notebook's interrupt reaches it only as a request to save.
        with (
            (home / "output.log").open("ab") as log,
            subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=home, start_new_session=True
            ) as agent,
        ):
            started.append(agent)
            if interrupted:
                agent.terminate()
            for line in agent.stdout or ():
                log.write(line)
                log.flush()
                sys.stdout.write(line.decode(errors="replace"))
                sys.stdout.flush()
    finally:
        signal.signal(signal.SIGINT, previous_handler)
    return agent.returncode


def pack(home: Path, result: Path) -> None:
    """Write the new files into ``result``: reports, the newest checkpoints of each job, and the log."""
    store = home / "store"
    inputs = set(json.loads((home / "given.json").read_bytes()))
    dropped = set(inputs)
    for job in store.glob("jobs/*"):
        manifests = [path for path in job.glob("manifests/*.json") if path.relative_to(store).as_posix() not in inputs]
        manifests.sort(reverse=True)
        wanted: set[str] = set()
        for number, path in enumerate(manifests):
            if number < _MANIFESTS_KEPT:
                wanted |= {component["sha256"] for component in json.loads(path.read_bytes())["components"]}
            else:
                dropped.add(path.relative_to(store).as_posix())
        dropped |= {path.relative_to(store).as_posix() for path in job.glob("blobs/*") if path.name not in wanted}
    temporary = result.with_name(f".{result.name}")
    with zipfile.ZipFile(temporary, "w", zipfile.ZIP_STORED, allowZip64=True) as opened:
        for path in sorted(path for path in store.rglob("*") if path.is_file()):
            name = path.relative_to(store).as_posix()
            if name not in dropped and not path.name.startswith("."):
                opened.write(path, f"store/{name}")
        opened.writestr(home.name, "")  # identifies the session of this result
        if (home / "output.log").is_file():
            opened.write(home / "output.log", "output.log")
    temporary.replace(result)
