"""The process that writes one offline run of Weights & Biases; see wandb_mirror.py. Standard input says which."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

_PROJECT = "uff-scheduler"
_PLACE = ("job", "attempt", "step", "at")  # of a point; all else are its figures


def main() -> int:
    """Write the run that standard input asks for."""
    try:
        import wandb
    except ImportError:
        sys.stderr.write("wandb is not installed here: pip install 'uff-scheduler[wandb]'\n")
        return 1
    asked: dict[str, Any] = json.load(sys.stdin)
    key = f"{asked['job']}-{asked['attempt']:04d}"
    quiet = wandb.Settings(console="off", disable_git=True, save_code=False, x_disable_stats=True, x_disable_meta=True)
    run = wandb.init(
        project=_PROJECT,
        dir=asked["folder"],
        mode="offline",
        id=key,
        name=key,
        group=asked["job"],
        config={"job": asked["job"], "attempt": asked["attempt"]},
        settings=quiet,
    )
    for point in asked["points"]:
        values = {name: value for name, value in point.items() if name not in _PLACE and value is not None}
        run.log({**values, "at": point["at"]}, step=point["step"])
    run.finish()
    written = Path(asked["folder"]) / "wandb"
    for rest in written.iterdir():  # a link to the newest run, and logs of the client beside it
        if not rest.name.startswith("offline-run-"):
            shutil.rmtree(rest) if rest.is_dir() and not rest.is_symlink() else rest.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
