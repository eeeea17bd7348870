"""A version as one of a registered model in MLflow: the real client against a stand-in of the server's calls."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mlflow", reason="mlflow is not installed")
from platforms.publish import publish_in_mlflow
from platforms.targets.base import TargetError, TargetUnreachable
from tests.lab.dripper import HEAD, Dripper
from tests.lab.mlflow import Mlflow, mlflow_server
from tests.lab.releases import WEIGHTS, make_folder

pytestmark = pytest.mark.filterwarnings("ignore")  # the client's own
FINDING = {"gate": {"metric": "pass@1"}, "value": 0.75}


def facts(digest: str) -> dict[str, Any]:
    return {"digest": digest, "state": "accepted", "verdicts": [{"evidence": {"findings": [FINDING]}}]}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Mlflow]:
    with mlflow_server() as found:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", found.address)
        monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
        monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
        yield found


def test_a_version_is_a_model_version_with_files_figures_and_what_it_was_here(server: Mlflow, tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "one", b"weights")
    assert publish_in_mlflow(folder, "ufm", "ufm@3", facts("a" * 64)) == "models:/ufm/1"
    (made,) = server.versions["ufm"]
    tags = {tag["key"]: tag["value"] for tag in made["tags"]}
    assert tags == {"uff.version": "ufm@3", "uff.digest": "a" * 64, "uff.state": "accepted"}
    (run,) = server.runs.values()
    assert (made["source"], run["info"]["status"]) == (f"{run['info']['artifact_uri']}/model", "FINISHED")
    assert [(one["key"], one["value"]) for one in run["data"]["metrics"]] == [("pass@1", 0.75)]
    place = f"1/{run['info']['run_id']}/artifacts/model/"
    assert server.artifacts == {f"{place}{path.name}": path.read_bytes() for path in folder.iterdir()}
    assert publish_in_mlflow(folder, "ufm", "ufm@3", facts("a" * 64)) == "models:/ufm/1", (
        "the same again is not made twice"
    )
    assert publish_in_mlflow(folder, "ufm", "ufm@4", facts("b" * 64)) == "models:/ufm/2"
    assert f"{place}{WEIGHTS}" in server.artifacts


def test_what_cannot_be_published_is_told(server: Mlflow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_folder(tmp_path / "one", b"weights")
    with pytest.raises(TargetError, match="cannot be the name of a registered model"):
        publish_in_mlflow(folder, "../x", "ufm@3", facts("a" * 64))
    server.full = True
    with pytest.raises(TargetError, match="cannot publish there"):
        publish_in_mlflow(folder, "ufm", "ufm@3", facts("a" * 64))
    assert server.versions["ufm"] == [], "no version without its files"
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    with pytest.raises(TargetError, match="MLFLOW_TRACKING_URI is not set"):
        publish_in_mlflow(folder, "ufm", "ufm@3", facts("a" * 64))


@pytest.mark.parametrize("first", [HEAD, b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n"], ids=["head", "body"])
def test_a_server_that_drips_holds_nobody(
    server: Mlflow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: bytes
) -> None:
    slow = Dripper(first)
    try:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{slow.port}")
        monkeypatch.setattr("platforms.publish._CALLS_SECONDS", 0.5)
        with pytest.raises(TargetUnreachable, match=r"no whole answer within 0\.5"):
            publish_in_mlflow(make_folder(tmp_path / "one", b"weights"), "ufm", "ufm@3", facts("a" * 64))
    finally:
        slow.close()
