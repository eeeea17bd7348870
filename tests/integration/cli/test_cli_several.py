"""Several jobs at once, and everything: hold, release, cancel; pause and resume."""

from scheduler.store import lease
from scheduler.store.engine import Database
from tests.integration.cli.conftest import NOW, Schedctl


def test_several_jobs_are_changed_at_once_and_one_that_refuses_stays(world: Database, schedctl: Schedctl) -> None:
    assert schedctl("queue", "hold", "ucm", "nobody").code == 5
    typed = schedctl("queue", "hold", "ucm", "ulm", "--why", "a pause")
    assert typed.code == 6
    assert "ucm is held." in typed.out
    assert "1 of 2 jobs stay as they are: cannot hold ulm: it is done" in typed.err
    held = schedctl("queue", "hold", "--all", "--json").document["jobs"]
    assert {job["name"] for job in held} == {"uff-main", "ufm"}  # they train; the others are held or done
    released = schedctl("queue", "release", "--all", "--json").document["jobs"]
    assert {job["name"] for job in released} == {"uff-main", "ufm", "ucm", "urm"}
    assert schedctl("queue", "release", "--all").err.startswith("No job can be released.")
    assert schedctl("queue", "cancel").code == schedctl("queue", "cancel", "ucm", "--all").code == 2


def test_a_pause_keeps_everything_from_starting_and_every_screen_says_so(world: Database, schedctl: Schedctl) -> None:
    assert "1 session goes on" in schedctl("pause", "--why", "no power on Sunday").out
    shown = schedctl("status").out
    assert "Paused, nothing new starts" in shown
    assert "schedctl resume" in shown
    assert {pool["state"] for pool in schedctl("pools", "--json").document["pools"]} == {"closed"}
    plan = schedctl("plan", "preview", "--json").document["plan"]
    assert min((found["start"] for found in plan["placements"]), default=NOW + 86_400) >= NOW + 86_400
    assert schedctl("resume", "--json").document == {"paused": False, "was_paused": True}
    assert "Paused" not in schedctl("status").out
    assert "Nothing was paused" in schedctl("resume").out


def test_a_command_beside_a_daemon_that_stands_by_names_the_one_that_leads(world: Database, schedctl: Schedctl) -> None:
    """The pipe that wakes a daemon is where it leads; a machine that stands by has none, and is not alone."""
    assert "No daemon runs here" in schedctl("queue", "hold", "ucm").err
    held = lease.acquire(world, "griffith:/var/lib/uff-scheduler", 1_000)
    assert held is not None
    told = schedctl("queue", "release", "ucm").err
    assert "The daemon that leads, griffith:/var/lib/uff-scheduler, takes up the change with its next cycle." in told
    assert "No daemon" not in told
    lease.release(world, held)
    assert "No daemon runs here" in schedctl("queue", "hold", "ucm").err
