"""The program that Kaggle runs: what it finds, what it leaves, and that it always leaves well."""

import hashlib
import json
import threading
from pathlib import Path

import pytest

from platforms.kaggle.kernel import bootstrap


def checkpoint(store: Path, step: int, size: int) -> Path:
    content = str(step).encode() * size
    digest = hashlib.sha256(content).hexdigest()
    manifest = store / "jobs" / "ufm" / "manifests" / f"{step:012d}-000001.json"
    blob = store / "jobs" / "ufm" / "blobs" / digest
    for path, data in ((blob, content), (manifest, json.dumps({"components": [{"sha256": digest, "bytes": size}]}))):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return manifest


@pytest.mark.parametrize(("limit", "left"), [(10_000, 5), (300, 3), (0, 2)])
def test_of_many_large_checkpoints_the_newest_are_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int, left: int
) -> None:
    monkeypatch.setattr(bootstrap, "_BYTES_KEPT", limit)
    manifests = [checkpoint(tmp_path, step, 100) for step in range(1, 6)]
    bootstrap.tidy(tmp_path, [])
    assert [path for path in manifests if path.exists()] == manifests[5 - left :]
    assert len(list(tmp_path.rglob("blobs/*"))) == left


def test_what_was_given_is_not_left_and_neither_are_empty_folders(tmp_path: Path) -> None:
    given = checkpoint(tmp_path, 1, 10)
    blob = next(tmp_path.rglob("blobs/*"))
    bootstrap.tidy(tmp_path, [given, blob])
    assert list(tmp_path.iterdir()) == []


def test_an_input_is_found_by_name_and_digest_in_any_layout(tmp_path: Path) -> None:
    working = tmp_path / "working"
    right, wrong = tmp_path / "input" / "datasets" / "alice" / "right", tmp_path / "input" / "a-wrong-one"
    for folder, content in ((right, b"right"), (wrong, b"wrong")):
        folder.mkdir(parents=True)
        (folder / "code.bin").write_bytes(content)
    digest = hashlib.sha256(b"right").hexdigest()
    assert bootstrap.find_input(working, "code.bin", digest) == right / "code.bin"
    with pytest.raises(FileNotFoundError, match="a-wrong-one"):
        bootstrap.find_input(working, "code.bin", "0" * 64)


def test_whatever_happens_it_leaves_well_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "working").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path / "working")
    missing = [{"name": "code.bin", "sha256": "0" * 64, "into": "code"}]
    bootstrap.main({"launch": {"run": "uff-ufm-0001"}, "inputs": missing, "relays": True})
    begins, trouble, ends = (json.loads(line.split(" ", 1)[1]) for line in capsys.readouterr().out.splitlines())
    assert begins["begins"] == ends["ends"] == "uff-ufm-0001"
    assert "no input code.bin" in trouble["trouble"]
    assert ends["code"] == "not started"


@pytest.mark.parametrize(
    ("answers", "hears"),
    [([True], True), ([False, OSError(), True], True), ([False, False, OSError(), True], False)],
)
def test_one_answer_that_goes_wrong_leaves_no_session_deaf(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    answers: list[bool | OSError],
    hears: bool,
) -> None:
    """It tries a few times with a dataset that is there, says what came of it, and then looks for the word to stop."""
    asked = []

    def is_there(dataset: str) -> bool:
        asked.append(dataset)
        answer = answers.pop(0) if answers else True
        if isinstance(answer, OSError):
            raise answer
        return answer

    monkeypatch.setattr(bootstrap, "is_there", is_there)
    monkeypatch.setattr(bootstrap, "_LISTEN_WALL_SECONDS_MIN", 0.0)
    monkeypatch.setenv("KAGGLE_API_V1_TOKEN", "anywhere")
    order = {
        "launch": {"run": "uff-ufm-0001", "clock": {"scale": 1e9}},
        "ask": {"dataset": "a/stop", "proof": "a/code"},
    }
    bootstrap.listen(order, tmp_path, threading.Event())
    assert f'"hears": {str(hears).lower()}' in capsys.readouterr().out
    assert ("a/stop" in asked, (tmp_path / "runs" / "uff-ufm-0001" / "stop").exists()) == (hears, hears)
