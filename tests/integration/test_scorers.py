"""The shipped scorers, as a session starts them: from the packed payload, by one command."""

import http.server
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jobs.payload.scorers.items import read_items
from jobs.payload.trainers import charlm
from jobs.scores import Scores, read_scores
from jobs.spec import Evaluation, Input, JobSpec
from scheduler.service.versions.promotion import scorer_digest

Score = Callable[..., tuple[subprocess.CompletedProcess[str], Scores | None]]
needs_sandbox = pytest.mark.services("bwrap")


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def score(tmp_path: Path, repository: Path) -> Score:
    """Run scorers on items and outputs in an environment as a session has it; return what ended and the scores read."""

    def run(
        words: list[str], items: list[dict[str, Any]], outputs: list[dict[str, Any]] | None = None, **more: str
    ) -> tuple[subprocess.CompletedProcess[str], Scores | None]:
        home = tmp_path / "set"
        home.mkdir(exist_ok=True)
        given = write(home / "items.jsonl", items)
        payload = tmp_path / "elsewhere/payload"
        if not payload.exists():
            shutil.copytree(repository / "jobs/payload", payload, ignore=shutil.ignore_patterns("__pycache__"))
        told = {
            "PATH": os.environ["PATH"],
            "SCHED_INPUT_SET": str(home),
            "SCHED_OUTPUT_DIR": str(tmp_path / "out"),
            "EVALUATION_MODEL": "ufm",
            "EVALUATION_CHECKPOINT": "1" * 64,
            "EVALUATION_SCORER": "2" * 64,
        }
        extra = ["--outputs", str(write(tmp_path / "outputs.jsonl", outputs))] if outputs is not None else []
        command = [sys.executable, str(payload / "scorers"), *words, *extra]
        ended = subprocess.run(command, env={**told, **more}, capture_output=True, text=True, timeout=120, check=False)
        scores = tmp_path / "out/scores.jsonl"
        if not scores.exists():
            return ended, None
        found = read_items(given)
        with scores.open("rb") as stream:
            read = read_scores(stream, model="ufm", checkpoint="1" * 64, test_set=found.digest, items=found.items)
        return ended, read

    return run


def values(scores: Scores | None, metric: str) -> dict[str, float]:
    assert scores is not None
    return {item: score.value for item, score in scores.by_metric[metric].items()}


def test_a_set_of_two_kinds_is_scored_by_domain(score: Score) -> None:
    items = [
        {"id": "code-1", "domain": "python"},
        {"id": "spec-1", "domain": "tiki"},
        {"id": "spec-2", "domain": "tiki"},
    ]
    outputs = [
        {"id": "code-1", "output": "```python\ndef put(values, value):\n    return [*values, value]\n```"},
        {"id": "spec-1", "output": "id: a\nid: b\n"},
    ]
    ended, scores = score(["atomicity:python", "tiki:tiki"], items, outputs)
    assert ended.returncode == 0, ended.stderr
    assert values(scores, "component_atomicity.python") == {"code-1": 1.0}
    assert values(scores, "tiki_compliance.tiki") == {"spec-1": 0.0, "spec-2": 0.0}
    assert scores is not None
    assert "occurs twice" in scores.by_metric["tiki_compliance.tiki"]["spec-1"].example
    assert "component_atomicity.python: 1 over 1 items" in ended.stdout


@needs_sandbox
def test_generated_code_is_worth_the_share_of_its_samples_that_pass(score: Score) -> None:
    task = {"id": "add", "entry": "add", "tests": "def check(f):\n    assert f(1, 2) == 3\n    assert f(-1, 1) == 0\n"}
    outputs = [
        {"id": "add", "output": "def add(a, b):\n    return a + b\n"},
        {"id": "add", "output": "import os\nos._exit(0)\n"},
        {"id": "add", "output": "def add(a, b):\n    return 3\n"},
        {"id": "add", "output": "Here it is:\n```python\ndef add(a, b):\n    return b + a\n```\nDone."},
    ]
    ended, scores = score(["generation"], [task, {**task, "id": "silent"}], outputs)
    assert ended.returncode == 0, ended.stderr
    assert values(scores, "pass@1") == {"add": 0.5, "silent": 0.0}
    assert scores is not None
    assert scores.notes[0].startswith("sandbox: bubblewrap")


COMPONENT = "def put(values, value):\n    return [*values, value]\n"
TESTS = "from component import put\n\ndef test_put():\n    assert put([], 1) == [1]\n"


@needs_sandbox
@pytest.mark.parametrize(
    ("files", "done", "green", "why"),
    [
        ({"component.py": COMPONENT, "test_component.py": TESTS}, 1.0, 1.0, ""),
        ({"component.py": COMPONENT}, 0.4, 0.0, "it has no test"),
        ({"component.py": COMPONENT, "test_component.py": "def test_a():\n    pass\n"}, 0.8, 1.0, "do not notice"),
        ({"component.py": "def put(", "test_component.py": TESTS}, 0.2, 0.0, "does not parse"),
        ({"component.py": "def put(v, w):\n    return v\n", "test_component.py": TESTS}, 0.4, 0.0, "not green"),
        ({"component.py": "import os\nos._exit(0)\n", "test_component.py": TESTS}, 0.4, 0.0, "no result"),
        ({"../component.py": COMPONENT, "test_component.py": TESTS}, 0.4, 0.0, "no path below"),
    ],
)
def test_a_stage_is_worth_the_share_of_its_checklist(
    score: Score, files: dict[str, str], done: float, green: float, why: str
) -> None:
    earlier = {"test_stage_1.py": "from component import put\n\ndef test_length():\n    assert len(put([], 1)) == 1\n"}
    ended, scores = score(
        ["tank-building"], [{"id": "put", "earlier": earlier}], [{"id": "put", "output": json.dumps({"files": files})}]
    )
    assert ended.returncode == 0, ended.stderr
    assert values(scores, "tank_building")["put"] == pytest.approx(done), scores
    assert values(scores, "integration_tests")["put"] == green
    assert scores is not None
    assert why in scores.by_metric["tank_building"]["put"].example


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A checkpoint of the character model as its trainer writes one."""
    shape = charlm.CharShape(context=8, embedding=4, width=16)
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    np.save(folder / "weights.npy", charlm.CharModel(shape, np.random.default_rng(1)).weights)
    (folder / "state.json").write_text(json.dumps({"shape": list(shape), "step": 1}))
    return folder


TEXTS = [
    {"id": "a", "domain": "python", "text": "def f(x):\n    return x\n"},
    {"id": "b", "domain": "elixir", "text": "def f(x), do: x\n"},
    {"id": "c", "domain": "elixir", "text": "größer"},
]


def test_held_out_loss_is_told_by_domain_and_the_load_test_beside_it(score: Score, checkpoint: Path) -> None:
    ended, scores = score(["loss", "loads"], TEXTS, SCHED_INPUT_MODEL=str(checkpoint))
    assert ended.returncode == 0, ended.stderr
    losses = values(scores, "loss")
    assert all(value == pytest.approx(np.log(charlm.ALPHABET), abs=1.0) for value in losses.values())
    assert values(scores, "loss.elixir") == {"b": losses["b"], "c": losses["c"]}
    assert values(scores, "loads") == {"a": 1.0, "b": 1.0, "c": 0.0}


@pytest.mark.parametrize("damage", ["cut", "nan", "other shape", "gone"])
def test_a_checkpoint_that_does_not_load_is_worth_nothing(score: Score, checkpoint: Path, damage: str) -> None:
    weights = checkpoint / "weights.npy"
    if damage == "cut":
        weights.write_bytes(weights.read_bytes()[:-100])
    elif damage == "nan":
        np.save(weights, np.full_like(np.load(weights), np.nan))
    elif damage == "other shape":
        np.save(weights, np.zeros(7, np.float32))
    else:
        weights.unlink()
    ended, scores = score(["loads"], TEXTS[:1], SCHED_INPUT_MODEL=str(checkpoint))
    assert ended.returncode == 0, ended.stderr
    assert values(scores, "loads") == {"a": 0.0}
    assert score(["loss"], TEXTS[:1], SCHED_INPUT_MODEL=str(checkpoint))[0].returncode == 2


@pytest.mark.parametrize(
    ("words", "items", "status", "why"),
    [
        (["loss"], TEXTS, 2, "there is no checkpoint; give --checkpoint-dir"),
        (["atomicity:ruby"], TEXTS, 2, "no item of domain 'ruby'"),
        (["judge"], TEXTS, 2, "there is no judge"),
        (["atomicity", "--ask", "http://127.0.0.1:9/v1"], TEXTS, 2, "give --ask-model NAME"),
        (
            ["atomicity", "--ask", "file:///etc", "--ask-model", "m"],
            [{"id": "a", "prompt": "x"}],
            2,
            "is not an address",
        ),
        (["samples"], TEXTS, 2, "there are no samples; give --samples"),
        (["nothing"], TEXTS, 2, "there is no scorer nothing; known are atomicity"),
        (["atomicity"], [{"id": ""}], 65, "line 1: id is ''"),
    ],
)
def test_what_is_missing_is_named_and_no_scores_are_left(
    score: Score, words: list[str], items: list[dict[str, Any]], status: int, why: str
) -> None:
    ended, scores = score(words, items)
    assert (ended.returncode, scores) == (status, None)
    assert why in ended.stderr
    assert "Traceback" not in ended.stderr


def test_without_a_sandbox_code_is_not_run(score: Score, tmp_path: Path) -> None:
    task = {"id": "a", "tests": "def check(f):\n    pass\n"}
    ended, scores = score(["generation"], [task], [{"id": "a", "output": "open('ran', 'w')"}], PATH=str(tmp_path))
    assert (ended.returncode, scores) == (69, None)
    assert "there is no bwrap; install the package bubblewrap" in ended.stderr


@pytest.fixture
def judge() -> Iterator[tuple[str, list[str]]]:
    """A server that speaks chat completions and finds good what has the word fine; its address, and the keys it saw."""
    keys: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            keys.append(self.headers.get("Authorization", ""))
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["messages"][0]["content"]
            said = "It does what is asked.\ngood" if "fine" in asked.split("Answer:")[1] else "Not at all.\nBad"
            body = json.dumps({"choices": [{"message": {"content": said}}]}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *said: Any) -> None:
            """Say nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/v1", keys
        server.shutdown()


def test_a_judging_model_tells_how_far_it_agrees_with_people(score: Score, judge: tuple[str, list[str]]) -> None:
    address, keys = judge
    labelled = [("good", "fine"), ("good", "fine too"), ("bad", "poor"), ("bad", "looks fine, is not")]
    items = [
        {"id": f"i{place}", "prompt": "Sort.", "label": label, "labelled": answer}
        for place, (label, answer) in enumerate(labelled)
    ]
    outputs = [{"id": "i0", "output": "fine"}]
    words = ["judge", "--judge", address, "--judge-model", "any"]
    ended, scores = score(words, items, outputs, JUDGE_API_KEY="secret")
    assert ended.returncode == 0, ended.stderr
    assert values(scores, "judged") == {"i0": 1.0, "i1": 0.0, "i2": 0.0, "i3": 0.0}
    assert scores is not None
    assert scores.agreement == {"judged": ((1, 1), (0, 2))}  # rows are people's, bad before good
    assert set(keys) == {"Bearer secret"}


def test_a_served_model_is_asked_and_its_outputs_are_kept(
    score: Score, judge: tuple[str, list[str]], tmp_path: Path
) -> None:
    """An answer that is not code is scored like any other."""
    address, keys = judge
    items = [{"id": "a", "prompt": "Write code.\nAnswer: fine"}]
    words = ["atomicity", "--ask", address, "--ask-model", "ufm@3"]
    ended, scores = score(words, items, MODEL_API_KEY="another secret")
    assert ended.returncode == 0, ended.stderr
    assert values(scores, "component_atomicity") == {"a": 0.0}
    kept = json.loads((tmp_path / "out/outputs.jsonl").read_text())
    assert kept == {"id": "a", "output": "It does what is asked.\ngood"}
    assert keys == ["Bearer another secret"]


def test_a_judge_that_is_not_there_gives_no_scores(score: Score) -> None:
    words = ["judge", "--judge", "http://127.0.0.1:9/v1", "--judge-model", "any"]
    ended, scores = score(words, [{"id": "a"}], [])
    assert (ended.returncode, scores) == (69, None)
    assert "does not answer" in ended.stderr


def test_a_change_of_any_shipped_scorer_makes_another_scorer(tmp_path: Path, repository: Path) -> None:
    """Scores of before and after are not compared; a command of one's own is none of theirs."""
    shutil.copytree(repository / "jobs/payload/scorers", tmp_path / "payload/scorers")
    given = Input("set", "set.jsonl", "0" * 64)

    def digest(*command: str) -> str:
        spec = JobSpec("ufm", "manager", ("train",), 100, 10.0, evaluation=Evaluation(command, given))
        return scorer_digest(spec, tmp_path)

    shipped, own = ("{python}", "{payload}/scorers", "atomicity"), ("{python}", "score.py")
    before = digest(*shipped), digest(*own)
    with (tmp_path / "payload/scorers/sandbox/confine.py").open("a") as stream:
        stream.write("# changed")
    assert digest(*shipped) != before[0]
    assert digest(*own) == before[1]
