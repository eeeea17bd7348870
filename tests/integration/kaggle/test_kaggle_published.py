"""Models and datasets that Kaggle holds: pinned at submission, attached to its sessions, fetched for others."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jobs.inputs.folder import TreeError
from jobs.payload.store.transport import DirectoryTransport
from jobs.payload.store.tree import fetch_tree
from jobs.spec import Input, JobSpec
from platforms.base import Capabilities, Misconfigured, Refused
from platforms.registry import published
from scheduler.core.plan import Placement, PlannedLane
from scheduler.service.launch.inputs import trees_of, with_inputs
from scheduler.service.outside.ports import Ports
from scheduler.service.requests import queue
from scheduler.service.requests.stored import take_input
from scheduler.store import trees
from scheduler.store.engine import Database
from tests.lab.faults import Fault
from tests.lab.patience import until

Account = Any
MODEL = "org/tiny/pyTorch/base"
READS = """
import os, pathlib
for name in ("BASE", "TESTS"):
    given = pathlib.Path(os.environ[f"SCHED_INPUT_{name}"])
    print(name, "reads", (given / "a" / "words").read_text(), "of", given)
"""


@pytest.fixture
def held(account: Account) -> Account:
    """The account, with two versions of a model and of a dataset that others have published."""
    for word in ("first", "second"):
        files = {"config.json": b"{}", "a/words": f"{word} words".encode(), "a/b/empty": b""}
        account.place.published.add(MODEL, files)
        account.place.published.add("org/set", {"a/words": f"{word} set".encode(), "odd name.csv": b"1,2"})
    account.place.rules.page_max = 2
    return account


@pytest.fixture
def pin(held: Account, database: Database) -> Callable[[str], Input]:
    """Takes a source as ``queue add`` does, with the account."""

    def run(source: str, name: str = "base") -> Input:
        options = {"emulator": held.server.address, "credentials": str(held.folder / "kaggle.json")}
        return take_input(
            database, held.store, Input(name, source), 0, print, str, lambda: published("kaggle", options, {})
        )

    return run


def test_what_is_named_is_attached_by_version_and_read_where_kaggle_put_it(
    held: Account, pin: Callable[..., Input]
) -> None:
    base, tests = pin(f"kaggle-model:{MODEL}/1"), pin("kaggle-dataset:org/set", "tests")
    assert (base.kind, base.revision, base.files, base.bytes) == ("kaggle", "1", 3, 13)
    assert (tests.revision, tests.files) == ("2", 2), "the newest version is pinned"
    spec = JobSpec("ufm", "manager", ("x",), 100, 10.0, inputs=(base, tests))
    adapter = held.adapter()
    found = trees_of(spec, {}, adapter.capabilities)
    assert found == {"input.base": f"kaggle/{base.digest}", "input.tests": f"kaggle/{tests.digest}"}
    held.place.published.add("org/set", {"a/words": b"third set, of another length"})
    adapter.launch(held.request("uff-ufm-0001", "", command=["{python}", "-c", READS], trees=found), held.now())
    held.settle("uff-ufm-0001")
    output = held.output("uff-ufm-0001")
    assert "BASE reads first words of " in output, output
    assert "TESTS reads second set of " in output, output
    (pushed,) = [body for call, body in held.server.requests if call == "SaveKernel"]
    assert pushed["modelDataSources"] == [f"{MODEL}/1"]
    assert "org/set/2" in pushed["datasetDataSources"]


def test_a_push_without_its_model_is_ended_at_once(held: Account, pin: Callable[..., Input]) -> None:
    given = pin(f"kaggle-model:{MODEL}/2")
    held.place.published = type(held.place.published)(held.folder / "none")
    lane = {"command": ["{python}", "-c", READS], "trees": {"input.base": f"kaggle/{given.digest}"}}
    ended = held.adapter().launch(held.request("uff-ufm-0001", "", **lane), held.now())
    assert f"inputs not attached: {MODEL}/2" in ended.detail


def test_a_list_that_is_damaged_starts_nothing(held: Account, pin: Callable[..., Input]) -> None:
    given = pin(f"kaggle-model:{MODEL}/2")
    held.store.delete(f"kaggle/{given.digest}/listing.json")
    held.store.create(f"kaggle/{given.digest}/listing.json", b"{}")
    lane = {"command": ["{python}", "-c", READS], "trees": {"input.base": f"kaggle/{given.digest}"}}
    with pytest.raises(Refused, match="list of an input is damaged"):
        held.adapter().launch(held.request("uff-ufm-0001", "", **lane), held.now())


def test_other_pools_get_it_from_the_daemon_which_fetches_each_file_once(
    held: Account,
    pin: Callable[..., Input],
    make_ports: Callable[..., Ports],
    database: Database,
    tmp_path: Path,
) -> None:
    base, tests = pin(f"kaggle-model:{MODEL}/2"), pin("kaggle-dataset:org/set/1", "tests")
    spec = JobSpec("ufm", "manager", ("x",), 100, 10.0, inputs=(base, tests))
    queue.add(database, [spec], held.now(), "test")
    options = {"emulator": held.server.address, "credentials": str(held.folder / "kaggle.json")}
    ports = make_ports(
        platforms={"desk": SimpleNamespace(capabilities=Capabilities())},
        artifacts=held.store,
        scratch=tmp_path / "scratch",
    )
    placement = Placement("desk", 0, 9, (PlannedLane("ufm", 1, 9),))
    assert with_inputs(ports, [placement]) == []
    assert all("no account is configured" in why for why in ports.calls.failures().values())
    ports = replace(ports, published=lambda: published("kaggle", options, {}))
    held.place.faults.add("Output", Fault.DROP_AFTER_COMMIT)
    until(lambda: with_inputs(ports, [placement]), "the files of Kaggle")
    fetched = [call for call, _ in held.server.requests if call.startswith("Download")]
    assert len(fetched) == 5
    assert with_inputs(ports, [placement]) == [placement]
    assert [call for call, _ in held.server.requests if call.startswith("Download")] == fetched
    with database.read() as tx:
        found = trees_of(spec, trees.copies(tx))
    assert found is not None
    transport = DirectoryTransport(held.folder / "store")
    for purpose, word in (("input.base", "second words"), ("input.tests", "first set")):
        fetch_tree(transport, found[purpose], tmp_path / purpose)
        assert (tmp_path / purpose / "a" / "words").read_text() == word
    assert (tmp_path / "input.tests" / "odd name.csv").read_bytes() == b"1,2"


def test_what_kaggle_does_not_show_is_told_at_submission(held: Account, pin: Callable[..., Input]) -> None:
    for source in (f"kaggle-model:{MODEL}/3", "kaggle-dataset:org/none", "kaggle-dataset:org/set/9"):
        with pytest.raises(TreeError, match="or does not show it to alice"):
            pin(source)
    with pytest.raises(TreeError, match=r"no framework abacus\. Its frameworks are api, coral"):
        pin("kaggle-model:org/tiny/abacus/base/1")
    with pytest.raises(Misconfigured, match="no account is configured"):
        take_input(None, held.store, Input("base", "kaggle-dataset:org/set"), 0, print)  # type: ignore[arg-type]
