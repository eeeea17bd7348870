"""Orphans: what runs or lies on the account and is provably ours, though nothing of ours names it."""

import shutil
from collections.abc import Callable
from typing import Any

from platforms.base import SessionState

Account = Any
LATER = 8 * 86_400


def test_a_live_session_of_ours_that_nobody_names_is_found_and_left_alone(account: Account) -> None:
    """Its source tells the launch; kernels of others, known ones and those that are over are none."""
    for key in ("uff-ufm-0001", "uff-ufm-0002"):
        account.adapter().launch(account.request(key, "wait"), account.now())
        account.until(key, SessionState.RUNNING)
    body = {"newTitle": "my own notebook", "slug": "alice/my-own-notebook", "text": "import signal; signal.pause()"}
    account.place.push(body)
    account.adapter("restored").launch(account.request("uff-ufm-0001", "wait"), account.now())
    (orphan,) = account.adapter("restored").orphans({"uff-ufm-0001"}, account.now())
    assert (orphan.key, orphan.state, orphan.remote_id) == ("uff-ufm-0002", SessionState.RUNNING, "uff-ufm-0002/v1")
    assert orphan.started is not None
    assert all(session.live for session in account.place.sessions())
    account.adapter().stop("uff-ufm-0002", account.now(), force=True)
    account.until("uff-ufm-0002", SessionState.ENDED)
    assert account.adapter("restored").orphans({"uff-ufm-0001"}, account.now()) == []


def test_a_prefix_keeps_two_schedulers_of_one_account_apart(account_at: Callable[..., Account]) -> None:
    account = account_at(queue_seconds=3_000.0)
    account.adapter(slug_prefix="north-").launch(account.request("uff-ufm-0001", "wait"), account.now())
    assert account.adapter(slug_prefix="south-").orphans([], account.now()) == []
    (orphan,) = account.adapter(slug_prefix="north-").orphans([], account.now())
    assert (orphan.key, orphan.state) == ("uff-ufm-0001", SessionState.QUEUED)


def test_datasets_that_nobody_notes_any_more_age_and_go_and_those_of_others_stay(account: Account) -> None:
    """As after the loss of our records: they are taken over first, and deleted only when nobody has used them."""
    account.adapter().launch(account.request("uff-ufm-0001", "finish"), account.now())
    account.settle("uff-ufm-0001")
    (ours,) = account.place.storage.datasets
    (account.folder / "file").write_bytes(b"mine")
    client: Any = account.adapter()
    for slug in ("my-own-data", "uff-code-my-notes"):
        token = client._client.datasets.upload(account.folder / "file", "file.bin", 5)
        assert client._client.datasets.create(slug, slug, [token]) == ""
    shutil.rmtree(account.folder / "state")
    account.adapter().sweep([], account.now())
    assert not account.place.storage.datasets[ours].deleted
    account.adapter().sweep([], account.now() + LATER)
    left = {slug for slug, dataset in account.place.storage.datasets.items() if not dataset.deleted}
    assert left == {"my-own-data", "uff-code-my-notes"}


def test_more_datasets_than_one_page_holds_are_all_seen(account: Account) -> None:
    client: Any = account.adapter()
    (account.folder / "file").write_bytes(b"mine")
    for number in range(45):
        token = client._client.datasets.upload(account.folder / "file", "file.bin", 5)
        client._client.datasets.create(f"some-data-{number}", f"some data {number}", [token])
    assert len(list(client._client.datasets.own())) == 45
