"""The program that runs on Kaggle: it finds its inputs, runs the agent, and always exits with success.

This text is pushed as the kernel's source, so it must run alone: standard library, no file of its own, Python 3.11 or
later. It always exits with 0, because Kaggle discards the output of a failed kernel; how the session really ended is in
the agent's result and in the last line that begins with the mark.
"""

import base64
import hashlib
import importlib
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import urllib.request
import zlib
from pathlib import Path
from typing import Any

_MARK = "##uff-scheduler##"
# Every imported checkpoint counts its training time; above this total size only the newest are kept.
_BYTES_KEPT = 2 << 30
_MANIFESTS_KEPT = 2
_PIECE_BYTES = 1 << 20
# Kaggle returns a session's log and its files in one answer, so a log that is too large makes the files unreadable too.
_PRINTED_BYTES_MAX = 7 << 20  # a little less than the adapter keeps
_LINE_BYTES_MAX = 1 << 16
_ORDER_BYTES_MAX = 64 << 20
_LISTEN_SECONDS = 60.0  # scheduled
_LISTEN_WALL_SECONDS_MIN = 0.2
_PROOF_TRIES = 3
# The variable with the path of a file that Kaggle's own library reads inside a notebook: a token that is valid for this
# session only.
_KEY_FILE = "KAGGLE_API_V1_TOKEN"
_CALL_SECONDS = 20


def main(order: dict[str, Any]) -> None:
    """Run one session.

    ``order`` has ``launch``, the agent's document, and ``inputs``, each with ``name``, ``sha256`` and ``into``
    (``code``, ``trees`` or ``store``). With ``relays`` the store is a folder of this session, downloaded after its end,
    and ``ask`` has two datasets: ``dataset`` appears if this session must end early, ``proof`` exists from the start.
    ``secrets`` describes an input with secrets (``name``, ``sha256``, and ``pad``, which decrypts it), or has the
    ``names`` of secrets that a person attached.
    """
    # The current time by the run's clock, because Kaggle does not report reliably when a session left the queue.
    clock = {"epoch": 0.0, "origin": 0.0, "scale": 1.0, **(order["launch"].get("clock") or {})}
    at = clock["epoch"] + (time.time() - clock["origin"]) * clock["scale"]  # noqa: TID251 - it is shipped
    say({"begins": order["launch"]["run"], "container": os.environ.get("KAGGLE_CONTAINER_NAME", ""), "at": at})
    code: int | str = "not started"
    working = working_folder()
    store = working / "store"
    inputs: list[Path] = []
    ended = threading.Event()
    try:
        scratch = Path(tempfile.mkdtemp(prefix="uff-"))
        for wanted in order["inputs"]:
            # Files that are only read stay outside the store, because the folder that Kaggle keeps is limited to 20 GB.
            into = store if wanted["into"] == "store" else scratch / wanted["into"]
            inputs += unpack(find_input(working, wanted["name"], wanted["sha256"]), into)
        sys.path.append(str(scratch / "code"))  # the payload is importable from now on
        if order["relays"] and order.get("ask"):
            threading.Thread(target=listen, args=(order, store, ended), daemon=True).start()
        code = run_agent(order, scratch, store, secrets_of(order.get("secrets"), working))
    except BaseException as error:  # noqa: BLE001 - after an uncaught exception Kaggle would discard all output
        say({"trouble": f"{type(error).__name__}: {error}"[:2000]})
    finally:
        ended.set()
        if order["relays"]:
            tidy(store, inputs)
    say({"ends": order["launch"]["run"], "code": code})


def say(document: dict[str, Any]) -> None:
    """Print a document for the adapter, as one marked line of JSON."""
    sys.stdout.write(f"{_MARK} {json.dumps(document)}\n")
    sys.stdout.flush()


def working_folder() -> Path:
    """Return the kernel's working directory, whose content Kaggle keeps."""
    here = Path.cwd()
    usual = Path("/kaggle/working")
    return usual if here.name != "working" and usual.is_dir() else here


def find_input(working: Path, name: str, sha256: str) -> Path:
    """Return the path of an attached file by its name and digest, because Kaggle's folder layout changes over time."""
    roots = [working.parent / "input", Path("/kaggle/input")]
    for root in roots:
        for path in sorted(root.rglob(name)):
            if digest_of(path) == sha256:
                return path
    listed = [str(path) for root in roots for path in sorted(root.rglob("*"))[:20]]
    raise FileNotFoundError(f"no input {name} has the digest {sha256}; the first files are {listed}")


def digest_of(path: Path) -> str:
    """Return the sha256 (hex) of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def unpack(archive: Path, folder: Path) -> list[Path]:
    """Unpack one of our own archives; return its files."""
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive) as opened:
        opened.extractall(folder, filter="data")
        return [folder / member.name for member in opened.getmembers() if member.isfile()]


def secrets_of(wanted: dict[str, Any] | None, working: Path) -> dict[str, str]:
    """Return the session's secrets by name, without unreadable ones: a lane that needs such a secret reports it."""
    if not wanted:
        return {}
    if "names" not in wanted:
        file = find_input(working, wanted["name"], wanted["sha256"])
        pairs = zip(file.read_bytes(), bytes.fromhex(wanted["pad"]), strict=True)
        return dict(json.loads(bytes(encrypted ^ pad for encrypted, pad in pairs)))
    result = {}
    for name in wanted["names"]:
        try:
            result[name] = importlib.import_module("kaggle_secrets").UserSecretsClient().get_secret(name)
        except Exception as error:  # noqa: BLE001 - the agent reports a missing secret, for any cause
            say({"trouble": f"the secret {name} is not attached to this notebook: {type(error).__name__}"})
    return result


def run_agent(order: dict[str, Any], scratch: Path, store: Path, secrets: dict[str, str]) -> int:
    """Run the agent and return its exit code; print its output, because a notebook keeps only its own output."""
    mounts = [str(working_folder().parent / "input"), "/kaggle/input"]
    launch = {**order["launch"], "work_dir": "work", "mounts": list(dict.fromkeys(mounts))}
    if order["relays"]:
        store.mkdir(exist_ok=True)
        launch["store"] = {"kind": "directory", "root": str(store), "given": str(scratch / "trees")}
    (scratch / "launch.json").write_text(json.dumps(launch))
    (scratch / "work").mkdir()
    agent = scratch / "code" / "payload" / "agent.py"
    command = [sys.executable, "-u", str(agent), str(scratch / "launch.json")]
    environment = {**os.environ, "SCHED_SECRETS": json.dumps(secrets)} if secrets else None
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=scratch, env=environment
    ) as agent_process:
        if agent_process.stdout is not None:
            print_lines(agent_process.stdout)
    return agent_process.returncode


def print_lines(stream: Any) -> None:
    """Print the lines of a stream up to a limit; read and drop further lines, so that the writer never blocks."""
    left = _PRINTED_BYTES_MAX
    while line := stream.readline(_LINE_BYTES_MAX):
        if left > 0:
            # The adapter would trust a line of the payload that has our mark.
            text = line.decode(errors="replace").replace(_MARK, _MARK.replace("#", "_"))
            sys.stdout.write(text)
            sys.stdout.flush()
            left -= len(line)
            if left <= 0:
                say({"trouble": f"output beyond {_PRINTED_BYTES_MAX} bytes is dropped"})


def listen(order: dict[str, Any], store: Path, ended: threading.Event) -> None:
    """Report whether this session can see datasets; create the stop flag in its store when the stop dataset appears."""
    run, ask = order["launch"]["run"], order["ask"]
    scale = float((order["launch"].get("clock") or {}).get("scale", 1.0))
    pause = max(_LISTEN_WALL_SECONDS_MIN, _LISTEN_SECONDS / scale)
    obstacle = "not tried"
    for _ in range(_PROOF_TRIES):  # a single failed request must not disable early stops for hours
        obstacle = access_obstacle(ask["proof"])
        if not obstacle or _KEY_FILE not in os.environ or ended.wait(pause):
            break
    say({"hears": not obstacle, "why": obstacle})
    while not obstacle and not ended.wait(pause):
        try:
            must_stop = is_there(ask["dataset"])
        except Exception:  # noqa: BLE001, S112 - a failed request does not mean stop
            continue
        if must_stop:
            flag = store / "runs" / run / "stop"
            flag.parent.mkdir(parents=True, exist_ok=True)
            flag.with_suffix(".new").write_text(json.dumps({"reason": "asked through Kaggle", "lane": None}))
            flag.with_suffix(".new").replace(flag)
            say({"asked": run})
            return


def access_obstacle(proof: str) -> str:
    """Return why this session cannot see the existing dataset ``proof``; "" if it can."""
    try:
        return "" if is_there(proof) else "Kaggle does not show the session its own inputs"
    except Exception as error:  # noqa: BLE001 - after any error the training continues without early stops
        return type(error).__name__


def is_there(dataset: str) -> bool:
    """Return whether this session sees ``owner/slug``. Raises OSError, HTTPException, ValueError, RuntimeError."""
    token = Path(os.environ[_KEY_FILE]).read_text().strip()
    is_emulated = os.environ.get("KAGGLE_API_ENVIRONMENT") == "LOCALHOST"
    base = "http://localhost/api" if is_emulated else "https://api.kaggle.com"
    owner, _, slug = dataset.partition("/")
    request = urllib.request.Request(  # noqa: S310 - one of the two addresses above
        f"{base}/v1/datasets.DatasetApiService/GetDatasetStatus",
        data=json.dumps({"ownerSlug": owner, "datasetSlug": slug}).encode(),
        headers={"Content-Type": "application/json", "Authorization": f"Bearer {token}"},
    )
    exchange = importlib.import_module("payload.deadline").exchange
    answer = exchange(request, _CALL_SECONDS, _PIECE_BYTES)
    if answer.status in (403, 404):
        return False
    if answer.status != 200:
        raise RuntimeError(f"HTTP {answer.status}")
    status = str(json.loads(answer.body).get("status") or "")
    return bool(status) and not status.upper().endswith(("DELETED", "FAILED"))


def unpacked(text: str) -> dict[str, Any]:
    """Return an order that was compressed because of its size."""
    document: dict[str, Any] = json.loads(zlib.decompressobj().decompress(base64.b85decode(text), _ORDER_BYTES_MAX))
    return document


def tidy(store: Path, files: list[Path]) -> None:
    """Remove files that need no download: inputs, which are in the store already, and old checkpoints if too large."""
    for path in files:
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
