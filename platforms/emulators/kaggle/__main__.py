"""Run the emulator as a program: python -m platforms.emulators.kaggle FOLDER --port N --owner NAME --key-file FILE.

Without a key file the API key is the first line of the standard input, and it ends when that is closed, so that it does
not outlive its parent process. It ends with SIGTERM and SIGINT in any case. With --idle-seconds it goes on, as the real
place does, until no session has run and no request has come for so long. Started again on the same folder and clock, it
goes on with the account and the sessions that ran meanwhile; on another clock the account begins empty.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

from jobs.instant import parse_instant
from jobs.payload.clock import Clock
from platforms.emulators.kaggle.place import KaggleAccount, Kernel, KernelVersion
from platforms.emulators.kaggle.server import Server
from platforms.emulators.kaggle.session import EmulatedSession, Terms
from platforms.emulators.kaggle.storage import Dataset, KaggleRules, KaggleVersion, UploadedBlob
from platforms.emulators.program import clear, end_unknown, ending, serve
from platforms.plain_file import write_whole

_FILE = "account.json"
_TERMS = ("session_id", "is_gpu", "limit_seconds", "queue_seconds", "log_bytes_max", "token", "billed_from")
_STATE = ("status", "failure", "started_at", "ended_at", "kept", "pid", "ticks")


def main() -> None:
    """Serve until told to end; print the address when ready."""
    parser = argparse.ArgumentParser(prog="python -m platforms.emulators.kaggle", description=__doc__)
    parser.add_argument(
        "folder", type=Path, help="where kernels and datasets live; an account of another clock is removed"
    )
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--owner", default="alice")
    parser.add_argument("--key-file", type=Path, help="holds the API key; without it: the standard input")
    parser.add_argument(
        "--epoch", type=parse_instant, help="what its clock shows at --origin; without it: that instant"
    )
    parser.add_argument("--origin", type=float, help="real UTC seconds; without it: now")
    parser.add_argument("--scale", type=float, default=1.0, help="scheduled seconds in a real one")
    parser.add_argument("--gpu-hours", type=float, default=30.0, help="GPU hours of a week")
    parser.add_argument("--idle-seconds", type=float, default=0.0, help="outlive the standard input until this idle")
    options = parser.parse_args()
    try:
        key = (options.key_file.read_text() if options.key_file else sys.stdin.readline()).strip()
    except OSError as error:
        parser.error(f"the key file cannot be read: {error}")
    if not key:
        parser.error(f"{options.key_file or 'the standard input'} holds no API key: any word will do")
    origin = Clock().now() if options.origin is None else options.origin
    clock = Clock(origin if options.epoch is None else options.epoch, origin, options.scale)
    folder = options.folder.absolute()
    rules = KaggleRules(gpu_seconds_per_week=round(options.gpu_hours * 3600))
    place = KaggleAccount(folder, clock, options.owner, key, rules)
    over = ending()
    server = Server(place, options.port)  # it answers no request yet
    if recall(place):
        # A session that waits has no folder yet, whatever an earlier start began.
        live = [session for session in place.sessions() if session.live and session.started_at is not None]
        end_unknown(folder, {str(session.terms.folder) for session in live})
    else:
        clear(folder)
    place.note = partial(save, place)
    place.note()
    with server:
        for session in place.sessions():
            session.resume()
        if options.idle_seconds <= 0 and not options.key_file:
            threading.Thread(target=_set_at_end_of_input, args=(over,), name="end of input", daemon=True).start()
        serve(server, over, options.idle_seconds, lambda: any(session.live for session in place.sessions()))


def _set_at_end_of_input(over: threading.Event) -> None:
    sys.stdin.read()
    over.set()


# One file, replaced whole, and the folders beside it.
def save(place: KaggleAccount) -> None:
    """Write down the account. Raises OSError."""
    with place.lock:
        document = {
            "clock": list(place.clock),
            "number": place.next_number,
            "kernels": [_kernel(kernel) for kernel in place.kernels.values()],
            "deleted": [_kernel(kernel) for kernel in place.deleted.values()],
            "datasets": [
                {
                    "slug": dataset.slug,
                    "title": dataset.title,
                    "deleted": dataset.deleted,
                    "versions": [
                        [version.number, version.notes, str(version.folder), version.created_at]
                        for version in dataset.versions
                    ],
                }
                for dataset in place.storage.datasets.values()
            ],
            "blobs": [
                [token, blob.name, blob.size, str(blob.path), blob.done] for token, blob in place.storage.blobs.items()
            ],
        }
        place.root.mkdir(parents=True, exist_ok=True)
        write_whole(place.root / _FILE, json.dumps(document))


def recall(place: KaggleAccount) -> bool:
    """Fill an empty account with what the folder remembers of it, on this very clock; return whether there was any."""
    try:
        document = json.loads((place.root / _FILE).read_bytes())
    except FileNotFoundError:
        return False
    if document["clock"] != list(place.clock):
        return False
    place.next_number = document["number"]
    place.kernels = {entry["slug"]: _recalled(place, entry) for entry in document["kernels"]}
    place.deleted = {entry["slug"]: _recalled(place, entry) for entry in document["deleted"]}
    for entry in document["datasets"]:
        versions = [KaggleVersion(number, notes, Path(folder), at) for number, notes, folder, at in entry["versions"]]
        place.storage.datasets[entry["slug"]] = Dataset(entry["slug"], entry["title"], versions, entry["deleted"])
    for token, name, size, path, done in document["blobs"]:
        place.storage.blobs[token] = UploadedBlob(name, size, Path(path), done)
    return True


def _kernel(kernel: Kernel) -> dict[str, Any]:
    versions = [
        {
            "number": version.number,
            "body": version.body,
            "pushed_at": version.pushed_at,
            "session": _session(version.session) if version.session else None,
        }
        for version in kernel.versions
    ]
    return {"id": kernel.id, "slug": kernel.slug, "title": kernel.title, "versions": versions}


def _session(session: EmulatedSession) -> dict[str, Any]:
    terms = {name: getattr(session.terms, name) for name in _TERMS}
    state = {name: getattr(session, name) for name in _STATE}
    return {"terms": {**terms, "folder": str(session.terms.folder), "gpus": session.terms.gpus}, "state": state}


def _recalled(place: KaggleAccount, entry: dict[str, Any]) -> Kernel:
    kernel = Kernel(entry["id"], entry["slug"], entry["title"])
    for version in entry["versions"]:
        body, session_state = version["body"], version["session"]
        session = None
        if session_state:
            terms = {
                **session_state["terms"],
                "folder": Path(session_state["terms"]["folder"]),
                "gpus": tuple(session_state["terms"]["gpus"]),
            }
            session_terms = Terms(source=str(body.get("text") or ""), address=place.address, **terms)
            session = place.new_session(session_terms)
            for name, value in session_state["state"].items():
                setattr(session, name, value)
        kernel.versions.append(KernelVersion(version["number"], body, version["pushed_at"], session))
    return kernel


if __name__ == "__main__":
    main()
