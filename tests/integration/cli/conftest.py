"""What the tests of the command line share: a folder with settings and a real database, and a way to type commands."""

import logging
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import structlog

from platforms.artifacts.directory import DirectoryStore
from scheduler.cli import main as entry
from scheduler.store.engine import Database
from tests.lab.databases import new_database
from tests.lab.patience import PATIENCE_SECONDS
from tests.lab.typed import Typed
from tests.lab.world import MODELS, NOW, SETTINGS, build, entry_of, spec, stored_checkpoint

__all__ = ["MODELS", "NOW", "SETTINGS", "entry_of", "spec", "stored_checkpoint"]  # for the tests of this folder

Schedctl = Callable[..., Typed]


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """Undo what `schedctl daemon` sets up for its whole process, which here is that of all tests.

    A call that a command waits for no longer ends first: what it says belongs to its own test.
    """
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        thread.join(timeout=PATIENCE_SECONDS)
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(capture=False)
    structlog.reset_defaults()


@pytest.fixture(autouse=True)
def as_wide_as_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever runs the tests: pytest-xdist says 80."""
    monkeypatch.setenv("COLUMNS", "160")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with settings and models; the state folder below it has no database yet."""
    (tmp_path / "config.toml").write_text(SETTINGS)
    (tmp_path / "models.toml").write_text(MODELS)
    monkeypatch.setenv("SCHEDCTL_CONFIG", str(tmp_path / "config.toml"))
    monkeypatch.setenv("USER", "tester")
    monkeypatch.delenv("SUDO_USER", raising=False)
    return tmp_path


@pytest.fixture
def schedctl(home: Path, capsys: pytest.CaptureFixture[str]) -> Schedctl:
    """Type a command line, in this process; returns what it did."""

    def typed(*words: str) -> Typed:
        capsys.readouterr()
        code = entry.main(words)
        out, err = capsys.readouterr()
        return Typed(code, out, err)

    return typed


@pytest.fixture
def database(home: Path) -> Iterator[Database]:
    """The empty database of ``home``."""
    opened = new_database(home / "state" / "scheduler.db")
    yield opened
    opened.close()


@pytest.fixture
def artifacts(home: Path) -> DirectoryStore:
    """The artifact store of ``home``."""
    return DirectoryStore(home / "state" / "artifacts")


@pytest.fixture
def world(database: Database, home: Path, state_of_world: Path) -> Database:
    """A week in its middle.

    uff-main and ufm share the running session uff-uff-main-0001 on kaggle, ucm waits for quota, urm is held, ulm is
    done after the ended session uff-ulm-0001, whose checkpoint at step 500 is in the store.
    """
    database.close()  # its file is replaced
    shutil.copytree(state_of_world, home / "state", dirs_exist_ok=True, copy_function=shutil.copy)
    return database


@pytest.fixture(scope="session")
def state_of_world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The state folder of ``world``, made once and copied: that takes no tenth of making it."""
    state = tmp_path_factory.mktemp("world") / "state"
    build(state)
    return state
