"""Calibration: a few real steps on this machine's card, or as a short session on a pool, kept as what was seen."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from jobs.advice.choice import Wishes
from jobs.advice.seen import Measurement, read_seen, write_seen
from jobs.advice.setup import METHODS
from jobs.advice.shape import Shape
from jobs.catalogue import job_from_table
from jobs.payload.bounded_file import read_bounded
from jobs.payload.bounds import read_json
from jobs.problem import Refusal
from scheduler.cli.commands.queue_add import add_specs
from scheduler.cli.shell.context import Cli

SECONDS = 240
PROGRAM = Path(__file__).resolve().parents[3] / "jobs/payload/trainers/calibrate.py"
_POINTS = ((1, 512), (1, 2048), (2, 2048), (1, 8192))  # five to eight steps of each


def setups(shape: Shape, wishes: Wishes) -> list[dict[str, Any]]:
    """Return what calibrate.py measures: each method that was asked for, with checkpointing and without."""
    config = {
        "model_type": "qwen2" if shape.bias else "llama",
        "hidden_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv,
        "intermediate_size": shape.between,
        "vocab_size": shape.words,
        "tie_word_embeddings": shape.tied,
        "max_position_embeddings": 32_768,
    }
    own = wishes.stack.name.startswith("finetune")
    return [
        {
            "name": f"{shape.name} {method}{' checkpointing' if again else ''}",
            "model": shape.name,
            "shape": config,
            "trainer": "finetune" if own else "transformers",
            "method": method,
            "rank": wishes.rank,
            "weights": "fp32" if method == "full" and own else "bf16",
            "autocast": wishes.stack.autocast,
            "checkpointing": again,
            "compile": wishes.stack.compiled,
            "points": list(_POINTS),
        }
        for method in wishes.methods or METHODS[1:]
        for again in (True, False)
    ]


def calibrate(
    cli: Cli, shape: Shape, wishes: Wishes, python: str, own: Path, measurements: Sequence[Measurement]
) -> tuple[Measurement, ...]:
    """Measure on this machine's card, add it to the own file, and return all that is known. Raises Refusal."""
    with tempfile.TemporaryDirectory(prefix="schedctl-calibrate-") as name:
        setups_file, out = Path(name) / "setups.json", Path(name) / "out.json"
        setups_file.write_text(json.dumps(setups(shape, wishes)), encoding="utf-8")
        words = [python, str(PROGRAM), str(out), str(setups_file), "--seconds", str(SECONDS)]
        cli.out.say(f"Real steps of {shape.name}, {SECONDS // 60} minutes at most ...")
        try:
            ended = subprocess.run(words, capture_output=True, text=True, check=False, timeout=2 * SECONDS)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Refusal(
                "nothing was measured", str(error), f"Name a Python that has torch: --python {python}"
            ) from None
        if ended.returncode or not out.is_file():
            last = (ended.stderr.strip() or ended.stdout.strip() or "it said nothing").splitlines()[-1]
            raise Refusal("nothing was measured", last[:300], "Name a Python that has torch: --python PATH")
        measured = read_seen(out)
    result = tuple(dict.fromkeys((*measurements, *measured)))
    own.parent.mkdir(parents=True, exist_ok=True)
    write_seen(own, result)
    cli.out.say(f"{len(measured)} measurements more; {own} has all {len(result)}, and may be shared.")
    return result


def probe(cli: Cli, shape: Shape, wishes: Wishes, python: str) -> Wishes:
    """Return the wishes with what layers keep for each token, found by running them without weights. Raises Refusal."""
    probed = []
    config = Path(shape.source)
    for setup in [one for one in setups(shape, wishes) if not one["checkpointing"]]:
        # An adapter keeps the same whatever the bits of its base.
        like = {**setup, "method": "lora" if setup["method"] == "qlora" else setup["method"], "compile": False}
        if config.name == "config.json" and config.is_file():
            like["shape"] = read_json(read_bounded(config))
        words = [python, str(PROGRAM.with_name("probe.py")), json.dumps(like)]
        try:
            ended = subprocess.run(words, capture_output=True, text=True, check=True, timeout=SECONDS)
            kept = float(read_json(ended.stdout)["layer_bytes"])
        except (OSError, subprocess.SubprocessError, ValueError, KeyError, TypeError) as error:
            last = (str(getattr(error, "stderr", "") or "").strip().splitlines() or [str(error)])[-1]
            raise Refusal("nothing was probed", last[:300], "Name a Python that has torch: --python PATH") from None
        probed.append((setup["method"], kept))
        cli.out.say(f"A layer keeps {kept:,.0f} bytes a token ({setup['method']}).")
    return replace(wishes, probed=tuple(probed))


def calibrate_on(cli: Cli, shape: Shape, wishes: Wishes, pool: str) -> None:
    """Queue a session of minutes on a pool that measures there; what it saw comes home as a checkpoint."""
    name = f"calibrate-{shape.name.rpartition('/')[2].lower()}"[:40].rstrip("-._")
    out = "output/measured.json"
    program = ["{python}", "{payload}/trainers/calibrate.py", out, json.dumps(setups(shape, wishes))]
    table = {"name": name, "role": "evaluate", "command": program, "whole": "15m", "pools": [pool], "weight": 2.0}
    add_specs(cli, [job_from_table(table, "advise --calibrate")], "advise --calibrate")
    cli.out.say(f"When {name} is done: schedctl checkpoints pull {name} DIR; schedctl advise --read DIR/measured.json")
