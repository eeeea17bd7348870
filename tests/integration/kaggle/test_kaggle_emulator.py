"""The rules of the place, one by one, as the facts about Kaggle have them."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from platforms.emulators.kaggle.storage import KaggleRefusal
from platforms.kaggle.api.client import KaggleClient, Push
from platforms.kaggle.api.wire import Denied, Wire
from platforms.kaggle.settings import Credentials
from tests.lab.faults import Fault
from tests.lab.patience import until

Account = Any
HELLO = "print('hello', flush=True)"
LASTING = "import signal; print('up', flush=True); signal.pause()"


@pytest.fixture
def client(account: Account) -> KaggleClient:
    """Calls by name, without records."""
    return client_of(account)


def client_of(account: Account) -> KaggleClient:
    wire = Wire(Credentials("a test", username="alice", key=account.place.key), account.server.address, 5)
    return KaggleClient(wire, tries=1, pause_seconds=0)


def push(client: KaggleClient, slug: str, source: str = HELLO, title: str | None = None, **fields: Any) -> Any:
    usual: dict[str, Any] = {
        "datasets": (),
        "machine_shape": "NvidiaTeslaT4",
        "timeout_seconds": 3600,
        "internet": False,
    }
    shown = slug.replace("-", " ") if title is None else title
    return client.push(Push(slug=slug, title=shown, source=source, **(usual | fields)), 5)


def session_of(account: Account, slug: str, version: int = 1) -> Any:
    return account.place.version("alice", slug, f"v{version}")[1].session


def test_the_slug_of_a_new_kernel_comes_from_its_title(account: Account, client: KaggleClient) -> None:
    assert push(client, "what-i-asked", title="What it Became!").slug == "what-it-became"
    assert client.status("what-i-asked") is None


def test_a_second_push_starts_a_second_session_and_the_first_goes_on(account: Account, client: KaggleClient) -> None:
    push(client, "the-kernel", LASTING)
    assert push(client, "the-kernel", LASTING).version == 2
    assert [session.live for session in account.place.sessions()] == [True, True]


def test_a_version_is_named_with_a_v(account: Account, client: KaggleClient) -> None:
    push(client, "the-kernel")
    with pytest.raises(KaggleRefusal) as refused:
        account.place.version("alice", "the-kernel", "1")
    assert refused.value.status == 404
    assert account.place.version("alice", "the-kernel", None)[1].number == 1


def test_a_missing_kernel_is_denied_and_a_deleted_one_not_found(account: Account, client: KaggleClient) -> None:
    with pytest.raises(KaggleRefusal) as missing:
        account.place.version("alice", "the-kernel", "v1")
    push(client, "the-kernel")
    client.delete("the-kernel")
    with pytest.raises(KaggleRefusal) as deleted:
        account.place.version("alice", "the-kernel", "v1")
    assert (missing.value.status, deleted.value.status) == (403, 404)
    assert client.delete("the-kernel") is False


def test_cpu_sessions_have_a_limit_of_their_own_and_cost_no_gpu_time(account: Account, client: KaggleClient) -> None:
    answers = [push(client, f"cpu-kernel-{number}", LASTING, machine_shape="").error for number in range(6)]
    assert answers == [""] * 5 + ["Maximum batch CPU session count of 5 reached."]
    assert client.week().used_seconds == 0


def test_a_source_above_a_megabyte_fails_without_a_reason(client: KaggleClient) -> None:
    with pytest.raises(Denied) as refused:
        push(client, "the-kernel", "#" * 1_000_001)
    assert refused.value.status == 400


def test_an_input_that_is_not_there_is_left_out_and_the_kernel_runs(account: Account, client: KaggleClient) -> None:
    pushed = push(client, "the-kernel", datasets=("alice/nothing-here",))
    assert (pushed.error, pushed.invalid) == ("", ("alice/nothing-here",))
    session_of(account, "the-kernel").join()
    assert client.status("the-kernel") == ("COMPLETE", "")


@pytest.mark.parametrize(
    ("source", "timeout_seconds", "status", "kept"),
    [
        # A second of real time is a minute here, and an interpreter may take several to start.
        ("open('a.txt', 'w').write('x')", 40_000, "COMPLETE", ["a.txt"]),
        ("open('a.txt', 'w').write('x'); raise SystemExit(3)", 40_000, "ERROR", []),
        ("open('a.txt', 'w').write('x'); import signal; signal.pause()", 60, "ERROR", []),
    ],
    ids=["leaves well", "fails", "runs out of time"],
)
def test_output_is_kept_of_a_clean_exit_only(
    account: Account, client: KaggleClient, source: str, timeout_seconds: int, status: str, kept: list[str]
) -> None:
    push(client, "the-kernel", source, timeout_seconds=timeout_seconds)
    session_of(account, "the-kernel").join()
    seen, output = client.status("the-kernel"), client.output("the-kernel", "")
    assert seen is not None
    assert output is not None
    assert seen[0] == status
    assert [name for name, _ in output.files] == kept


def test_while_a_session_runs_its_log_is_only_streamed(account: Account, client: KaggleClient) -> None:
    """Every connection replays from the start; the stored log comes when it is over, with Kaggle's own words."""
    push(client, "the-kernel", LASTING)
    for _ in range(2):
        pieces = b""
        while b"up" not in pieces:
            pieces = b"".join(piece for _, piece in client.stream_log("the-kernel", 0.2, 1 << 16))
    running = client.output("the-kernel", "")
    assert running is not None
    assert (running.files, running.log) == ((), "")
    assert client.cancel(session_of(account, "the-kernel").terms.session_id)
    assert client.status("the-kernel") == ("CANCEL_ACKNOWLEDGED", "Cancelled by the user")
    ended = client.output("the-kernel", "")
    assert ended is not None
    assert [line["data"] for line in json.loads(ended.log)] == ["up\n"]
    kind, piece = next(iter(client.stream_log("the-kernel", 0.2, 1 << 16)))
    assert kind == "application/json"
    assert json.loads(piece) == json.loads(ended.log)


def test_only_the_id_of_a_session_cancels_it(account: Account, client: KaggleClient) -> None:
    push(client, "the-kernel", LASTING)
    assert not client.cancel(account.place.kernels["the-kernel"].id)
    assert session_of(account, "the-kernel").live


def test_deleting_ends_the_bill(account: Account, client: KaggleClient) -> None:
    push(client, "the-kernel", LASTING)
    until(lambda: session_of(account, "the-kernel").started_at is not None, "a session that runs")
    session = session_of(account, "the-kernel")
    client.delete("the-kernel")
    assert client.week().used_seconds == pytest.approx(session.ended_at - session.started_at, abs=1)


def test_a_week_that_is_used_up_ends_running_sessions(account_at: Callable[..., Account]) -> None:
    account = account_at(gpu_seconds_per_week=30)
    client = client_of(account)
    push(client, "the-kernel", LASTING)
    session_of(account, "the-kernel").join()
    assert client.status("the-kernel") == ("CANCEL_ACKNOWLEDGED", "Weekly GPU quota exceeded")
    assert "weekly GPU quota of 0.01 hours" in push(client, "next-kernel").error


def test_links_to_output_expire(account_at: Callable[..., Account]) -> None:
    account = account_at(link_wall_seconds=-1.0)
    client = client_of(account)
    push(client, "the-kernel", "open('a.txt', 'w').write('x')")
    session_of(account, "the-kernel").join()
    output = client.output("the-kernel", "")
    assert output is not None
    with pytest.raises(Denied) as refused:
        client.wire.download(output.files[0][1], account.folder / "a", 10, 5)
    assert refused.value.status == 403


def test_a_dataset_is_hidden_then_processed_then_ready(account_at: Callable[..., Account]) -> None:
    account = account_at(scale=1000.0, dataset_hidden_seconds=200.0, dataset_seconds=400.0)
    client = client_of(account)
    (account.folder / "file").write_bytes(b"content")
    token = client.datasets.upload(account.folder / "file", "file.bin", 5)
    assert client.datasets.create("some-data", "some data", [token]) == ""
    assert "already in use" in client.datasets.create("some-data", "some data", [token])
    with pytest.raises(KaggleRefusal, match=r"datasets\.update"):
        account.place.storage.create_version({"ownerSlug": "alice", "datasetSlug": "some-data"})
    seen: list[str | None] = []
    while not seen or seen[-1] != "READY":
        status = client.datasets.status("some-data")
        if status not in seen:
            seen.append(status)
    assert seen[0] is None
    assert set(seen[1:-1]) <= {"NOT_YET_PERSISTED", "BLOBS_RECEIVED", "BLOBS_DECOMPRESSED", "BLOBS_COPIED_TO_SDS"}


@pytest.mark.parametrize("fault", [Fault.SERVER_ERROR, Fault.DROP, Fault.THROTTLED])
def test_an_interrupted_upload_goes_on_where_it_was(account: Account, client: KaggleClient, fault: Fault) -> None:
    content = bytes(range(256)) * 1000
    (account.folder / "file").write_bytes(content)
    account.place.faults.add("PUT", fault, fault)
    token = client.datasets.upload(account.folder / "file", "file.bin", 5)
    assert account.place.storage.blobs[token].path.read_bytes() == content


def test_a_session_across_the_weeks_end_is_billed_to_both(account: Account, client: KaggleClient) -> None:
    push(client, "the-kernel", LASTING)
    session = session_of(account, "the-kernel")
    until(lambda: session.started_at is not None, "a session that runs")
    start, end = account.place.week(account.now())
    session.started_at = start - 1_000
    assert account.place.seconds_used(start - 604_800, start) == 1_000
    assert account.place.seconds_used(start, end) == pytest.approx(account.clock.now() - start, abs=120)


def test_a_dataset_that_is_still_processed_is_left_out_like_a_missing_one(account_at: Callable[..., Account]) -> None:
    account = account_at(dataset_seconds=1_000_000.0)
    client = client_of(account)
    (account.folder / "file").write_bytes(b"content")
    client.datasets.create("some-data", "some data", [client.datasets.upload(account.folder / "file", "file.bin", 5)])
    assert push(client, "the-kernel", datasets=("alice/some-data",)).invalid == ("alice/some-data",)


def test_what_live_sessions_may_still_use_is_reserved(account_at: Callable[..., Account]) -> None:
    account = account_at(reserves=True)
    client = client_of(account)
    push(client, "the-kernel", LASTING, timeout_seconds=7_200)
    until(lambda: session_of(account, "the-kernel").started_at is not None, "a session that runs")
    week = client.week()
    assert week.used_seconds + week.reserved_seconds == pytest.approx(7_200, abs=120)
    client.delete("the-kernel")
    assert client.week().reserved_seconds == 0


def test_a_wedged_kernel_outlives_its_limit_until_it_is_deleted(account_at: Callable[..., Account]) -> None:
    account = account_at(scale=3_600.0, timeout_ignored=True)
    client = client_of(account)
    push(client, "the-kernel", LASTING, timeout_seconds=60)
    session = session_of(account, "the-kernel")
    while session.started_at is None or account.clock.now() < session.started_at + 600:
        account.patience.wait(0.01)
    assert client.status("the-kernel") == ("RUNNING", "")
    client.delete("the-kernel")
    assert not session.live


def test_without_a_version_the_newest_session_is_meant(account: Account, client: KaggleClient) -> None:
    push(client, "the-kernel", HELLO)
    session_of(account, "the-kernel").join()
    push(client, "the-kernel", LASTING)
    wanted = {"userName": "alice", "kernelSlug": "the-kernel"}
    status = account.server.table["kernels.KernelsApiService/GetKernelSessionStatus"]
    assert status({**wanted, "versionLabel": "v1"})["status"] == "COMPLETE"
    assert status(wanted)["status"] in {"QUEUED", "RUNNING"}


def test_a_kernel_is_let_in_to_look_while_it_runs_and_to_nothing_else(account: Account, client: KaggleClient) -> None:
    """As on the real place a file holds its token; it ends with the session."""
    asks = """
import json, os, urllib.error, urllib.request
token = open(os.environ["KAGGLE_API_V1_TOKEN"]).read()
def ask(call, body):
    request = urllib.request.Request("http://localhost/api/v1/" + call, json.dumps(body).encode(),
        {"Authorization": "Bearer " + token, "Content-Type": "application/json"})
    try:
        return urllib.request.urlopen(request, timeout=5).status
    except urllib.error.HTTPError as error:
        return error.code
own = {"userName": "alice", "kernelSlug": "the-kernel"}
print(ask("kernels.KernelsApiService/GetKernelSessionStatus", own),
      ask("kernels.KernelsApiService/DeleteKernel", own), flush=True)
"""
    push(client, "the-kernel", asks, internet=True)
    session = session_of(account, "the-kernel")
    session.join()
    assert session.lines[0]["data"] == "200 401\n", session.lines
    assert not account.place.is_token(session.terms.token)


def test_the_rules_are_names_of_tests_as_the_guide_says(repository: Path) -> None:
    guide = (repository / "docs" / "inside" / "emulators.md").read_text()
    named = set(re.findall(r"`(test_\w+)`", guide))
    written = {
        name
        for path in Path(__file__).parent.glob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE)
    }
    assert named
    assert named - written == set()
