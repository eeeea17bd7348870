"""Backup of database, settings and, on request, artifacts into a new folder, verified by a test restore.

It contains no credentials: secret values of settings are replaced, credential files and environment variables are left
out.
"""

import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

from jobs.payload.redact import Redactor
from jobs.problem import ProblemsFound
from jobs.toml_file import read_toml
from platforms.artifacts.base import BlobStore, Missing
from platforms.artifacts.directory import DirectoryStore
from scheduler.service.facts.verification import verify as verify_checkpoints
from scheduler.service.requests.checkpoint_files import select
from scheduler.store import backup as database_files
from scheduler.store.backup import BackupFailed
from scheduler.store.engine import Database, open_database
from scheduler.store.verify import verify as verify_database

_NOTE = "backup.json"
NOT_INSIDE = ("credentials", "variables of the environment", "logs", "sessions that run")


@dataclass(frozen=True, slots=True)
class Backup:
    """The content of a backup: names of files in its folder; ``artifacts`` is None if not requested."""

    database: str
    settings: tuple[str, ...]
    artifacts: int | None
    checkpoints_verified: int
    not_inside: tuple[str, ...] = NOT_INSIDE


def back_up(
    database: Database, settings: Iterable[Path], artifacts: BlobStore | None, target: Path, redact: Redactor, now: int
) -> Backup:
    """Write a backup to the new or empty folder ``target``, which appears after a successful test restore.

    ``settings`` are files, ``artifacts`` is the store to copy; None: leave it out. Raises StoreFailure, StoreError,
    OSError.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        name = "scheduler.dump" if database.path is None else "scheduler.db"
        database_files.backup(database, fresh / name)
        copied = tuple(_copy_settings(file, fresh / "settings", redact) for file in settings)
        objects = None if artifacts is None else _copy_artifacts(artifacts, fresh / "artifacts")
        verified = _prove(database, fresh / name, None if artifacts is None else fresh / "artifacts")
        result = Backup(name, copied, objects, verified)
        note = {"made_at": now, "version": version("uff-scheduler"), **asdict(result)}
        (fresh / _NOTE).write_text(json.dumps(note, indent=2) + "\n", encoding="utf-8")
        fresh.replace(target)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return result


def _copy_settings(file: Path, folder: Path, redact: Redactor) -> str:
    """Copy one file without its secrets and return its name, which is made unique."""
    folder.mkdir(exist_ok=True, mode=0o700)
    copy = folder / file.name
    number = 2
    while copy.exists():
        copy = folder / f"{file.stem}-{number}{file.suffix}"
        number += 1
    copy.touch(mode=0o600)
    copy.write_text(redact.whole(file.read_text(encoding="utf-8")), encoding="utf-8")
    try:
        read_toml(copy)
    except ProblemsFound as error:
        raise BackupFailed(str(file), f"without its secrets it cannot be read: {error}", "Copy it by hand") from None
    return copy.name


def _copy_artifacts(store: BlobStore, folder: Path) -> int:
    """Copy every object and return their number; objects deleted meanwhile are left out."""
    folder.mkdir(mode=0o700)
    copied = 0
    for key in store.keys(""):
        try:
            store.fetch(key, folder / key)
        except Missing:
            continue
        copied += 1
    return copied


def _prove(database: Database, file: Path, artifacts: Path | None) -> int:
    """Restore a backup temporarily and verify it; return the number of checkpoints read. Raises BackupFailed."""
    with tempfile.TemporaryDirectory(prefix="schedctl-backup-") as folder:
        if database.path is None:
            _read_dump(file)
            restored = database
        else:
            database_files.restore(file, Path(folder) / "scheduler.db")
            restored = open_database(f"sqlite:///{folder}/scheduler.db")
        try:
            if problems := verify_database(restored):
                why = f"the restored copy has errors: {'; '.join(problems[:3])}"
                raise BackupFailed(str(database.where), why, "See: schedctl db verify")
            if artifacts is None:
                return 0
            with restored.read() as tx:
                saved = select(tx, None)
        finally:
            if restored is not database:
                restored.close()
    verdicts = list(verify_checkpoints(DirectoryStore(artifacts), saved))
    for verdict in verdicts:
        if verdict.findings:
            why = f"the copy of {verdict.record.manifest.key} is damaged: {'; '.join(verdict.findings)}"
            raise BackupFailed(str(artifacts), why, "See: schedctl checkpoints verify")
    return len(verdicts)


def _read_dump(file: Path) -> None:
    """Read a dump of PostgreSQL to its end, since restoring it would need a server. Raises BackupFailed."""
    program = shutil.which("pg_restore")
    if program is None:
        raise BackupFailed(str(file), "pg_restore is not installed", "Install the PostgreSQL client programs")
    command = [program, "--file=/dev/null", str(file)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BackupFailed(str(file), " ".join(done.stderr.split())[:500], "Correct this error, and back up again")
