"""The relay: checkpoints and data go out as datasets, and what a session left comes home after a clean exit."""

from typing import TYPE_CHECKING, Any

import pytest

from platforms.base import Refused, SessionState
from platforms.relay import pack_objects

if TYPE_CHECKING:
    from collections.abc import Callable

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


def test_a_checkpoint_survives_a_crash_of_the_trainer(account: "Account") -> None:
    account.adapter().launch(account.request("uff-ufm-0001", "crash"), account.now())
    assert account.settle("uff-ufm-0001").detail == "complete"
    assert account.result("uff-ufm-0001")["outcome"] == "failed"
    assert len(manifests(account)) == 1


def test_a_session_that_is_cut_off_leaves_nothing_and_says_so(account: "Account") -> None:
    """Kaggle throws the output of a cancelled kernel away: the loss that docs/kaggle.md names."""
    account.adapter().launch(account.request("uff-ufm-0001", "wait"), account.now())
    account.until("uff-ufm-0001", SessionState.RUNNING)
    while "resumed" not in account.output("uff-ufm-0001"):
        account.patience.wait(0.01)
    account.adapter().stop("uff-ufm-0001", account.now(), force=True)
    ended = account.settle("uff-ufm-0001")
    assert ended.detail.startswith("cancel_acknowledged")
    assert list(account.store.keys("")) == []
    assert "resumed from nothing" in account.output("uff-ufm-0001")


def test_equal_inputs_are_uploaded_once_and_swept_when_nobody_needs_them(account: "Account") -> None:
    for number in (1, 2):
        account.adapter().launch(account.request(f"uff-ufm-000{number}", "finish"), account.now())
        account.settle(f"uff-ufm-000{number}")
    assert [call for call, _ in account.server.requests].count("CreateDataset") == 1
    later = account.now() + 8 * 86_400
    assert account.adapter().sweep(["uff-ufm-0001"], later) == ["uff-ufm-0001"]
    assert [dataset.deleted for dataset in account.place.shelf.datasets.values()] == [True]
    # The name of a deleted dataset is never used again.
    account.adapter().launch(account.request("uff-ufm-0003", "finish"), account.now())
    account.settle("uff-ufm-0003")
    assert [name[-2:] for name in account.place.shelf.datasets] == ["-0", "-1"]


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
    monkeypatch.setattr(account.server.calls, "_link", _serving(account, planted))
    monkeypatch.setattr(session, "output_files", lambda: [*honest, planted])
    account.adapter().collect("uff-ufm-0001", account.store, account.now())
    assert set(account.store.keys("")) == {name.removeprefix("store/") for name in honest}


def _serving(account: "Account", planted: str) -> "Callable[[str, str], str]":
    honest: Callable[[str, str], str] = account.server._link
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

    monkeypatch.setattr("platforms.kaggle.inputs.pack_objects", pack)
    for number in (1, 2):
        key = f"uff-ufm-000{number}"
        account.adapter().launch(account.request(key, "finish", data="corpus/1/mixtures/ufm"), account.now())
        account.settle(key)
    assert packed == [["corpus/1/mixtures/ufm/train.bin"]]
