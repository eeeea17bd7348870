"""Kaggle's own client, unmodified, drives the emulator; what it sends and what we send are the same bodies."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from platforms.base import LaunchRequest, Misconfigured, SessionState, Unreachable
from tests.lab.faults import Fault
from tests.lab.patience import until

Account = Any

DRIVE = """
import io, json, pathlib, sys
from contextlib import redirect_stdout
from tests.lab.patience import until
said = io.StringIO()
with redirect_stdout(said):
    from kaggle.api.kaggle_api_extended import KaggleApi
    api = KaggleApi()
    api.authenticate()
    folder = pathlib.Path(sys.argv[1])
    told = {}
    pushed = api.kernels_push(str(folder / "kernel"), timeout="600")
    told["pushed"] = [pushed.ref, pushed.version_number, pushed.error]
    log = "".join(line.get("data", "") for line in api.kernels_logs_stream("alice/first-kernel"))
    told["log"] = log
    until(lambda: api.kernels_status("alice/first-kernel").status.name == "COMPLETE", "the kernel's end")
    (folder / "out").mkdir()
    fetched, _ = api.kernels_output("alice/first-kernel", str(folder / "out"))
    told["files"] = sorted(pathlib.Path(name).name for name in fetched)
    told["content"] = (folder / "out" / "deep" / "result.txt").read_text()
    quota = api.quota_view()
    told["used"] = quota.gpu_quota.time_used.total_seconds()
    told["allowed"] = quota.gpu_quota.total_time_allowed.total_seconds()
    created = api.dataset_create_new(str(folder / "dataset"), quiet=True)
    told["created"] = [created.status, created.error]
    until(lambda: api.dataset_status("alice/some-data") == "ready", "the dataset")
    version = api.dataset_create_version(str(folder / "dataset"), "second", quiet=True)
    told["version"] = [version.status, version.error]
    told["listed"] = [kernel.ref for kernel in api.kernels_list(mine=True)]
    told["data"] = [[file.name, file.total_bytes] for file in api.dataset_list_files("org/set").files]
    told["model"] = [file.name for file in api.model_instance_version_files("org/tiny/pyTorch/base/1").files]
    api.dataset_download_file("org/set", "a/words", path=str(folder / "fetched"))
    told["words"] = (folder / "fetched" / "words").read_text()
    api.kernels_delete("alice/first-kernel", no_confirm=True)
print(json.dumps(told))
"""


def drive(account: Account, program: str, *arguments: object) -> Any:
    """Run a program in an environment in which Kaggle's client finds the emulator and nothing else."""
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(account.folder),
        "KAGGLE_API_ENVIRONMENT": "LOCALHOST",
        "HTTP_PROXY": account.server.address,
        "HTTPS_PROXY": "http://127.0.0.1:9",
        "NO_PROXY": "127.0.0.1",
        "KAGGLE_USERNAME": "alice",
        "KAGGLE_KEY": account.place.key,
    }
    command = [sys.executable, "-W", "ignore", "-c", program, *map(str, arguments)]
    root = Path(__file__).parents[3]  # for `tests.lab`
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture
def folder(account: Account, tmp_path: Path) -> Path:
    """What a user of the client would have on disk."""
    kernel, dataset = tmp_path / "kernel", tmp_path / "dataset"
    kernel.mkdir()
    dataset.mkdir()
    source = "import os, pathlib; pathlib.Path('deep').mkdir(); pathlib.Path('deep/result.txt').write_text('done')\n"
    (kernel / "main.py").write_text(source + "print('in', os.getcwd(), os.path.isdir('/nowhere'), flush=True)\n")
    (kernel / "kernel-metadata.json").write_text(
        json.dumps(
            {
                "id": "alice/first-kernel",
                "title": "first kernel",
                "code_file": "main.py",
                "language": "python",
                "kernel_type": "script",
                "is_private": True,
                "enable_gpu": True,
                "enable_internet": False,
                "machine_shape": "NvidiaTeslaT4",
                "docker_image_pinning_type": "original",
            }
        )
    )
    (dataset / "data.bin").write_bytes(bytes(300_000))
    (dataset / "dataset-metadata.json").write_text(
        json.dumps({"id": "alice/some-data", "title": "some data", "licenses": [{"name": "unknown"}]})
    )
    account.place.published.add("org/set", {"a/words": b"words"})
    account.place.published.add("org/tiny/pyTorch/base", {"config.json": b"{}"})
    return tmp_path


def test_the_unmodified_client_pushes_follows_fetches_uploads_and_deletes(account: Account, folder: Path) -> None:
    """With an upload that is interrupted half-way, as the real place does it."""
    account.place.faults.add("PUT", Fault.SERVER_ERROR)
    told = drive(account, DRIVE, folder)
    assert (told["data"], told["words"]) == ([["a/words", 5]], "words")
    assert told["model"] == ["config.json"]
    assert told["pushed"] == ["/code/alice/first-kernel", 1, ""]
    assert told["log"].startswith("in ")
    assert "/kaggle/working" in told["log"]
    assert (told["files"], told["content"]) == (["first-kernel.log", "result.txt"], "done")
    assert told["used"] > 0
    assert told["allowed"] == 108_000
    assert told["created"] == ["Ok", ""]
    assert told["version"] == ["Ok", ""]
    assert told["listed"] == ["alice/first-kernel"]
    assert account.place.kernels == {}
    versions = account.place.storage.datasets["some-data"].versions
    assert [(version.folder / "data.bin").stat().st_size for version in versions] == [300_000, 300_000]


def test_we_send_what_the_client_sends(account: Account, folder: Path) -> None:
    """Every field of a push by the client is in ours with the same type; ours adds none it does not know."""
    drive(account, DRIVE, folder)
    theirs = {call: body for call, body in account.server.requests if call == "SaveKernel"}["SaveKernel"]
    account.server.requests.clear()
    account.adapter().launch(account.request("uff-ufm-0001", "finish"), account.now())
    account.settle("uff-ufm-0001")
    sent = dict(account.server.requests)
    ours = sent["SaveKernel"]
    assert set(ours) - set(theirs) == {"datasetDataSources"}
    assert set(theirs) - set(ours) <= {"categoryIds", "competitionDataSources"}
    assert {name: type(ours[name]) for name in theirs} == {name: type(theirs[name]) for name in theirs}
    assert ours | {"text": "", "sessionTimeoutSeconds": 0} == {
        "slug": "alice/uff-ufm-0001",
        "newTitle": "uff ufm 0001",
        "text": "",
        "language": "python",
        "kernelType": "script",
        "datasetDataSources": [ours["datasetDataSources"][0]],
        "isPrivate": True,
        "enableGpu": True,
        "enableTpu": False,
        "enableInternet": True,
        "dockerImagePinningType": "original",
        "sessionTimeoutSeconds": 0,
        "machineShape": "NvidiaTeslaT4",
    }
    assert sent["GetKernelSessionStatus"] == {
        "userName": "alice",
        "kernelSlug": "uff-ufm-0001",
        "versionLabel": "v1",
    }
    assert sent["ListKernelSessionOutput"] == {
        "userName": "alice",
        "kernelSlug": "uff-ufm-0001",
        "versionLabel": "v1",
        "pageSize": 200,
        "pageToken": "",
    }
    assert set(sent["StartBlobUpload"]) == {"type", "name", "contentLength", "lastModifiedEpochSeconds"}
    assert sent["StartBlobUpload"]["type"] == "DATASET"
    slug = ours["datasetDataSources"][0].removeprefix("alice/")
    (file,) = sent["CreateDataset"].pop("files")
    assert set(file) == {"token"}
    assert sent["CreateDataset"] == {
        "ownerSlug": "alice",
        "slug": slug,
        "title": slug,
        "licenseName": "unknown",
        "isPrivate": True,
    }
    assert 6 <= len(slug) <= 50


def test_the_adapter_takes_the_same_way_as_the_client(account: Account) -> None:
    """KAGGLE_API_ENVIRONMENT and a proxy variable alone lead our adapter to a stand-in, as they lead the client."""
    program = f"""
import os, json, pathlib, sys
sys.path.insert(0, {str(Path.cwd())!r})
from platforms.registry import PlatformContext, load
context = PlatformContext(pathlib.Path(sys.argv[1]), sys.executable, pathlib.Path("."))
(books,) = load("kaggle", {{}}, context).read_quota({account.now()})
print(json.dumps(books.limit_seconds))
"""
    assert drive(account, program, account.folder / "elsewhere") == 108_000


def test_a_session_gets_the_gpus_of_its_shape_and_ends_at_once_when_they_are_others(account: Account) -> None:
    """A retired accelerator is silently replaced; the agent looks before it trains."""
    request = account.request("uff-ufm-0001", "finish")
    launch = {**request.launch, "expected_devices": {"count": 2, "name": "NvidiaTeslaT4"}}
    account.adapter().launch(_with(request, launch), account.now())
    account.settle("uff-ufm-0001")
    assert account.result("uff-ufm-0001")["devices"] == ["Tesla T4", "Tesla T4"]
    wanted = {**launch, "run": "uff-ufm-0002", "expected_devices": {"count": 1, "name": "NvidiaTeslaP100"}}
    account.adapter(machine_shape="NvidiaTeslaP100").launch(
        _with(account.request("uff-ufm-0002", "finish"), wanted), account.now()
    )
    account.settle("uff-ufm-0002")
    result = account.result("uff-ufm-0002")
    assert (result["outcome"], result["error_class"]) == ("failed", "wrong_device")


def _with(request: LaunchRequest, launch: dict[str, Any]) -> LaunchRequest:
    return replace(request, launch=launch)


def test_two_jobs_share_a_session(account: Account) -> None:
    request = account.request("uff-ufm-0001", "finish")
    (lane,) = request.launch["lanes"]
    other = {**lane, "index": 1, "job": "vision", "devices": [1]}
    account.adapter().launch(_with(request, {**request.launch, "lanes": [lane, other]}), account.now())
    account.settle("uff-ufm-0001")
    assert {key.split("/")[1] for key in account.store.keys("jobs/")} == {"ufm", "vision"}
    assert account.place.seconds_used(0, account.now()) == pytest.approx(
        account.place.sessions()[0].ended_at - account.place.sessions()[0].started_at
    )


def test_one_job_on_both_gpus(account: Account) -> None:
    """It is told of both, and sees both."""
    command = ["{python}", "-c", "import os; print('sees', os.environ.get('CUDA_VISIBLE_DEVICES'), flush=True)"]
    request = account.request("uff-ufm-0001", "finish", command=command, devices=[0, 1])
    launch = {**request.launch, "expected_devices": {"count": 2, "name": "NvidiaTeslaT4"}}
    account.adapter().launch(_with(request, launch), account.now())
    account.settle("uff-ufm-0001")
    assert "sees 0,1\n" in account.output("uff-ufm-0001")
    assert account.result("uff-ufm-0001")["devices"] == ["Tesla T4", "Tesla T4"]


def test_two_jobs_side_by_side_see_a_gpu_each(account: Account) -> None:
    command = ["{python}", "-c", "import os; print('sees', os.environ.get('CUDA_VISIBLE_DEVICES'), flush=True)"]
    request = account.request("uff-ufm-0001", "finish", command=command, devices=[0])
    (lane,) = request.launch["lanes"]
    other = {**lane, "index": 1, "job": "vision", "devices": [1]}
    account.adapter().launch(_with(request, {**request.launch, "lanes": [lane, other]}), account.now())
    account.settle("uff-ufm-0001")
    output = account.output("uff-ufm-0001")
    assert "ufm| sees 0\n" in output
    assert "vision| sees 1\n" in output


def test_what_another_accelerator_cost_until_it_was_noticed_is_charged(account: Account) -> None:
    """It stops before it trains, and what Kaggle bills for the look is ours to pay."""
    request = account.request("uff-ufm-0001", "wait")
    launch = {**request.launch, "expected_devices": {"count": 1, "name": "NvidiaTeslaP100"}}
    account.adapter(machine_shape="NvidiaTeslaP100").launch(_with(request, launch), account.now())
    ended = account.settle("uff-ufm-0001")
    assert "resumed from" not in account.output("uff-ufm-0001")
    assert account.result("uff-ufm-0001")["error_class"] == "wrong_device"
    (session,) = account.place.sessions()
    billed = session.ended_at - session.started_at
    assert billed > 0
    assert ended.ended - ended.started == pytest.approx(billed, abs=account.clock.payload_clock()["scale"])


def test_a_cancel_uses_the_id_that_the_session_told(account: Account) -> None:
    account.adapter().launch(account.request("uff-ufm-0001", "wait"), account.now())
    account.until("uff-ufm-0001", SessionState.RUNNING)
    until(lambda: "resumed" in account.output("uff-ufm-0001"), "resumed to be printed")
    account.adapter().stop("uff-ufm-0001", account.now(), force=True)
    account.until("uff-ufm-0001", SessionState.ENDED)
    calls = [call for call, _ in account.server.requests]
    assert "CancelKernelSession" in calls
    assert "DeleteKernel" not in calls


def test_a_session_that_cannot_be_cancelled_is_deleted(account: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its log is saved before, as far as it is there; its output is lost."""
    monkeypatch.setattr(account.place, "cancel", lambda session_id: {"errorMessage": "no"})
    account.adapter().launch(account.request("uff-ufm-0001", "wait"), account.now())
    account.until("uff-ufm-0001", SessionState.RUNNING)
    asked = account.now()
    for later in (0, 121):
        account.adapter().stop("uff-ufm-0001", asked + later, force=True)
    ended = account.until("uff-ufm-0001", SessionState.ENDED)
    assert ended.detail == "deleted"
    assert [session.live for session in account.place.sessions()] == [False]


def test_an_access_token_tells_whose_it_is(account: Account) -> None:
    """Asked once; a token that is not active needs a person."""
    (account.folder / "token").write_text(account.place.key)
    (account.folder / "token").chmod(0o600)
    platform = account.adapter(credentials=str(account.folder / "token"))
    platform.launch(account.request("uff-ufm-0001", "finish"), account.now())
    assert platform.find(["uff-ufm-0001"], account.now())
    assert [call for call, _ in account.server.requests].count("IntrospectToken") == 1
    (account.folder / "token").write_text("stale-token")
    with pytest.raises(Misconfigured, match="not active"):
        account.adapter(credentials=str(account.folder / "token")).find(["uff-ufm-0001"], account.now())


@pytest.mark.parametrize("fault", [Fault.THROTTLED, Fault.SERVER_ERROR, Fault.DROP])
def test_a_log_stream_that_is_refused_is_no_empty_log(account: Account, fault: Fault) -> None:
    account.adapter().launch(account.request("uff-ufm-0001", "wait"), account.now())
    while account.place.sessions()[0].started_at is None:  # nobody has looked yet, so nobody reads it
        account.patience.wait(0.01)
    account.place.faults.add("LogStream", fault)
    with pytest.raises(Unreachable):
        list(account.adapter().logs("uff-ufm-0001", 0, 100))


def test_of_an_endless_log_a_part_is_kept(account: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platforms.kaggle.session.observer._KEPT_BYTES", 10_000)
    flood = ["{python}", "-c", "print(*range(100_000), sep='\\n')"]
    account.adapter().launch(account.request("uff-ufm-0001", "finish", command=flood), account.now())
    account.until("uff-ufm-0001", SessionState.ENDED)
    output = account.output("uff-ufm-0001")
    assert len(output) < 11_000
    assert "bytes is dropped]" in output
