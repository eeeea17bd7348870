"""Rehearsed hours with a test set that the parent was trained on: the version is refused, and it says who saw what."""

import json
import re
from pathlib import Path
from typing import Any

from tests.lab.crashes.stage import MODELS, SOURCE, Stage
from tests.lab.patience import slowness
from tests.lab.trained_model import ITEMS, SCORE

TRAIN = """
import json, os, pathlib
made = pathlib.Path(os.environ["SCHED_CHECKPOINT_DIR"]) / "making"
made.mkdir()
(made / "weights.json").write_text(json.dumps({"skill": 1.0}))
(made / "meta.json").write_text(json.dumps({"step": 100, "metrics": {}}))
made.rename(made.with_name("step-00000100"))
"""
# The child learns from no text itself; all that it knows of the set it has from main.
CHILD = """
[[jobs]]
name = "child"
role = "job"
command = ["{{python}}", "train.py"]
code = "{code}"
mixture = "off"
target_step = 100
weight = 9
start_from = {{ job = "main", at = "newest" }}

[jobs.evaluation]
command = ["{{python}}", "score.py"]
set = "{items}"
longest = "2h"
within = "off"

[[jobs.gates]]
metric = "atomicity"
kind = "threshold"
minimum = 0.9
"""
FAMILY = MODELS.partition('[[jobs]]\nname = "left"')[0]


PASSAGES = ("message", "header", "utils", "parser", "charset")


def rehearsed(folder: Path, corpus: str) -> tuple[Stage, Any]:
    """Rehearse four hours in which main trains on Python's e-mail package, of which the set has five passages."""
    code, items = folder / "code", folder / "items.jsonl"
    code.mkdir(parents=True)
    (code / "train.py").write_text(TRAIN)
    (code / "score.py").write_text(SCORE)
    texts = [(SOURCE / f"{name}.py").read_text()[2_000:2_600] for name in PASSAGES]
    texts += [
        f"Count {n} from {n * 77} in steps of {n}, and name each {n}th number." for n in range(ITEMS - len(texts))
    ]
    items.write_text("".join(json.dumps({"id": f"item-{n}", "prompt": text}) + "\n" for n, text in enumerate(texts)))
    models = FAMILY + CHILD.format(code=code, items=items)
    stage = Stage(folder, models=models, hours=4.0, scale=round(480 / slowness()))
    stage.settings.write_text(stage.settings.read_text().replace("[corpus]\n", f"[corpus]\n{corpus}\n"))
    ended = stage.ended(stage.begin("--json"))
    stage.close()
    assert ended.code == 0, ended.err
    return stage, stage.type("models", "show", "child@1", "--json").document["version"]


def test_a_set_that_the_parent_was_trained_on_refuses_the_child(tmp_path: Path) -> None:
    stage, version = rehearsed(tmp_path, "decontaminate = false")
    assert version["state"] == "rejected"
    evidence = version["verdicts"][-1]["evidence"]
    saw = re.search(
        r"main at step \d+ saw [1-5] of 40 items \([1-5] passage\) in corpus [0-9a-f]{16}", evidence["reason"]
    )
    assert saw, evidence["reason"]
    assert evidence["leaks"]["means"] == {"atomicity": {"all": 1.0, "unseen": 1.0}}
    assert saw[0] in " ".join(stage.type("report", "weekly").out.split())


def test_the_corpus_leaves_texts_of_the_set_out_by_itself(tmp_path: Path) -> None:
    stage, version = rehearsed(tmp_path, "")
    assert version["state"] == "accepted"
    assert version["verdicts"][-1]["evidence"]["leaks"]["share"] == 0.0
    found = stage.type("corpus", "show", "--json").document["corpus"]["findings"]
    assert found["test_item"] >= len(PASSAGES)
