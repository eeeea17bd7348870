"""Run the emulator as a program: python -m platforms.emulators.kaggle FOLDER --port N --owner NAME --key-file FILE.

Without a key file the API key is the first line of standard input, and the program ends when standard input is closed,
so that it does not outlive its parent. It also ends on SIGTERM and SIGINT. With --idle-seconds it ends only after so
many seconds without a session or a request. Restarted with the same folder and clock, it continues with the account and
with the sessions that ran meanwhile; with another clock the account begins empty.
"""

import sys
import threading
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from jobs.payload.clock import Clock
from jobs.payload.whole_file import write_whole
from platforms.emulators.kaggle.place import KaggleAccount, Kernel
from platforms.emulators.kaggle.server import KaggleServer
from platforms.emulators.kaggle.storage import Dataset, KaggleRules, UploadedBlob
from platforms.emulators.program import clear, clock_of, end_unknown, ending, options_of, serve

_FILE = "account.json"


def main() -> None:
    """Serve until a signal; print the address when ready."""
    parser = options_of("kaggle", __doc__, "where kernels and datasets live; an account of another clock is removed")
    parser.add_argument("--owner", default="alice")
    parser.add_argument("--key-file", type=Path, help="holds the API key; without it: the standard input")
    parser.add_argument("--gpu-hours", type=float, default=30.0, help="GPU hours of a week")
    parser.add_argument("--tpu-hours", type=float, default=20.0, help="TPU hours of a week")
    options = parser.parse_args()
    try:
        key = (options.key_file.read_text() if options.key_file else sys.stdin.readline()).strip()
    except OSError as error:
        parser.error(f"the key file cannot be read: {error}")
    if not key:
        parser.error(f"{options.key_file or 'the standard input'} holds no API key: any word will do")
    folder = options.folder.absolute()
    gpu, tpu = (round(hours * 3600) for hours in (options.gpu_hours, options.tpu_hours))
    rules = KaggleRules(gpu_seconds_per_week=gpu, tpu_seconds_per_week=tpu)
    account = KaggleAccount(folder, clock_of(options), options.owner, key, rules)
    ended = ending()
    server = KaggleServer(account, options.port)  # it answers no request yet
    account.note = partial(save, account)
    if restore(account):
        # A waiting session has no process yet; what an earlier attempt started in its folder must end.
        live = [session for session in account.sessions() if session.live and session.started_at is not None]
        end_unknown(folder, {str(session.terms.folder) for session in live})
    else:
        clear(folder)
    account.note()
    with server:
        for session in account.sessions():
            session.resume()
        if options.idle_seconds <= 0 and not options.key_file:
            threading.Thread(target=_set_at_end_of_input, args=(ended,), name="end of input", daemon=True).start()
        serve(server, ended, options.idle_seconds, lambda: any(session.live for session in account.sessions()))


def _set_at_end_of_input(ended: threading.Event) -> None:
    sys.stdin.read()
    ended.set()


@dataclass
class _Saved:
    """The state that outlives the program, in one file beside the folders, which is replaced atomically."""

    clock: Clock
    number: int
    kernels: dict[str, Kernel]
    deleted: dict[str, Kernel]
    datasets: dict[str, Dataset]
    blobs: dict[str, UploadedBlob]


_FORMAT = TypeAdapter(_Saved)


def save(account: KaggleAccount) -> None:
    """Save the account. Raises OSError."""
    storage = account.storage
    with account.lock:
        kernels = account.kernels, account.deleted
        saved = _Saved(account.clock, account.next_number, *kernels, storage.datasets, storage.blobs)
        account.root.mkdir(parents=True, exist_ok=True)
        write_whole(account.root / _FILE, _FORMAT.dump_json(saved).decode())


def restore(account: KaggleAccount) -> bool:
    """Restore the account from the folder if it was saved with this clock; return whether it was."""
    try:
        saved = _FORMAT.validate_json((account.root / _FILE).read_bytes())
    except (FileNotFoundError, ValidationError):  # an older version wrote the invalid file
        return False
    if saved.clock != account.clock:
        return False
    account.next_number, account.kernels, account.deleted = saved.number, saved.kernels, saved.deleted
    account.storage.datasets, account.storage.blobs = saved.datasets, saved.blobs
    for session in account.sessions():
        account.attach_session(session)
    return True


if __name__ == "__main__":
    main()
