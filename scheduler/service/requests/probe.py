"""Probe: runs a job's command on this machine for a short time, as a lane would, to measure its speed.

The runner starts it with a copy of the code, a checkpoint folder and a progress channel, in a session whose store is
a temporary folder. The database and the artifact store stay unchanged.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from jobs.definition import RANGES
from jobs.lane_report import LaneReport, read_report
from jobs.nouns.pool import Pool
from jobs.payload.bounds import read_json
from jobs.spec import JobSpec
from platforms.artifacts.base import Missing
from platforms.artifacts.directory import DirectoryStore
from platforms.local.spawn import of_sessions
from scheduler.clock import real_now
from scheduler.core.run import Lane, Reserved, Run
from scheduler.service.facts.overheads import Overhead
from scheduler.service.launch.launch_document import launch_document, put_stop_flag
from scheduler.service.outside.ports import Policy
from scheduler.service.requests.stored import keep_code

_RUN = "probe"
_MARGIN_SECONDS, _GRACE_SECONDS = 5, 10
_LOOK_SECONDS = 0.2
_SAVING_SECONDS = 0.1  # checkpoints are discarded, so it may train until the end
_ENOUGH_SECONDS = 5.0  # seconds of training; enough for an estimate
_TAIL_BYTES = 2_000


@dataclass(frozen=True, slots=True)
class Probed:
    """The result of a probe: steps per hour on this machine, or None and the reason."""

    steps_per_hour: float | None
    why: str = ""


def probe(spec: JobSpec, bundle: Path, seconds: int) -> Probed:
    """Run a job's command for at most ``seconds`` real seconds, until its speed is known.

    Raises CodeError for a folder that cannot be packed, OSError for errors of the local disk.
    """
    with tempfile.TemporaryDirectory(prefix="schedctl-probe-") as name:
        folder = Path(name)
        store = DirectoryStore(folder / "store")
        code = keep_code(None, store, spec.code, 0).digest if spec.code is not None else ""
        launch = folder / "launch.json"
        launch.write_text(json.dumps(_launch(spec, code, seconds)))
        with (folder / "log").open("wb") as log:
            runner = subprocess.Popen(
                [sys.executable, str(bundle / "payload" / "agent.py"), str(launch)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=folder,
                env=of_sessions(os.environ),
                start_new_session=True,
            )
            try:
                _wait(runner, store, spec.name, seconds)
            finally:
                _end(runner)
        return _probed(_read_report(store, spec.name, "result"), (folder / "log").read_bytes()[-_TAIL_BYTES:])


def _launch(spec: JobSpec, code: str, seconds: int) -> dict[str, Any]:
    """Return the launch document of a local session that ends by itself, without stall rules."""
    now = round(real_now())
    deadline = now + seconds + _MARGIN_SECONDS
    lane = Lane(0, spec.name, 1, tuple(range(spec.needs.devices_min)), None, code=code or None)
    document = launch_document(
        run=Run(_RUN, _RUN, (lane,), now, deadline, deadline, Reserved(now)),
        pool=Pool(_RUN, "local", "", stop_margin_seconds=_MARGIN_SECONDS, mtbf_seconds=round(RANGES["deadline"].most)),
        specs={spec.name: replace(spec, image="", requirements=None, inputs=())},
        overheads={spec.name: Overhead(0, 0.0, 0, 0.0)},
        stalls={spec.name: {}},
        restore={spec.name: ()},
        parents={},
        data={spec.name: ""},
        store={"kind": "directory", "root": "store"},
        clock={"epoch": 0, "origin": 0, "scale": 1},
        policy=Policy(grace_seconds=_GRACE_SECONDS),
    )
    (order,) = document["lanes"]
    order |= {"checkpoint_seconds": _SAVING_SECONDS, "closing_seconds": _SAVING_SECONDS}
    return {**document, "heartbeat_seconds": _LOOK_SECONDS, "work_dir": "work"}


def _wait(runner: subprocess.Popen[bytes], store: DirectoryStore, job: str, seconds: int) -> None:
    """Wait for the end of the session; request it when the speed is known well enough."""
    since: float | None = None
    ends_by = real_now() + seconds + 2 * _MARGIN_SECONDS + _GRACE_SECONDS
    while real_now() < ends_by:
        try:
            runner.wait(_LOOK_SECONDS)
        except subprocess.TimeoutExpired:
            report = _read_report(store, job, "heartbeat") if since is None else None
            if report is not None and report.steps_per_second:
                since = real_now()
            if since is not None and real_now() - since >= _ENOUGH_SECONDS:
                put_stop_flag(store, _RUN, "its speed is known")
        else:
            return


def _end(runner: subprocess.Popen[bytes]) -> None:
    """Kill the runner if it still runs; its command dies with it."""
    if runner.poll() is None:
        runner.terminate()
        try:
            runner.wait(_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(runner.pid, signal.SIGKILL)
            runner.wait()


def _probed(report: LaneReport | None, log: bytes) -> Probed:
    """Return the speed from the last heartbeat of the session, or why there is none."""
    if report is None:
        lines = log.decode(errors="replace").strip().splitlines()
        return Probed(None, f"the session wrote no report: {lines[-1] if lines else 'nothing was printed'}")
    if report.steps_per_second:
        return Probed(RANGES["steps_per_hour"].nearest(report.steps_per_second * 3_600))
    if report.step is not None:
        return Probed(None, "it reported too few steps to measure a speed")
    last = report.message.strip().splitlines()[-1:] if report.error_class else []
    return Probed(None, ": ".join([report.why or "it reported no step", *last]))


def _read_report(store: DirectoryStore, job: str, what: str) -> LaneReport | None:
    """Return a heartbeat or the result; None if none can be read."""
    try:
        document = read_json(store.read(f"runs/{_RUN}/lane-0/{what}.json"))
        return read_report(document, _RUN, 0, job, last_word=what == "result")[0]
    except (Missing, ValueError):
        return None
