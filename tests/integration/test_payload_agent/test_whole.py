"""A command that knows nothing of checkpoints: what it leaves when it ends by itself is its job's one checkpoint."""

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from jobs.payload.store.manifest import parse_manifest

LEAVES = """
import os, pathlib
output = pathlib.Path("output")
assert str(output.resolve()) == os.environ["SCHED_OUTPUT_DIR"] and not os.environ["SCHED_PROGRESS"]
(output / "model.bin").write_bytes(bytes(1000))
(output / "meta.json").write_text("the user's own")
"""
WAITS = """
import os, pathlib, select, sys
pathlib.Path("output/half.bin").write_bytes(b"half")
print("waits", file=sys.stderr, flush=True)
select.select([], [], [], 60)
"""


def whole(session: Any, script: str, **changes: Any) -> dict[str, Any]:
    """Return a lane that runs a script whole."""
    lane: dict[str, Any] = session.lane(script, target_step=1, whole=True, **changes)
    return lane


def components(session: Any) -> dict[str, bytes]:
    """Return what the one checkpoint in the store holds, by name."""
    (key,) = session.manifests()
    manifest = parse_manifest(key, (session.store / key).read_bytes())
    assert manifest.step == 1
    return {part.name: (session.store / f"jobs/job0/blobs/{part.sha256}").read_bytes() for part in manifest.components}


def test_what_it_leaves_at_a_clean_exit_comes_home(session: Any) -> None:
    result = session.run(whole(session, LEAVES))
    assert (result["outcome"], result["checkpoint_step"]) == ("finished", 1)
    assert result["steps_per_second"] > 0
    found = components(session)
    assert sorted(found) == ["meta.json", "output/meta.json", "output/model.bin"]
    assert found["output/meta.json"] == b"the user's own"
    assert json.loads(found["meta.json"])["step"] == 1


def test_nothing_is_lost_that_a_checkpoint_cannot_hold_as_a_file(session: Any, tmp_path: Path) -> None:
    script = LEAVES + (
        "deep = output / 'a/b/c/d/e/f/g'\ndeep.mkdir(parents=True)\n(deep / 'deep.txt').write_text('deep')\n"
        "(output / 'best model').write_text('blank')\n(output / '.hidden').write_text('hidden')\n"
        "os.symlink('/etc', output / 'away')\nos.symlink('model.bin', output / 'last')\n"
        "os.mkfifo(output / 'pipe')\n(output / 'model.bin').chmod(0)\ndeep.chmod(0)\n"
    )
    result = session.run(whole(session, script))
    assert result["outcome"] == "finished", result
    assert any("4 of them in output.tar; 1 were neither files nor links" in line for line in session.said)
    found = components(session)
    assert sorted(found) == ["meta.json", "output.tar", "output/.hidden", "output/meta.json", "output/model.bin"]
    (tmp_path / "found.tar").write_bytes(found["output.tar"])
    with tarfile.open(tmp_path / "found.tar") as archive:
        entries = {entry.name: entry.linkname for entry in archive}
    assert entries == {
        "output/a/b/c/d/e/f/g/deep.txt": "",
        "output/away": "/etc",
        "output/best model": "",
        "output/last": "model.bin",
    }


@pytest.mark.parametrize(
    "script",
    ["", "import os; os.rmdir('output')", "import os; os.rmdir('output'); os.symlink('/etc', 'output')"],
    ids=["empty", "gone", "a link elsewhere"],
)
def test_an_output_that_is_not_there_ends_the_job_all_the_same(session: Any, script: str) -> None:
    assert session.run(whole(session, script))["outcome"] == "finished"
    assert sorted(components(session)) == ["meta.json"]


def test_what_fails_leaves_no_checkpoint(session: Any) -> None:
    result = session.run(whole(session, LEAVES + "import sys; sys.exit('no such column')"))
    assert (result["outcome"], result["error_class"]) == ("failed", "code")
    assert "no such column" in result["message"]
    assert session.manifests() == []


@pytest.mark.parametrize("obeys", [True, False], ids=["exits 0 on SIGTERM", "dies of it"])
def test_what_is_asked_to_leave_was_not_through_and_begins_anew(session: Any, obeys: bool) -> None:
    handler = "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n" if obeys else ""
    session.write(whole(session, handler + WAITS))
    session.start()
    session.until("waits")
    (session.store / "runs/run-0001/stop").write_text(json.dumps({"lane": None, "reason": "enough"}))
    assert session.end() == 0
    result = session.result()
    assert (result["outcome"], result["error_class"]) == ("yielded", None)
    assert "it had not finished, and starts from scratch" in result["why"]
    assert session.manifests() == []


def test_one_that_had_its_time_and_was_cut_says_that_it_needs_more(session: Any) -> None:
    result = session.run(whole(session, WAITS, stall={"checkpoint_seconds": 1}), seconds=4.0, grace_seconds=0.5)
    assert (result["outcome"], result["error_class"]) == ("failed", "no_checkpoint")
    assert "needs a longer `whole`" in result["why"]
    assert session.manifests() == []


def test_a_script_of_the_contract_is_run_to_its_own_end(session: Any) -> None:
    """It works as outside a session: a thousand steps, nothing reported; what it saves is output."""
    result = session.run(whole(session, session.counter.replace("0.002", "0")))
    assert result["outcome"] == "finished"
    assert "output/checkpoints/step-00001000/state.json" in components(session)
