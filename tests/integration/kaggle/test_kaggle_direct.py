"""Direct mode: a session reaches an S3 store by signed addresses, and its checkpoint goes on anywhere."""

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

import jobs
from platforms.artifacts.base import BlobStore, Grant, open_store
from platforms.base import LaunchRequest, SessionState, StopChannel
from platforms.kaggle.kernel.packing import SOURCE_BYTES_MAX, order_of
from platforms.registry import PlatformContext, load
from tests.lab.patience import until_state

Account = Any
S3Server = Any  # see tests/conftest.py
DATA = "corpus/1/mixtures/ufm"
LASTS_SECONDS = 3_600


@pytest.fixture
def store(moto_s3: S3Server, tmp_path: Path) -> BlobStore:
    """An object store with training data in it."""
    made = open_store("s3", tmp_path / "notes", moto_s3.options(prefix="uff/"))
    made.put(f"{DATA}/train.bin", b"text")
    return made


def direct(account: Account, store: BlobStore, key: str, training: str, attempt: int = 1) -> LaunchRequest:
    """A launch as the daemon makes it: rights for this run alone, and every checkpoint to choose from."""
    manifests = sorted((found for found in store.keys("jobs/ufm/manifests/")), reverse=True)
    reads = [f"runs/{key}/stop", *(f"runs/{key}/lane-0/{name}.json" for name in ("heartbeat", "result"))]
    grant = Grant(key, ("ufm",), (*reads, *store.keys("jobs/")), (DATA,), LASTS_SECONDS)
    request: LaunchRequest = account.request(key, training, attempt=attempt, data=DATA, restore=manifests)
    return replace(request, launch={**request.launch, "store": store.payload_address(grant)})


def result(store: BlobStore, key: str) -> dict[str, Any]:
    return dict(json.loads(store.read(f"runs/{key}/lane-0/result.json")))


def test_a_checkpoint_made_on_kaggle_goes_on_elsewhere_and_comes_back(
    account_at: Callable[..., Account], store: BlobStore, tmp_path: Path
) -> None:
    """Stopped on Kaggle by the flag in the store, ended on this machine, and read again on Kaggle."""
    account = account_at()
    first = account.adapter(store_kind="s3")
    first.launch(direct(account, store, "uff-ufm-0001", "wait"), account.now())
    account.until_said("uff-ufm-0001", "resumed from")
    seen = first.find(["uff-ufm-0001"], account.now())["uff-ufm-0001"]
    assert (seen.state, seen.stop_channel) == (SessionState.RUNNING, StopChannel.STORE)
    store.put("runs/uff-ufm-0001/stop", json.dumps({"reason": "hold", "lane": None}).encode())
    assert account.until("uff-ufm-0001", SessionState.ENDED).detail == "complete"
    assert (result(store, "uff-ufm-0001")["outcome"], result(store, "uff-ufm-0001")["checkpoint_step"]) == (
        "yielded",
        50,
    )
    assert "data ['train.bin']" in account.output("uff-ufm-0001")
    # Nothing was relayed: the only dataset is the code.
    assert {slug.split("-")[1] for slug in account.place.storage.datasets} == {"code"}
    first.collect("uff-ufm-0001", account.store, account.now())
    assert list(account.store.keys("")) == []

    context = PlatformContext(tmp_path / "local", sys.executable, Path(jobs.__file__).parent)
    local = load("local", {}, context)
    local.launch(direct(account, store, "uff-ufm-0002", "finish", 2), account.now())
    until_state(lambda: local.find(["uff-ufm-0002"], account.now()).get("uff-ufm-0002"), SessionState.ENDED)
    second = result(store, "uff-ufm-0002")
    assert (second["outcome"], second["restored_step"], second["checkpoint_step"]) == ("finished", 50, 100)

    third = direct(account, store, "uff-ufm-0003", "finish", 3)
    third.launch["lanes"][0]["target_step"] = 200
    first.launch(third, account.now())
    account.until("uff-ufm-0003", SessionState.ENDED)
    assert "resumed from weights of step 100" in account.output("uff-ufm-0003")
    assert result(store, "uff-ufm-0003")["checkpoint_step"] == 200


def test_rights_to_thousands_of_objects_travel_packed_and_last_no_longer_than_the_session(
    account: Account, store: BlobStore
) -> None:
    request = direct(account, store, "uff-ufm-0001", "finish")
    address = request.launch["store"]
    one = next(iter(address["folders"][DATA].values()))
    many = {f"jobs/ufm/blobs/{number:064x}": one.replace("train.bin", f"{number:064x}") for number in range(4_000)}
    launch = {**request.launch, "store": {**address, "gets": {**many, **address["gets"]}}}
    assert len(json.dumps(launch)) > SOURCE_BYTES_MAX
    account.adapter().launch(replace(request, launch=launch), account.now())
    account.until("uff-ufm-0001", SessionState.ENDED)
    assert result(store, "uff-ufm-0001")["outcome"] == "finished", account.output("uff-ufm-0001")
    (body,) = [body for call, body in account.server.requests if call == "SaveKernel"]
    assert len(body["text"]) < SOURCE_BYTES_MAX / 2
    order = order_of(body["text"])
    assert order["launch"]["store"] == launch["store"]
    assert not order["relays"]
    # What travels opens nothing but this session's own, and not for ever.
    words = json.dumps(order)
    assert "test-secret" not in words
    assert {parse_qs(urlsplit(url).query).get("X-Amz-Expires", ["?"])[0] for url in many.values()} == {"3600"}
    # A daemon whose records are lost still knows whose kernel it is.
    assert account.adapter("other-state").find(["uff-ufm-0001"], account.now())["uff-ufm-0001"].detail == "complete"
    assert account.adapter("other-state").find(["uff-ufm-0001"], account.now())["uff-ufm-0001"].stop_channel == "store"
