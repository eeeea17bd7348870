"""Where the protocol leaves a choice the adapter leans on no habit of our emulator: each is tried the other way."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import jobs
from platforms.artifacts.base import BlobStore
from platforms.base import Misconfigured, Refused, SessionState, Unreachable
from platforms.registry import PlatformContext, load
from tests.lab.patience import until

Account = Any


def test_a_terse_place_is_understood(account_at: Callable[..., Account]) -> None:
    """The answer to a push need not tell where it landed, a link may lead on, a list may come in pages of any size."""
    account = account_at(tells_landing=False, output_redirects=True, page_max=2)
    seen = account.adapter().launch(account.request("uff-ufm-0001", "finish"), account.now())
    assert seen.state is SessionState.QUEUED
    account.settle("uff-ufm-0001")
    assert account.result("uff-ufm-0001")["checkpoint_step"] == 100
    assert len(account.place.sessions()) == 1  # nothing was deleted for what was left out, or pushed again


@pytest.mark.parametrize("by_token", [True, False])
def test_lists_are_read_to_their_end_whoever_decides_on_pages(
    account_at: Callable[..., Account], by_token: bool
) -> None:
    """The oldest of many kernels and datasets is on the last page."""
    account = account_at(page_max=20, pages_by_token=by_token)
    client = account.adapter()._client
    token = client.datasets.upload(Path(__file__), "file.bin", 5)
    for number in range(45):
        body = {"newTitle": f"kernel {number:04d}", "slug": "alice/x", "kernelExecutionType": "QUICK_SAVE"}
        account.place.push(body)
        assert client.datasets.create(f"dataset-{number}", f"dataset {number}", [token]) == ""
    assert sorted(slug for slug, _ in client.kernels()) == [f"kernel-{number:04d}" for number in range(45)]
    assert len(set(client.datasets.own())) == 45


def test_a_kernel_that_is_not_shown_at_once_is_not_taken_for_deleted(account_at: Callable[..., Account]) -> None:
    """On a clock that runs an hour in a second, too: its session is waited for, and seen to its end."""
    account = account_at(scale=3600.0, kernel_hidden_wall_seconds=1.0)
    daemon = account.adapter()
    daemon.launch(account.request("uff-ufm-0001", "finish", seconds=36_000), account.now())
    states = set()
    while SessionState.ENDED not in states:
        states |= {seen.state for seen in daemon.find(["uff-ufm-0001"], account.now()).values()}
        account.patience.wait(0.05)
    assert account.place.sessions()[0].started_at is not None
    assert daemon.find(["uff-ufm-0001"], account.now())["uff-ufm-0001"].detail == "complete"


@pytest.mark.parametrize("remembered", [True, False])
def test_the_name_of_a_deleted_dataset_is_not_used_again_though_nobody_tells(
    account_at: Callable[..., Account], remembered: bool
) -> None:
    """Our own notes tell; without them a name that is taken, and that never shows, is left alone after one try."""
    account = account_at(tells_deleted=False)
    account.adapter().launch(account.request("uff-ufm-0001", "crash"), account.now())
    account.until("uff-ufm-0001", SessionState.ENDED)
    account.adapter().sweep(["uff-ufm-0001"], account.now() + 8 * 86_400)
    daemon = account.adapter() if remembered else account.adapter("lost", ready_seconds="0")
    if not remembered:
        with pytest.raises(Refused, match="is not visible after"):
            daemon.launch(account.request("uff-ufm-0002", "finish"), account.now())
        daemon = account.adapter("lost")
    daemon.launch(account.request("uff-ufm-0002", "finish"), account.now())
    assert [name[-2:] for name in account.place.storage.datasets] == ["-0", "-1"]


def test_what_the_place_says_of_itself_is_shown_as_one_short_line(account: Account) -> None:
    """Escape sequences would repaint a terminal, and a message of megabytes would fill every row that quotes it."""
    account.adapter().launch(account.request("uff-ufm-0001", "wait"), account.now())
    account.until("uff-ufm-0001", SessionState.RUNNING)
    account.place.sessions()[0].cut("ERROR", "\x1b[2Jred\r\n" + "x" * 100_000)
    detail = account.until("uff-ufm-0001", SessionState.ENDED).detail
    assert detail.startswith("error  [2Jred  xxx")
    assert detail.isprintable()
    assert len(detail) < 400


def test_books_of_a_week_that_is_over_are_no_books(account: Account) -> None:
    """Just after the refresh the old figures may still be told: nothing is launched on them."""
    week_end = account.adapter().read_quota(account.now())[0].end
    with pytest.raises(Unreachable, match="the week that ends"):
        account.adapter().read_quota(week_end)


def test_a_session_that_reaches_no_store_is_served_by_relay_from_any_store(
    account_at: Callable[..., Account], tmp_path: Path
) -> None:
    """Without internet a kernel cannot use signed addresses, and gets none; its data come from the daemon's store."""
    account = account_at()
    account.store.create("corpus/1/mixtures/ufm/train.bin", b"text")
    request = account.request("uff-ufm-0001", "finish", data="corpus/1/mixtures/ufm")
    signed = {"kind": "presigned", "posts": {"signed": "canary"}}
    request = replace(request, launch={**request.launch, "store": signed})
    options = {
        "emulator": account.server.address,
        "credentials": str(account.folder / "kaggle.json"),
        "pause_milliseconds": "0",
        "internet": "off",
    }

    def opened(folder: str, open_store: Callable[[], BlobStore] | None) -> Any:
        context = PlatformContext(
            tmp_path / folder,
            "python",
            Path(jobs.__file__).parent,
            clock=account.clock.payload_clock(),
            store_kind="s3",
            open_store=open_store,
        )
        return load("kaggle", options, context)

    with pytest.raises(Misconfigured, match="cannot be read from here"):
        opened("without", None).launch(request, account.now())
    platform = opened("with", lambda: account.store)
    assert not platform.capabilities.sees_stop_flag
    platform.launch(request, account.now())
    (source,) = [version.body["text"] for kernel in account.place.kernels.values() for version in kernel.versions]
    assert "canary" not in source
    until(
        lambda: platform.find([request.key], account.now())[request.key].state is SessionState.ENDED,
        "the end",
        every=0.01,
    )
    platform.collect("uff-ufm-0001", account.store, account.now())
    assert account.result("uff-ufm-0001")["checkpoint_step"] == 100
    assert "data ['train.bin']\n" in b"".join(platform.logs("uff-ufm-0001", 0, 1 << 20)).decode()
