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
# Kaggle returns a session's log in one answer; a log that is too large for it would make the result unreadable as well.
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

    ``order`` has ``launch`` (the agent's document), ``inputs`` (``name``, ``sha256`` and ``into``: ``code``, ``trees``
    or ``store``), ``relays``: whether the store is a folder of this session that is downloaded after its end. With it
    ``ask`` has two datasets: ``dataset``, which appears if this session must end early, and ``proof``, which exists
    from the start. ``secrets`` are in an input (``name``, ``sha256``, and ``pad``, which decrypts it), or are the
    ``names`` of those that a person attached.
    """
    # The current time by the run's clock: nothing that Kaggle reports shows for certain when a session left the queue.
    clock = {"epoch": 0.0, "origin": 0.0, "scale": 1.0, **(order["launch"].get("clock") or {})}
    at = clock["epoch"] + (time.time() - clock["origin"]) * clock["scale"]  # noqa: TID251 - it is shipped
    say({"begins": order["launch"]["run"], "container": os.environ.get("KAGGLE_CONTAINER_NAME", ""), "at": at})
    code: int | str = "not started"
    working = working_folder()
    store = working / "store"
    inputs: list[Path] = []
    over = threading.Event()
    try:
        scratch = Path(tempfile.mkdtemp(prefix="uff-"))
        for wanted in order["inputs"]:
            # Files that are only read are kept apart: the folder whose content is downloaded is limited to 20 GB.
            into = store if wanted["into"] == "store" else scratch / wanted["into"]
            inputs += unpack(find_input(working, wanted["name"], wanted["sha256"]), into)
        sys.path.append(str(scratch / "code"))  # the payload is importable from now on
        if order["relays"] and order.get("ask"):
            threading.Thread(target=listen, args=(order, store, over), daemon=True).start()
        code = run_agent(order, scratch, store, secrets_of(order.get("secrets"), working))
    except BaseException as error:  # noqa: BLE001 - an uncaught exception would lose everything that was trained
        say({"trouble": f"{type(error).__name__}: {error}"[:2000]})
    finally:
        over.set()
        if order["relays"]:
            tidy(store, inputs)
    say({"ends": order["launch"]["run"], "code": code})


def say(document: dict[str, Any]) -> None:
    """Print a line for the adapter."""
    sys.stdout.write(f"{_MARK} {json.dumps(document)}\n")
    sys.stdout.flush()


def working_folder() -> Path:
    """Return the folder whose content Kaggle keeps: the working directory of a kernel."""
    here = Path.cwd()
    usual = Path("/kaggle/working")
    return usual if here.name != "working" and usual.is_dir() else here


def find_input(working: Path, name: str, sha256: str) -> Path:
    """Return an attached file by name and digest, as Kaggle's folder layout changes over time."""
    roots = [working.parent / "input", Path("/kaggle/input")]
    for root in roots:
        for path in sorted(root.rglob(name)):
            if digest_of(path) == sha256:
                return path
    listed = [str(path) for root in roots for path in sorted(root.rglob("*"))[:20]]
    raise FileNotFoundError(f"no input {name} with digest {sha256}; there are {listed}")


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
    """Return the session's secrets by name, without those that cannot be read: the lane that needs one reports it."""
    if not wanted:
        return {}
    if "names" not in wanted:
        file = find_input(working, wanted["name"], wanted["sha256"])
        sealed = zip(file.read_bytes(), bytes.fromhex(wanted["pad"]), strict=True)
        return dict(json.loads(bytes(one ^ other for one, other in sealed)))
    result = {}
    for name in wanted["names"]:
        try:
            result[name] = importlib.import_module("kaggle_secrets").UserSecretsClient().get_secret(name)
        except Exception as error:  # noqa: BLE001 - for any error: the agent reports what is missing
            say({"trouble": f"the secret {name} is not attached to this notebook: {type(error).__name__}"})
    return result


def run_agent(order: dict[str, Any], scratch: Path, store: Path, secrets: dict[str, str]) -> int:
    """Run the agent and print its output; a notebook keeps only what its own process prints."""
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
            pass_on(agent_process.stdout)
    return agent_process.returncode


def pass_on(stream: Any) -> None:
    """Print the lines of a stream, up to a limit; the rest is read and dropped, so that the writer never blocks."""
    left = _PRINTED_BYTES_MAX
    while line := stream.readline(_LINE_BYTES_MAX):
        if left > 0:
            # A printed line with our mark would be trusted as ours.
            text = line.decode(errors="replace").replace(_MARK, _MARK.replace("#", "_"))
            sys.stdout.write(text)
            sys.stdout.flush()
            left -= len(line)
            if left <= 0:
                say({"trouble": f"output beyond {_PRINTED_BYTES_MAX} bytes is dropped"})


def listen(order: dict[str, Any], store: Path, over: threading.Event) -> None:
    """Create the stop flag in the session's own store when the requested dataset appears; report whether that works."""
    run, ask = order["launch"]["run"], order["ask"]
    scale = float((order["launch"].get("clock") or {}).get("scale", 1.0))
    pause = max(_LISTEN_WALL_SECONDS_MIN, _LISTEN_SECONDS / scale)
    obstacle = "not tried"
    for _ in range(_PROOF_TRIES):  # a single failed request must not disable it for hours
        obstacle = obstacle_to_hearing(ask["proof"])
        if not obstacle or _KEY_FILE not in os.environ or over.wait(pause):
            break
    say({"hears": not obstacle, "why": obstacle})
    while not obstacle and not over.wait(pause):
        try:
            is_mounted = is_there(ask["dataset"])
        except Exception:  # noqa: BLE001, S112 - a failed request does not mean stop
            continue
        if is_mounted:
            flag = store / "runs" / run / "stop"
            flag.parent.mkdir(parents=True, exist_ok=True)
            flag.with_suffix(".new").write_text(json.dumps({"reason": "asked through Kaggle", "lane": None}))
            flag.with_suffix(".new").replace(flag)
            say({"asked": run})
            return


def obstacle_to_hearing(proof: str) -> str:
    """Return why this session cannot see an existing dataset; "" if it can."""
    try:
        return "" if is_there(proof) else "its own inputs are not shown to it"
    except Exception as error:  # noqa: BLE001 - for any error: the training goes on without it
        return type(error).__name__


def is_there(dataset: str) -> bool:
    """Return whether this session sees ``owner/slug``. Raises OSError, HTTPException, ValueError, RuntimeError."""
    token = Path(os.environ[_KEY_FILE]).read_text().strip()
    at_home = os.environ.get("KAGGLE_API_ENVIRONMENT") == "LOCALHOST"
    base = "http://localhost/api" if at_home else "https://api.kaggle.com"
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
    """Keep only new files: the inputs are in the store already, and of many large checkpoints the newest suffice."""
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
