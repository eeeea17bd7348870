"""What pages keep: made once for all who ask at the same time, and never the error of somebody else."""

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import cast

import pytest

from scheduler.app import App
from scheduler.verbs.source import Source
from tests.lab.patience import PATIENCE_SECONDS


@pytest.fixture
def source() -> Source:
    return Source(cast("App", SimpleNamespace(settings=SimpleNamespace(zone="UTC"), reading=None)))


def test_who_asks_while_a_thing_is_made_waits_for_it(source: Source) -> None:
    begun, go_on = threading.Event(), threading.Event()
    made: list[str] = []

    def make() -> str:
        made.append(threading.current_thread().name)
        begun.set()
        assert go_on.wait(PATIENCE_SECONDS)
        return "page"

    with ThreadPoolExecutor(8) as readers:
        first = readers.submit(source.kept, "page", 1, make)
        assert begun.wait(PATIENCE_SECONDS)
        others = [readers.submit(source.kept, "page", 1, make) for _ in range(7)]
        go_on.set()
        assert {one.result(60) for one in (first, *others)} == {"page"}
    assert len(made) == 1


def test_an_error_is_its_makers_alone_and_the_next_one_makes_it_again(source: Source) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def fail() -> str:
        begun.set()
        assert go_on.wait(PATIENCE_SECONDS)
        raise ValueError("damaged")

    with ThreadPoolExecutor(2) as readers:
        first = readers.submit(source.kept, "page", 1, fail)
        assert begun.wait(PATIENCE_SECONDS)
        second = readers.submit(source.kept, "page", 1, lambda: "page")
        go_on.set()
        with pytest.raises(ValueError, match="damaged"):
            first.result(60)
        assert second.result(60) == "page"


def test_a_thing_is_made_once_for_each_version(source: Source) -> None:
    numbers = iter(range(9))
    assert [source.kept("picture", 1, lambda: next(numbers)) for _ in range(3)] == [0, 0, 0]
    assert source.kept("picture", 2, lambda: next(numbers)) == 1
