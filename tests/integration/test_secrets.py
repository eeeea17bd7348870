"""Secrets of jobs on this machine: from the file of credentials to the session's environment, and nowhere else."""

from pathlib import Path

from tests.lab.canary import NAME, files_that_tell, new_canary, proves_redaction, run_canary, told_in
from tests.lab.clocks import starting_now

EPOCH = 1_800_000_000


def settings(folder: Path) -> dict[str, object]:
    clock = starting_now(EPOCH, 60.0).payload_clock()
    pool = {
        "name": "desk",
        "platform": "local",
        "session_cap": "4h",
        "session_min": "5m",
        "setup": "1m",
        "stop_margin": "2m",
        "quotas": [{"name": "hours", "kind": "day", "limit": "20h", "zone": "UTC"}],
    }
    return {
        "artifacts": {"kind": "directory", "root": str(folder / "store")},
        "daemon": {"cycle": "1m", "heartbeat": "30s", "grace": "2m"},
        "clock": {"epoch": clock["epoch"], "origin": clock["origin"], "scale": clock["scale"]},
        "pools": [pool],
    }


def test_a_local_session_has_its_secret_and_nothing_that_it_leaves_tells_it(tmp_path: Path) -> None:
    """It is put there when the job waits for it already, and is taken up without a word to the daemon."""
    value = new_canary()
    said = run_canary(tmp_path, settings(tmp_path), value, late=True)
    assert f"leaky waits for its secret {NAME}" in said
    proves_redaction((tmp_path / "daemon/sessions/desk/uff-leaky-0001/output.log").read_text(), value)
    assert told_in(said.encode(), value) == []
    assert "secrets" in said
    assert NAME in said
    assert files_that_tell(tmp_path, value, but=[tmp_path / "daemon" / "credentials" / NAME]) == []
    assert list((tmp_path / "store" / "jobs" / "leaky" / "manifests").iterdir()), "it saved before it failed"
