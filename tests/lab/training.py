"""A training command for tests: what the training contract asks for, and nothing more."""

# One checkpoint, then the target is reached, or the word to stop is waited for, or it crashes.
TRAINING = """
import json, os, pathlib, signal, sys
folder = pathlib.Path(os.environ["SCHED_CHECKPOINT_DIR"])
step = int(os.environ["SCHED_TARGET_STEP"])
resumed = os.environ["SCHED_RESUME_DIR"]
print("resumed from", (pathlib.Path(resumed) / "weights.bin").read_text() if resumed else "nothing", flush=True)
print("data", sorted(os.listdir(os.environ["SCHED_DATA_DIR"])) if os.environ["SCHED_DATA_DIR"] else "none", flush=True)
def save(step):
    (folder / "making").mkdir()
    (folder / "making" / "weights.bin").write_bytes(b"weights of step %d" % step)
    (folder / "making" / "meta.json").write_text(json.dumps({"step": step, "metrics": {"loss": 1.5}}))
    (folder / "making").rename(folder / f"step-{step:08d}")
def stop(*_):
    save(step // 2)
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
print("training", flush=True)
while sys.argv[1] == "wait":
    signal.pause()
if sys.argv[1] == "crash":
    save(step // 2)
    sys.exit("the trainer crashed")
save(step)
"""
