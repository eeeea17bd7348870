"""The wire contract: what we send and what we make of the answers, body by body, on both releases of the library.

The bodies of ``wire/recorded.json`` are those that Kaggle's own client was seen to send and to understand. The other
release is installed beside the environment by ``.ci/kagglesdk.sh``; without it these tests say loudly that they skip.
"""

import json
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.lab.patience import PATIENCE_SECONDS

ROOT = Path(__file__).parents[3]
WIRE = Path(__file__).parent / "wire"
RECORDED: dict[str, Any] = json.loads((WIRE / "recorded.json").read_bytes())
DEFAULTS = {"all", "hottest", "dataset_sort_by_hottest"}
RELEASES = ("0.1.37", "0.1.38")


@cache
def driven(release: str) -> dict[str, Any]:
    """Return what came of every call with a release of the library."""
    beside = ROOT / ".venv" / f"kagglesdk-{release}"
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": f"{beside}{os.pathsep}{ROOT}"}
    command = [sys.executable, "-W", "error::ResourceWarning", str(WIRE / "drive.py"), str(WIRE / "recorded.json")]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    if told["version"] != release:
        pytest.skip(f"kagglesdk {release} IS NOT INSTALLED: run .ci/kagglesdk.sh {release} to test against it")
    return told


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("case", RECORDED)
def test_a_call_sends_and_understands_what_was_recorded(release: str, case: str) -> None:
    recorded, told = RECORDED[case], driven(release)[case]
    path, body, authorization = told["sent"][0]
    name = case.split(" ", 1)[0]
    assert path == f"/api/v1/{recorded['service']}/{name}"
    if "request" in recorded:
        assert {key: body.get(key) for key in recorded["request"]} == recorded["request"]
        # The library adds the defaults of its enumerations; whatever else is sent must be nothing.
        added = {key: value for key, value in body.items() if key not in recorded["request"]}
        assert all(not value or str(value).lower() in DEFAULTS for value in added.values()), added
    assert authorization.startswith("Bearer an-access" if name == "IntrospectToken" else "Basic ")
    assert told["result"] == recorded["result"]


@pytest.mark.parametrize("release", RELEASES)
def test_an_upload_that_breaks_off_asks_and_goes_on(release: str) -> None:
    _, *puts = driven(release)["StartBlobUpload"]["sent"]
    assert puts == [
        ["PUT", 300_000, None],
        ["PUT", 0, "bytes */300000"],
        ["PUT", 200_000, "bytes 100000-299999/300000"],
    ]


@pytest.mark.parametrize("release", RELEASES)
def test_logs_are_streamed_while_a_session_runs_and_whole_when_it_is_over(release: str) -> None:
    live, over = driven(release)["job-live"], driven(release)["job-over"]
    path, _, authorization = live["sent"][0]
    assert path.endswith("/api/v1/kernels/logs/stream/alice/job-live?versionLabel=v1")
    assert authorization.startswith("Basic ")
    assert (live["kinds"], over["kinds"]) == (["text/event-stream"], ["application/json"])
    assert live["text"].endswith("data: END_OF_LOG\n\n")
    assert [entry["data"] for entry in json.loads(over["text"])] == ["line 0\n", "line 1\n", "line 2\n"]


@pytest.mark.parametrize("release", RELEASES)
def test_a_signed_address_is_read_without_our_credentials(release: str) -> None:
    download = driven(release)["download"]
    assert download["bytes"] == 300_000
    assert [authorization for _, _, authorization in download["sent"]] == [None]


def test_every_call_that_is_made_is_recorded() -> None:
    """A new call joins the contract or fails here."""
    text = "".join(path.read_text() for path in sorted((ROOT / "platforms" / "kaggle").rglob("*.py")))
    made = set(
        re.findall(r'(?:_KERNELS|_DATASETS|_MODELS|"[a-z]+\.[A-Za-z]+"),\s+(?:"([A-Z][A-Za-z]+)"|name)', text)
    ) - {""}
    assert made | {"GetAcceleratorQuotaStatistics"} == {case.split(" ", 1)[0] for case in RECORDED}
