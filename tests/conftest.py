"""What every test shares: a marker for its tier, repeatable properties, and the work tree it checks."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from scheduler.store.engine import Database, open_database, upgrade

TESTS = Path(__file__).parent
ROOT = TESTS.parent

# No deadline: a slow machine is no failure. Derandomised: a red run stays red when repeated.
settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.load_profile("repeatable")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test with its tier, the folder under tests/ that it lies in."""
    for item in items:
        if item.path.is_relative_to(TESTS):
            item.add_marker(item.path.relative_to(TESTS).parts[0])


@pytest.fixture(scope="session")
def repository() -> Path:
    """Root folder of the work tree."""
    return ROOT


@pytest.fixture(scope="session")
def postgresql() -> Iterator[str]:
    """URL of a PostgreSQL server of our own, on a socket in a temporary folder, with an empty database ``postgres``."""
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    installed = [str(path) for path in sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))]
    initdb = installed[-1] if installed else shutil.which("initdb")
    if initdb is None:
        pytest.skip("no PostgreSQL server programs")
    programs = Path(initdb).parent
    # The server refuses to run as root, and a socket's path must be short.
    folder = Path(tempfile.mkdtemp(prefix="pg-"))
    as_server = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
    if as_server:
        shutil.chown(folder, "postgres")

    def run(program: str, *options: str) -> None:
        command = [*as_server, str(programs / program), "-D", str(folder / "data"), *options]
        subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)

    try:
        run("initdb", "--no-sync", "-U", "postgres", "-A", "trust", "-E", "UTF8")
        server = f"-k {folder} -c listen_addresses= -c fsync=off"
        run("pg_ctl", "start", "-w", "-l", str(folder / "log"), "-o", server)
        yield f"postgresql+psycopg://postgres@/postgres?host={folder}"
        run("pg_ctl", "stop", "-m", "immediate")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """URL of a database that does not hold anything yet, on each kind of server in turn."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'scheduler.db'}"
        return
    import psycopg
    from sqlalchemy.engine import make_url

    # A schema of its own is as good as a database, and made a hundred times faster.
    server = make_url(request.getfixturevalue("postgresql"))
    with psycopg.connect(server.set(drivername="postgresql").render_as_string(), autocommit=True) as admin:
        admin.execute("CREATE SCHEMA test")
        yield server.update_query_dict({"options": "-c search_path=test"}).render_as_string()
        admin.execute("DROP SCHEMA test CASCADE")


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    """An empty database of the current schema, on each kind of server in turn."""
    upgrade(database_url)
    opened = open_database(database_url)
    yield opened
    opened.close()
