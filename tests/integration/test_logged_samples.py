"""Scores of lm-eval and inspect-ai: logs as they write them, and the programs themselves where they are installed."""

import argparse
import http.server
import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jobs.payload.scorers import samples
from jobs.payload.scorers.given import NotGiven, ScorerInput
from jobs.payload.scorers.items import read_items

ITEMS = [
    {"id": "sum-1", "cluster": "sum", "question": "2+2", "answer": "4"},
    {"id": "sum-2", "cluster": "sum", "question": "3+3", "answer": "6"},
]


def scored(folder: Path, path: Path) -> dict[tuple[str, str], float]:
    """The values by metric and item, and that clusters are the set's."""
    given = ScorerInput(read_items(item_set(folder)), {}, None, argparse.Namespace(samples=str(path)))
    lines = list(samples.score(list(given.item_set.items.values()), given, ""))
    assert {line.cluster for line in lines} == {"sum"}
    return {(line.metric, line.item): line.value for line in lines}


def item_set(folder: Path) -> Path:
    path = folder / "items.jsonl"
    path.write_text("".join(json.dumps(item) + "\n" for item in ITEMS))
    return path


def lm_eval(item: str, value: Any, **more: Any) -> str:
    """A line as lm-eval 0.4.13 writes it, less what is not read."""
    said = {"doc_id": 0, "doc": {"id": item}, "filtered_resps": ["4"], "filter": "none", "metrics": ["exact_match"]}
    return json.dumps({**said, "exact_match": value, **more}) + "\n"


def inspect(*values: tuple[str, Any], status: str = "success") -> str:
    """A log as inspect-ai 0.3.285 writes it, less what is not read."""
    rows = [{"id": item, "epoch": 1, "scores": {"exact": {"value": value, "answer": "4"}}} for item, value in values]
    return json.dumps({"version": 2, "status": status, "samples": rows})


def test_samples_of_lm_eval_are_taken_by_id(tmp_path: Path) -> None:
    """Of several filters the first counts; an item that is not there, or has no number, is worth nothing."""
    path = tmp_path / "out/any/samples_sums_2026.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text(
        lm_eval("sum-1", 1.0) + "{\n" + lm_eval("sum-1", 0.0, filter="strict") + lm_eval("sum-2", [1]) + lm_eval("x", 1)
    )
    (path.parent / "results_2026.json").write_text("{}")
    assert scored(tmp_path, tmp_path / "out") == {("exact_match", "sum-1"): 1.0, ("exact_match", "sum-2"): 0.0}


def test_samples_of_inspect_are_letters_or_numbers_and_epochs_are_averaged(tmp_path: Path) -> None:
    path = tmp_path / "log_1.json"
    path.write_text(inspect(("sum-1", "C"), ("sum-1", "I"), ("sum-2", 0.25)))
    assert scored(tmp_path, path) == {("exact", "sum-1"): 0.5, ("exact", "sum-2"): 0.25}
    path.write_text(inspect(("sum-1", "P"), ("sum-2", "N")))
    assert scored(tmp_path, path) == {("exact", "sum-1"): 0.5, ("exact", "sum-2"): 0.0}


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("log_1.json", inspect(("sum-1", "C"), status="error"), "did not end well: error"),
        ("log_1.json", "[]", "not a log of inspect-ai with samples"),
        ("log_1.json", "{", "not a log of inspect-ai"),
        ("samples_a.jsonl", "{}\n", "has no sample with an id and a score"),
        ("gone", None, "has no sample with an id and a score"),
    ],
)
def test_logs_that_give_no_scores_are_refused(tmp_path: Path, name: str, text: str | None, why: str) -> None:
    path = tmp_path / name
    if text is not None:
        path.write_text(text)
    with pytest.raises(NotGiven, match=why):
        scored(tmp_path, path)


@pytest.fixture
def address() -> Iterator[str]:
    """A server of chat completions that knows one sum."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = self.rfile.read(int(self.headers["Content-Length"]))
            message = {"role": "assistant", "content": "4" if b"2+2" in asked else "no idea"}
            body = {
                "id": "1",
                "object": "chat.completion",
                "created": 1,
                "model": "any",
                "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
                "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
            }
            data = json.dumps(body).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *said: Any) -> None:
            """Say nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()


def run(folder: Path, *words: str, **more: str) -> None:
    away = {"HOME": str(folder), "HF_HOME": str(folder / "hf"), "HF_DATASETS_OFFLINE": "1", "HF_HUB_OFFLINE": "1"}
    ended = subprocess.run(
        words, cwd=folder, env={**os.environ, **away, **more}, capture_output=True, text=True, timeout=180, check=False
    )
    assert ended.returncode == 0, ended.stdout[-2_000:] + ended.stderr[-2_000:]


@pytest.mark.skipif(shutil.which("lm-eval") is None, reason="no lm-eval on PATH: `make test-nightly` has it")
def test_lm_eval_itself(tmp_path: Path, address: str) -> None:
    (tmp_path / "sums.yaml").write_text(f"""
task: sums
dataset_path: json
dataset_kwargs:
  data_files: {{test: {item_set(tmp_path)}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{answer}}}}"
metric_list:
  - metric: exact_match
""")
    arguments = f"base_url={address}/chat/completions,model=any,tokenizer_backend=None"
    words = ["lm-eval", "run", "--model", "local-chat-completions", "--model_args", arguments, "--include_path", "."]
    run(tmp_path, *words, "--tasks", "sums", "--log_samples", "--apply_chat_template", "--output_path", "out")
    assert scored(tmp_path, tmp_path / "out") == {("exact_match", "sum-1"): 1.0, ("exact_match", "sum-2"): 0.0}


@pytest.mark.skipif(shutil.which("inspect") is None, reason="no inspect-ai on PATH: `make test-nightly` has it")
def test_inspect_itself(tmp_path: Path, address: str) -> None:
    (tmp_path / "sums.py").write_text(f"""
from inspect_ai import Task, task
from inspect_ai.dataset import FieldSpec, json_dataset
from inspect_ai.scorer import exact
from inspect_ai.solver import generate

@task
def sums():
    fields = FieldSpec(input="question", target="answer", id="id")
    return Task(dataset=json_dataset({str(item_set(tmp_path))!r}, fields), solver=generate(), scorer=exact())
""")
    words = [
        "inspect",
        "eval",
        "sums.py",
        "--model",
        "openai-api/local/any",
        "--log-format",
        "json",
        "--log-dir",
        "log",
    ]
    run(tmp_path, *words, "--display", "plain", LOCAL_BASE_URL=address, LOCAL_API_KEY="any")
    assert scored(tmp_path, tmp_path / "log") == {("exact", "sum-1"): 1.0, ("exact", "sum-2"): 0.0}
