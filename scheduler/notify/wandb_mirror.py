"""Weights & Biases: each session that ended as an offline run, written by its own client in a process of its own.

Nothing is uploaded: ``wandb sync FOLDER/*/*/offline-run-*`` does that, when and with the account that a person wants.
The client starts threads and a server of its own, which have no place in the daemon.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from scheduler.core.job import Active
from scheduler.service.outside.calls import fail
from scheduler.store import jobs, series

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from scheduler.service.outside.ports import Ports
    from scheduler.store.series import Point

COMMAND = (sys.executable, "-P", "-m", "scheduler.notify.wandb_child")
_PATIENCE_SECONDS = 300.0
# Where the client would look for an account, a proxy or a home; what is written needs none of it.
_PASSED = ("PATH", "LANG", "LC_ALL", "PYTHONPATH", "VIRTUAL_ENV")


def write_ended(ports: Ports, folder: Path, command: Sequence[str] = COMMAND) -> None:
    """Write every session that ended and is not in ``folder`` yet. What cannot be written is tried again."""
    with ports.database.read() as tx:
        told, records = series.newest(tx), {record.spec.name: record for record in jobs.everything(tx)}
    for job, attempt in sorted(told):
        record = records.get(job)
        if record is None or (isinstance(record.state, Active) and attempt == record.attempts):
            continue
        place = folder / job / f"{attempt:04d}"
        if place.exists():
            continue
        with ports.database.read() as tx:
            points = [point for point in series.of_job(tx, job, attempt) if point.attempt == attempt]
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=folder, prefix=".") as fresh:
                _run(command, Path(fresh), job, attempt, points)
                # What is there is whole: a crash leaves a hidden folder that nobody takes for a run.
                (Path(fresh) / "wandb").rename(place)
        except OSError as error:
            ports.log.error("mirror.failed", at=str(folder), why=str(error), next="tried again in a minute")
            fail(str(error))
            return


def _run(command: Sequence[str], folder: Path, job: str, attempt: int, points: Sequence[Point]) -> None:
    """Write one run below ``folder``. Raises OSError, with the client's last line."""
    asked = {"folder": str(folder), "job": job, "attempt": attempt, "points": [asdict(point) for point in points]}
    child = subprocess.Popen(
        command,
        cwd=folder,
        env=_environment(folder, os.environ),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        _, said = child.communicate(json.dumps(asked), _PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        raise OSError(f"wandb did not write a run within {_PATIENCE_SECONDS:.0f} s") from None
    finally:
        _end(child)
    if child.returncode:
        last = (said.strip().splitlines() or [f"exit status {child.returncode}"])[-1][:300]
        raise OSError(f"wandb wrote no run: {last}")


def _end(child: subprocess.Popen[str]) -> None:
    """End what the client left: it starts a server of its own, in the child's session."""
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    finally:
        child.wait()


def _environment(folder: Path, environ: Mapping[str, str]) -> dict[str, str]:
    own = {f"WANDB_{name}_DIR": str(folder / "own") for name in ("CACHE", "CONFIG", "DATA", "ARTIFACT")}
    told = {"HOME": str(folder), "WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB_ERROR_REPORTING": "false"}
    return {name: environ[name] for name in _PASSED if name in environ} | own | told
