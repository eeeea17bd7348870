"""Rest: Slurm asked through slurmrestd, for a machine that shares the pool's folder but has no programs of Slurm.

What API v0.0.38 does not have, the session's script makes up for; see docs/slurm.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from platforms.base import Misconfigured, Unreachable
from platforms.slurm.books import NoBooks
from platforms.slurm.rest_api import RestApi, complaint_of
from platforms.slurm.settings import NAME
from platforms.slurm.sightings import GONE, UNSURE, NotSubmitted, Poll, by_key, refusal
from platforms.slurm.skew import skew
from platforms.slurm.way import CLAIMED, ENTER, LOOK, PREPARE, Way, packed, silent, why_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from platforms.slurm.settings import Settings
    from platforms.slurm.way import Books

_PREPARE = (
    """
key=$1
"""
    + PREPARE
    + """
printf '%%s\\n' "$root" "$HOME" "$PATH" "$(id -un)"
"""
)
_ASK = """
[ ! -d "$1" ] || : >"$1/asked"
"""
# How the API names what sbatch is told.
_TEXTS = {
    "--account": "account",
    "--comment": "comment",
    "--constraint": "constraints",
    "--exclude": "exclude_nodes",
    "--gres": "gres",
    "--mem": "memory_per_node",
    "--partition": "partition",
    "--qos": "qos",
}
_COUNTS = {
    "--cpus-per-task": "cpus_per_task",
    "--ntasks": "tasks",
    "--ntasks-per-node": "tasks_per_node",
    "--time": "time_limit",
}
# It takes no signal for a script alone. That a job is not to be requeued it takes, and does not heed.
_LEFT_OUT = "--signal"


class Rest(Way):
    """See Way."""

    signals = False

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.api = RestApi(settings)
        self._places: dict[int, int] = {}

    def poll(self, keys: Sequence[str]) -> Poll:
        """See Way.poll."""
        rows = self._rows()
        ran = self._run("look at the folders", ENTER + LOOK, keys)
        folders, end, _ = ran.out.rpartition("== end\n")
        if ran.code != 0 or not end:
            raise silent("look at the folders", ran)
        return Poll(by_key(rows, self._settings.owner, self._skew, self._places), self._told(folders, keys))

    def books(self) -> Books:
        """See Way.books. What an account has left, this API does not tell."""
        raise NoBooks("slurmrestd does not tell them")

    def submit(self, key: str, words: Sequence[str], launch: str, script: str) -> int:
        """See Way.submit."""
        try:
            known = by_key(self._rows(), self._settings.owner, self._skew)
        except Unreachable as error:
            raise NotSubmitted(NAME, "submit", error.why, "The pool rests until Slurm answers") from error
        if key in known:
            return 0
        ran = self._run("submit", ENTER + _PREPARE % packed(launch, script), [key])
        if ran.code == CLAIMED:
            return 0
        told = ran.out.splitlines()
        if ran.code != 0 or len(told) != 4:
            raise NotSubmitted(NAME, "submit", why_of(ran), f"Check the disk of {self._settings.folder}")
        root, home, path, user = told
        if user != (asked := self.api.user(self._clock.now())):
            why = f"the session's folder is {user}'s, and slurmrestd runs jobs as {asked}"
            raise Misconfigured(NAME, "submit", why, f"Give a token of {user}, or run the daemon as {asked}")
        environment = {"HOME": home, "PATH": path, "USER": user, "LANG": "C.UTF-8", "SLURM_UMASK": "0077"}
        if self._settings.slurm_conf:
            environment["SLURM_CONF"] = self._settings.slurm_conf
        job = {
            **_fields(words),
            "name": key,
            "current_working_directory": f"{root}/{key}",
            "standard_output": f"{root}/{key}/output.log",
            "open_mode": "append",
            "environment": environment,
        }
        return self._submitted(self.api.post("/job/submit", {"script": script, "job": job}))

    def cancel(self, jobs: Sequence[int]) -> None:
        """See Way.cancel."""
        for job in jobs:
            complaint = complaint_of(self.api.delete(f"/job/{job}"))
            if complaint and not GONE.search(complaint):
                raise Unreachable(NAME, "cancel", complaint, "Nothing is ended meanwhile")

    def ask_to_leave(self, key: str, jobs: Sequence[int]) -> None:
        """See Way.ask_to_leave. The API's signal would reach all processes of the session; its script looks for a file.

        Without it, a training's helpers would be ended before it has saved.
        """
        del jobs
        self._well("ask a session to leave", self._run("ask a session to leave", ENTER + _ASK, [key]))

    def time(self) -> int:
        """Return the time by the controller's clock, in UTC seconds."""
        told = self.api.get("/diag").get("statistics")
        at = told.get("req_time") if isinstance(told, dict) else None
        if not isinstance(at, int):
            raise Unreachable(NAME, "ask for the time", "its answer has no time", "It is asked again")
        return at

    def _rows(self) -> list[list[str]]:
        """Return the jobs of this user that Slurm knows, each as sightings.FIELDS; learns how far its clock is off."""
        user, began = self.api.user(self._clock.now()), self._clock.now()
        jobs = self.api.get("/jobs").get("jobs")
        self._skew = skew(str(self.time()), began, self._clock.now(), self._skew)
        if not isinstance(jobs, list) or not all(isinstance(one, dict) for one in jobs):
            raise Unreachable(NAME, "look at the queue", "its answer has no list of jobs", "It is asked again")
        self._places = _places(jobs)
        return [_row(one) for one in jobs if one.get("user_name") == user]

    def _submitted(self, told: Mapping[str, Any]) -> int:
        job, complaint = told.get("job_id"), complaint_of(told)
        if isinstance(job, int) and job > 0:
            return job
        if not complaint or UNSURE.search(complaint):
            why = f"slurmrestd gave no answer: {complaint or 'it names no job'}"
            raise Unreachable(NAME, "submit", why, "The job is looked for by its name")
        raise refusal(complaint)


def _places(jobs: Sequence[Mapping[str, Any]]) -> dict[int, int]:
    """Return the places of the jobs that wait, by job: how many of their partition come first, and one."""
    waiting = [job for job in jobs if job.get("job_state") == "PENDING" and isinstance(job.get("job_id"), int)]
    waiting.sort(key=lambda job: (-(job["priority"] if isinstance(job.get("priority"), int) else 0), job["job_id"]))
    counts: dict[str, int] = {}
    places = {}
    for job in waiting:
        partition = str(job.get("partition"))
        counts[partition] = places[job["job_id"]] = counts.get(partition, 0) + 1
    return places


def _row(job: Mapping[str, Any]) -> list[str]:
    reason = str(job.get("state_description") or "").replace(" ", "_") or str(job.get("state_reason") or "None")
    instants = [str(job.get(name) or "") for name in ("start_time", "submit_time", "end_time")]
    told = [str(job.get(name) or "") for name in ("job_id", "job_state", "nodes", "name", "comment")]
    return [told[0], told[1], reason, *instants, *told[2:]]


def _fields(words: Sequence[str]) -> dict[str, Any]:
    """Return options of sbatch as the API takes them."""
    found: dict[str, Any] = {}
    for word in words:
        name, _, value = word.partition("=")
        if name in _TEXTS:
            found[_TEXTS[name]] = value
        elif name in _COUNTS:
            found[_COUNTS[name]] = int(value)
        elif name == "--nodes":
            found["nodes"] = [int(value), int(value)]
        elif name == "--no-requeue":
            found["requeue"] = False
        elif name != _LEFT_OUT:
            raise Misconfigured(
                NAME, "submit", f"slurmrestd has no word for {name}", "Do without it, or without slurmrestd"
            )
    return found
