"""Damaged, torn and repeated checkpoints, and a store that is full."""

from pathlib import Path
from typing import Any

from tests.lab.disk import small_disk


def damage(session: Any, key: str, name: str = "state.json") -> Path:
    """Flip one bit of a component."""
    [part] = [part for part in session.manifest(key)["components"] if part["name"] == name]
    blob: Path = session.store / "jobs/job0/blobs" / part["sha256"]
    content = bytearray(blob.read_bytes())
    content[0] ^= 1
    blob.write_bytes(content)
    return blob


def test_a_damaged_newest_checkpoint_is_passed_over_named_and_healed(session: Any) -> None:
    """The step that is trained again has the same bytes; the damaged object must not stand for them."""
    session.run(session.lane(session.counter, target_step=10))
    session.forget_run()
    session.run(session.lane(session.counter, target_step=15, attempt=2, restore=session.manifests()))
    bad, good = session.manifests()
    blob = damage(session, bad)
    damaged = blob.read_bytes()
    session.forget_run()
    result = session.run(session.lane(session.counter, target_step=15, attempt=3, restore=[bad, good]))
    assert (result["outcome"], result["restored_from"], result["restored_step"]) == ("finished", good, 10)
    [entry] = result["bad_manifests"]
    assert entry["manifest"] == bad
    assert "digest" in entry["why"]
    assert blob.read_bytes() != damaged
    session.forget_run()
    result = session.run(session.lane(session.counter, target_step=16, attempt=4, restore=session.manifests()))
    assert (result["restored_step"], result["bad_manifests"]) == (15, [])


def test_when_no_checkpoint_verifies_nothing_is_started_from_scratch(session: Any) -> None:
    session.run(session.lane(session.counter, target_step=10))
    damage(session, session.manifests()[0])
    missing = "jobs/job0/manifests/000000000005-000001.json"
    session.forget_run()
    result = session.run(session.lane(session.counter, attempt=2, restore=[*session.manifests(), missing]))
    assert (result["outcome"], result["error_class"]) == ("failed", "store")
    assert [entry["manifest"] for entry in result["bad_manifests"]] == [*session.manifests(), missing]
    assert result["step"] is None


def test_torn_and_broken_folders_are_no_checkpoints(session: Any) -> None:
    """Half a folder, one without meta.json, one with a link: training goes on, only the sound one is stored."""
    script = """
import os
from pathlib import Path
here = Path(os.environ["SCHED_CHECKPOINT_DIR"])
for name in (".partial-00000001", "step-00000002", "step-3", "linked"):
    (here / name).mkdir()
    (here / name / "w").write_text("half")
os.symlink("/etc/hostname", here / "linked" / "link")
(here / "linked" / "meta.json").write_text('{"step": 5, "metrics": {}}')
(here / "linked").rename(here / "step-00000005")  # seen whole, or its first complaint would be another
whole = here / "partial"
whole.mkdir()
(whole / "w").write_text("whole")
(whole / "meta.json").write_text('{"step": 7, "metrics": {}}')
whole.rename(here / "step-00000007")
"""
    result = session.run(session.lane(script, target_step=7))
    assert result["outcome"] == "finished"
    [key] = session.manifests()
    assert session.manifest(key)["step"] == 7
    log = "".join(session.said)
    assert "meta.json" in log
    assert "must be a plain file in the folder" in log


def test_steps_never_go_backwards(session: Any) -> None:
    script = """
import os, select, sys
from pathlib import Path
here = Path(os.environ["SCHED_CHECKPOINT_DIR"])
progress = open(os.environ["SCHED_PROGRESS"], "w", buffering=1)
def save(step, content):
    part = here / "part"
    part.mkdir()
    (part / "w").write_text(content)
    (part / "meta.json").write_text('{"step": %d, "metrics": {}}' % step)
    part.rename(here / f"step-{step:08d}")
    progress.write('{"saved": %d}\\n' % step)
save(10, "ten")
while not list((Path(os.environ["STORE"]) / "jobs/job0").glob("manifests/*10-*")):
    select.select([], [], [], 0.002)
save(4, "four")
save(20, "twenty")
"""
    result = session.run(session.lane(script, target_step=20, environment={"STORE": str(session.store)}))
    assert result["outcome"] == "finished"
    assert [session.manifest(key)["step"] for key in session.manifests()] == [20, 10]
    assert "never go backwards" in "".join(session.said)


def test_a_full_store_is_waited_out_while_training_goes_on(session: Any, tmp_path: Path) -> None:
    """No space for a checkpoint: said clearly, nothing torn; stored when space is back."""
    with small_disk(tmp_path / "disk", "512k") as disk:
        session.store = disk
        (disk / "ballast").write_bytes(b"b" * 384 * 1024)
        script = session.counter.replace(
            "(folder /", '(folder / "weights").write_bytes(bytes([step % 251]) * 200_000)\n    (folder /'
        )
        session.write(session.lane(script, checkpoint_seconds=0.05), mtbf_seconds=1)
        session.start()
        session.until("the store's disk is full")
        assert session.process
        assert session.process.poll() is None
        assert session.manifests() == []
        assert not [path for path in disk.rglob(".tmp-*") if path.stat().st_size > 100_000]
        (disk / "ballast").unlink()
        session.until("published")
        (disk / "runs/run-0001/stop").write_text('{"reason": "enough", "lane": null}')
        session.end()
        key = session.manifests()[0]
        for part in session.manifest(key)["components"]:
            assert (disk / "jobs/job0/blobs" / part["sha256"]).stat().st_size == part["bytes"]


def test_a_wish_for_a_checkpoint_that_is_not_heard_is_told_again(session: Any) -> None:
    """Libraries take signals for themselves: LLVM does, with which Triton compiles."""
    script = session.counter.replace(
        "    if training.should_save:\n",
        "    if training.should_save and not training.should_stop and not os.path.exists('lost'):\n"
        "        open('lost', 'w').close()\n"
        "        training.should_save = False\n"
        "    if training.should_save:\n",
    )
    assert script != session.counter
    session.write(session.lane(script, target_step=10**9, checkpoint_seconds=0.05), mtbf_seconds=1)
    session.start()
    session.until("published")
    (session.store / "runs/run-0001/stop").write_text('{"reason": "enough", "lane": null}')
    session.end()
    assert list(session.folder.rglob("lost"))
    assert len(session.manifests()) > 1
