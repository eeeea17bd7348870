"""The model that the tests of fine-tuning share."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lab.desk import Desk, make_model


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny model and its tokenizer."""
    pytest.importorskip("torch", reason="torch is not installed: `make test-train` tests fine-tuning")
    pytest.importorskip("peft")
    return make_model(tmp_path_factory.mktemp("model"), chat=True)


@pytest.fixture
def make_desk(tmp_path: Path, model: Path) -> Callable[..., Desk]:
    """Makes desks."""
    return lambda name, *options, **more: Desk(tmp_path / name, model, *options, **more)


@pytest.fixture(scope="session")
def odd_records() -> int:
    """How many odd records a fuzzer draws; the night draws more by FUZZ_RECORDS."""
    return int(os.environ.get("FUZZ_RECORDS", "600"))
