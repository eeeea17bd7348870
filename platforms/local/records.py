"""The files of a session; claim and end are created once, atomically. It imports only ``os``, to load fast."""

import os

LAUNCH = "launch.json"  # the document for the agent
ORDER = "order.json"  # what the adapter recorded at launch
CLAIM = "claim.json"  # who runs the session: the first process that creates this file owns the session
END = "ended.json"
OUTPUT = "output.log"
KEEPER_LOG = "keeper.log"
WORK = "work"
VIEW = "view"  # the session's view of this machine's files; without it, all files
CACHE = ".cache"  # beside the sessions, shared by them


def publish(folder: str, name: str, text: str) -> bool:
    """Write ``name`` unless it exists; return whether this call wrote it. After an OSError nothing was written."""
    temporary = f"{folder}/.{name}.{os.urandom(6).hex()}"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        try:
            data = text.encode()
            while data:
                data = data[os.write(descriptor, data) :]
        finally:
            os.close(descriptor)
        os.link(temporary, f"{folder}/{name}")
    except FileExistsError:
        return False
    finally:
        os.unlink(temporary)  # noqa: PTH108 - pathlib costs the keeper more than its whole work
    return True
