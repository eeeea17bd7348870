"""The relay: checkpoints and data go out as datasets, and what a session left comes home after a clean exit."""

import os
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from jobs.nouns.pool import Pool
from jobs.payload.store.tree import code_prefix
from jobs.spec import Code, Input, JobSpec, Requirements
from platforms.base import Capabilities, InQueue, Refused, SessionState, Unreachable
from platforms.relay import pack_objects
from scheduler.core.plan import Placement, PlannedLane
from scheduler.core.run import Lane
from scheduler.service.launch.inputs import trees_of, with_inputs
from scheduler.service.launch.launch_document import lane_packages, package_trees, with_packages
from scheduler.service.requests import queue
from scheduler.service.requests.stored import keep_code, keep_lock, take_input
from scheduler.store import jobs as job_rows
from scheduler.store import trees
from tests.lab.hub import NAME, StandInHub
from tests.lab.packages import use_index, write_wheel
from tests.lab.patience import until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from scheduler.service.outside.ports import Ports
    from scheduler.store.engine import Database

    Account = Any


def manifests(account: "Account") -> list[str]:
    return [key for key in account.store.keys("") if "/manifests/" in key]


def test_a_job_goes_on_where_its_last_session_ended(account: "Account") -> None:
    """The first session ends at its own deadline; the second starts from what it saved, and reaches the target."""
    account.store.create("corpus/1/mixtures/ufm/train.bin", b"text")
    account.adapter().launch(
        account.request("uff-ufm-0001", "wait", seconds=300, data="corpus/1/mixtures/ufm"), account.now()
    )
    ended = account.settle("uff-ufm-0001")
    assert ended.detail == "complete"
    output = account.output("uff-ufm-0001")
    assert "resumed from nothing\ndata ['train.bin']\n" in output, output
    first = account.result("uff-ufm-0001")
    assert (first["outcome"], first["checkpoint_step"]) == ("yielded", 50), output

    request = account.request("uff-ufm-0002", "finish", attempt=2, restore=manifests(account))
    account.adapter().launch(request, account.now())
    account.settle("uff-ufm-0002")
    assert "resumed from weights of step 50\n" in account.output("uff-ufm-0002")
    second = account.result("uff-ufm-0002")
    assert (second["outcome"], second["checkpoint_step"], second["restored_step"]) == ("finished", 100, 50)
    assert len(manifests(account)) == 2
    # What was handed out is not handed back.
    files = account.place.version("alice", "uff-ufm-0002", "v1")[1].session.output_files()
    assert not [name for name in files if "000000000050" in name or name.startswith("store/corpus")]


def test_a_session_that_reaches_no_store_is_handed_the_code_and_inputs_of_its_job(
    account: "Account", tmp_path: "Path", database: "Database"
) -> None:
    folder = tmp_path / "trainer"
    folder.mkdir()
    (folder / "train.py").write_text(
        "import os; there = sorted(os.listdir('.')); import helper; print('runs', helper.WORD, there)\n"
        "tests = os.environ['SCHED_INPUT_TESTS']; print('reads', open(tests + '/a/b').read())"
    )
    (folder / "helper.py").write_text("WORD = 'mine'")
    kept = keep_code(database, account.store, Code(str(folder)), 0)
    (tmp_path / "tests" / "a").mkdir(parents=True)
    (tmp_path / "tests" / "a" / "b").write_text("an input")
    given = take_input(database, account.store, Input("tests", str(tmp_path / "tests")), 0, print)
    trees = {"input.tests": f"input/{given.digest}"}
    lane = {"command": ["{python}", "train.py"], "code": code_prefix(kept.digest), "trees": trees}
    account.adapter().launch(account.request("uff-ufm-0001", "", **lane), account.now())
    account.settle("uff-ufm-0001")
    assert "runs mine ['helper.py', 'train.py']" in account.output("uff-ufm-0001")
    assert "reads an input" in account.output("uff-ufm-0001")
    assert len([call for call, _ in account.server.requests if call == "CreateDataset"]) == 3
    account.adapter().launch(account.request("uff-ufm-0002", "", attempt=2, **lane), account.now())
    account.settle("uff-ufm-0002")
    assert len([call for call, _ in account.server.requests if call == "CreateDataset"]) == 3


def test_a_repository_of_the_hub_reaches_a_session_without_internet_through_the_daemon(
    account: "Account", make_ports: "Callable[..., Ports]", database: "Database", monkeypatch: pytest.MonkeyPatch
) -> None:
    offline = account.adapter(internet="off")
    assert (offline.capabilities.internet, account.adapter().capabilities.internet) == (False, True)
    ports = make_ports(platforms={"kaggle": offline}, artifacts=account.store, scratch=account.folder / "scratch")
    reads = "import os; print('reads', open(os.environ['SCHED_INPUT_BASE'] + '/config.json').read())"
    with StandInHub({"config.json": b"of the Hub", "weights.bin": bytes(5_000)}) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        monkeypatch.delenv("HF_TOKEN", raising=False)
        given = take_input(database, account.store, Input("base", f"hf:{NAME}"), 0, print)
        spec = JobSpec("ufm", "manager", ("{python}",), 100, 10.0, inputs=(given,))
        with database.write() as tx:
            job_rows.add(tx, spec, 0)
        assert with_inputs(ports, [Placement("kaggle", 0, 9, (PlannedLane("ufm", 1, 9),))])
    with database.read() as tx:
        found = trees_of(spec, trees.copies(tx), Capabilities(internet=False))
    lane = {"command": ["{python}", "-c", reads], "trees": found}
    offline.launch(account.request("uff-ufm-0001", "", **lane), account.now())
    account.settle("uff-ufm-0001")
    assert "reads of the Hub" in account.output("uff-ufm-0001"), account.output("uff-ufm-0001")
    files = account.place.version("alice", "uff-ufm-0001", "v1")[1].session.output_files()
    assert not [name for name in files if "input/" in name], "what was given does not come home"


@pytest.mark.parametrize("internet", ["on", "off"])
def test_a_session_imports_a_package_that_its_image_lacks(
    account: "Account",
    tmp_path: "Path",
    make_ports: "Callable[..., Ports]",
    monkeypatch: pytest.MonkeyPatch,
    internet: str,
) -> None:
    """Fetched from an index that the job names, or carried along with its lock as a dataset."""
    use_index(tmp_path / "index", monkeypatch)
    write_wheel(tmp_path / "index", "light", "0.1")
    (tmp_path / "requirements.txt").write_text("light\n")
    pool = Pool("pool", "kaggle", "T4", options={"emulator": account.server.address, "internet": internet})
    ports = replace(make_ports(), artifacts=account.store, pools={"pool": pool})
    wanted = JobSpec("ufm", "main", ("x",), 100, 1.0, requirements=Requirements(str(tmp_path / "requirements.txt")))
    spec = replace(wanted, requirements=keep_lock(ports.database, account.store, wanted, ports.pools, 0))
    queue.add(ports.database, [spec], account.now(), "test")
    due = [Placement("pool", 0, 3_600, (PlannedLane("ufm", 1, 10),))]
    until(lambda: with_packages(ports, due), "the wheels")
    found = package_trees(spec, pool)
    index = {name: os.environ[name] for name in ("PIP_INDEX_URL", "UV_DEFAULT_INDEX")} if internet == "on" else {}
    lane = {
        "command": ["{python}", "-c", "import light; print('has', light.VERSION)"],
        "environment": index,
        "trees": found,
        "packages": lane_packages(Lane(0, "ufm", 1, (), None, trees=found), spec, pool),
    }
    (tmp_path / "index").rename(tmp_path / "elsewhere") if internet == "off" else None
    account.adapter().launch(account.request("uff-ufm-0001", "", **lane), account.now())
    account.settle("uff-ufm-0001")
    assert "has 0.1" in account.output("uff-ufm-0001"), account.output("uff-ufm-0001")


def test_a_checkpoint_survives_a_crash_of_the_trainer(account: "Account") -> None:
    account.adapter().launch(account.request("uff-ufm-0001", "crash"), account.now())
    assert account.settle("uff-ufm-0001").detail == "complete"
    assert account.result("uff-ufm-0001")["outcome"] == "failed"
    assert len(manifests(account)) == 1


def test_a_session_that_is_cut_off_leaves_nothing_and_says_so(account: "Account") -> None:
    """Kaggle throws the output of a cancelled kernel away: the loss that docs/kaggle.md names."""
    account.adapter().launch(account.request("uff-ufm-0001", "wait"), account.now())
    account.until("uff-ufm-0001", SessionState.RUNNING)
    until(lambda: "resumed" in account.output("uff-ufm-0001"), "resumed to be printed")
    account.adapter().stop("uff-ufm-0001", account.now(), force=True)
    ended = account.settle("uff-ufm-0001")
    assert ended.detail.startswith("cancel_acknowledged")
    assert not ended.taken, "we ended it"
    assert list(account.store.keys("")) == []
    assert "resumed from nothing" in account.output("uff-ufm-0001")


def test_a_session_that_waits_says_so_and_one_that_kaggle_ends_was_taken(account: "Account") -> None:
    """Cancelled in the browser or out of quota, and deleted by hand: no failure of the job."""
    account.place.rules.queue_seconds = 100_000.0
    account.adapter().launch(account.request("uff-ufm-0001", "wait"), account.now())
    waits = account.until("uff-ufm-0001", SessionState.QUEUED)
    assert waits.waits == InQueue("Kaggle has no machine for it yet")
    account.place.rules.queue_seconds = 0.0
    account.adapter().launch(account.request("uff-ufm-0002", "wait"), account.now())
    assert account.until("uff-ufm-0002", SessionState.RUNNING).waits is None
    account.place.sessions()[-1].cut("CANCEL_ACKNOWLEDGED", "Weekly GPU quota exceeded")
    assert account.until("uff-ufm-0002", SessionState.ENDED).taken
    assert account.until("uff-ufm-0002", SessionState.ENDED).taken, "by another adapter"


def test_equal_inputs_are_uploaded_once_and_swept_when_nobody_needs_them(account: "Account") -> None:
    for number in (1, 2):
        account.adapter().launch(account.request(f"uff-ufm-000{number}", "finish"), account.now())
        account.settle(f"uff-ufm-000{number}")
    assert [call for call, _ in account.server.requests].count("CreateDataset") == 1
    later = account.now() + 8 * 86_400
    assert account.adapter().sweep(["uff-ufm-0001"], later) == ["uff-ufm-0001"]
    assert [dataset.deleted for dataset in account.place.storage.datasets.values()] == [True]
    # The name of a deleted dataset is never used again.
    account.adapter().launch(account.request("uff-ufm-0003", "finish"), account.now())
    account.settle("uff-ufm-0003")
    assert [name[-2:] for name in account.place.storage.datasets] == ["-0", "-1"]


@pytest.mark.parametrize(
    "planted",
    [
        "store/jobs/other/manifests/000000000001-000001.json",
        "store/runs/uff-other-0001/lane-0/result.json",
        "store/runs/uff-ufm-0001/stop",
        "store/jobs/ufm/blobs/" + "a" * 64,
        "store/jobs/ufm/manifests/000000000009-000009.json",
        "store/x/../../../evil",
        "store/jobs/ufm/manifests/evil\n.json",
        "evil.txt",
    ],
)
def test_what_a_session_may_not_write_is_not_taken(
    account: "Account", monkeypatch: pytest.MonkeyPatch, planted: str
) -> None:
    """Names of others, traversal, digests that lie, reports that are none of a payload's: all are left behind."""
    account.adapter().launch(account.request("uff-ufm-0001", "finish"), account.now())
    account.until("uff-ufm-0001", SessionState.ENDED)
    session = account.place.version("alice", "uff-ufm-0001", "v1")[1].session
    honest = session.output_files()
    working = session.terms.folder / "kaggle" / "working"
    (working / "planted").write_bytes(b"{}")
    monkeypatch.setattr(account.server, "link", _serving(account, planted))
    monkeypatch.setattr(session, "output_files", lambda: [*honest, planted])
    with suppress(Unreachable):  # under a name that is its to write, it may have come damaged
        account.adapter().collect("uff-ufm-0001", account.store, account.now())
    taken = {name.removeprefix("store/") for name in honest}
    assert set(account.store.keys("")) | {name for name in taken if name.startswith("runs/")} == taken


def _serving(account: "Account", planted: str) -> "Callable[[str, str], str]":
    honest: Callable[[str, str], str] = account.server.link
    return lambda version, name: honest(version, "planted" if name == planted else name)


def test_more_files_than_any_session_needs_are_refused_once(
    account: "Account", monkeypatch: pytest.MonkeyPatch
) -> None:
    account.adapter().launch(account.request("uff-ufm-0001", "finish"), account.now())
    account.until("uff-ufm-0001", SessionState.ENDED)
    session = account.place.version("alice", "uff-ufm-0001", "v1")[1].session
    monkeypatch.setattr(session, "output_files", lambda: [f"store/{number}" for number in range(6_000)])
    with pytest.raises(Refused, match="more than 5000 files"):
        account.adapter().collect("uff-ufm-0001", account.store, account.now())
    account.adapter().collect("uff-ufm-0001", account.store, account.now())
    assert list(account.store.keys("")) == []


def test_a_launch_does_not_wait_for_long_uploads_and_the_next_one_finds_them_done(
    account_at: "Callable[..., Account]",
) -> None:
    """Refused with how far it has come, while the upload goes on: it is made once."""
    account = account_at(dataset_seconds=180.0)  # three real seconds
    daemon = account.adapter(upload_seconds="1")
    with pytest.raises(Refused, match=r"its code is still on its way to Kaggle: uff-code-.* is ") as refused:
        daemon.launch(account.request("uff-ufm-0001", "finish"), account.now())
    assert refused.value.wait_until is not None
    assert not refused.value.permanent
    assert account.place.sessions() == []
    for attempt in range(2, 30):
        try:
            daemon.launch(account.request(f"uff-ufm-{attempt:04d}", "finish"), account.now())
        except Refused:
            continue
        break
    account.settle(f"uff-ufm-{attempt:04d}")
    assert account.result(f"uff-ufm-{attempt:04d}")["outcome"] == "finished"
    assert [call for call, _ in account.server.requests].count("CreateDataset") == 1


def test_what_was_packed_once_is_not_packed_again(account: "Account", monkeypatch: pytest.MonkeyPatch) -> None:
    """Training data of many GB are read once, not with every launch."""
    account.store.create("corpus/1/mixtures/ufm/train.bin", b"text")
    packed: list[object] = []

    def pack(store: "Any", keys: "Any", archive: "Any") -> None:
        packed.append(keys)
        pack_objects(store, keys, archive)

    monkeypatch.setattr("platforms.kaggle.kernel.packing.pack_objects", pack)
    for number in (1, 2):
        key = f"uff-ufm-000{number}"
        account.adapter().launch(account.request(key, "finish", data="corpus/1/mixtures/ufm"), account.now())
        account.settle(key)
    assert packed == [["corpus/1/mixtures/ufm/train.bin"]]


@pytest.mark.parametrize("kind", ["blobs", "manifests", "result.json"])
def test_what_comes_damaged_is_fetched_again(account: "Account", monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Last words are not taken before what they speak of, and nothing that is damaged is."""
    account.adapter().launch(account.request("uff-ufm-0001", "finish"), account.now())
    account.until("uff-ufm-0001", SessionState.ENDED)
    session = account.place.version("alice", "uff-ufm-0001", "v1")[1].session
    working = session.terms.folder / "kaggle" / "working"
    whole = {name: (working / name).read_bytes() for name in session.output_files() if kind in name}
    for name, data in whole.items():
        (working / name).write_bytes(data[: len(data) // 2])
    for _ in range(2):
        with pytest.raises(Unreachable, match="came damaged or incomplete"):
            account.adapter().collect("uff-ufm-0001", account.store, account.now())
        assert not [key for key in account.store.keys("") if kind in key or key.endswith("result.json")]
    for name, data in whole.items():
        (working / name).write_bytes(data)
    account.adapter().collect("uff-ufm-0001", account.store, account.now())
    assert account.result("uff-ufm-0001")["outcome"] == "finished"
    assert len(manifests(account)) == 1


def test_a_checkpoint_that_cannot_be_given_is_told_like_a_damaged_one(account: "Account") -> None:
    """The session passes over it and says so; with no other it does not start anew."""
    account.adapter().launch(account.request("uff-ufm-0001", "crash"), account.now())
    account.settle("uff-ufm-0001")
    (good,) = manifests(account)
    bad = "jobs/ufm/manifests/000000000090-000001.json"
    account.store.put(bad, b"{ this is no manifest")
    request = account.request("uff-ufm-0002", "finish", attempt=2, restore=[bad, good])
    account.adapter().launch(request, account.now())
    account.settle("uff-ufm-0002")
    said = account.result("uff-ufm-0002")
    assert (said["outcome"], said["restored_from"]) == ("finished", good)
    assert [entry["manifest"] for entry in said["bad_manifests"]] == [bad]
    account.adapter().launch(account.request("uff-ufm-0003", "finish", attempt=3, restore=[bad]), account.now())
    account.settle("uff-ufm-0003")
    said = account.result("uff-ufm-0003")
    assert (said["outcome"], said["error_class"]) == ("failed", "store")
    assert [entry["manifest"] for entry in said["bad_manifests"]] == [bad]
