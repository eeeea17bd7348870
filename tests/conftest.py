"""What every test shares: a marker for its tier, repeatable properties, and the work tree it checks."""

import gc
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from sqlalchemy.engine import make_url

from scheduler.store.engine import Database, open_database
from tests.lab.crashes.postgresql import Server
from tests.lab.databases import new_database
from tests.lab.night import NIGHT, PUSH, register_profiles

TESTS = Path(__file__).parent
ROOT = TESTS.parent

register_profiles()

# A shell without job control lets the programs that it starts in the background ignore SIGINT, and these all others.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Tests start Python thousands of times: what it compiled is kept, also where the environment asks for the contrary.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False


# One worker runs these one after the other. A machine has one systemd, and whole daemons whose clocks are scaled must
# not compete with each other for its cores.
_IN_SERIES = {
    "tests/e2e/service/": "systemd",
    "tests/e2e/": "whole daemons",
    "tests/integration/kaggle/test_kaggle_rehearsal.py": "whole daemons",
    "tests/integration/sagemaker/test_sagemaker_rehearsal.py": "whole daemons",
}
# What waits longest begins first, so that the others fill the time; the shortest files end a run evenly.
_ORDER = (
    *_IN_SERIES,
    *("tests/conformance/test_platform.py", "tests/integration/", "tests/conformance/", "tests/simulation/"),
)
# These start processes, emulators or a planner again and again: too much work for `make test`, even without services.
_SLOW_INTEGRATION = """
    bridge/test_agents bridge/test_mcp
    kaggle/test_kaggle_acceptance kaggle/test_kaggle_crashes kaggle/test_kaggle_program kaggle/test_kaggle_rehearsal
    local_platform/ sagemaker/ skypilot/ targets/ web/test_approved_pictures web/test_web_api
    test_acceptance test_certify test_child_environment test_daemon_manager test_each_run_alone test_environment
    test_killed_submit test_local_payload test_lying_buckets test_manual_platform test_many_launches test_no_foresight
    test_odd_numbers test_payload_ test_planner_benchmark test_planner_oracle test_planner_process test_plugins
    test_scorers test_solver_process test_tracker_example
"""
_SLOW = (
    *("tests/e2e/", "tests/conformance/test_platform", "tests/conformance/test_no_answer"),
    *(f"tests/integration/{name}" for name in _SLOW_INTEGRATION.split()),
)
# Fixtures that start a server, a browser or a sandbox of this machine, or mount something as root.
_SERVICE_FIXTURES = {"browser", "lab", "postgresql", "sandbox", "sshd", "tiny_disk"}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let ``make test-nightly`` ask for everything."""
    parser.addoption("--nightly", action="store_true", help="run also what is marked nightly")


def pytest_configure(config: pytest.Config) -> None:
    """Choose how many examples of a property are tried."""
    settings.load_profile(NIGHT if config.getoption("--nightly") else PUSH)


# What speaks SQL itself is tried on both kinds of server with every push; the rest, whose SQL that is, in the night.
_ON_BOTH_SERVERS = ("tests/integration/test_store_", "tests/integration/old_databases", "tests/conformance/")


@pytest.hookimpl(tryfirst=True)  # before pytest selects by markers
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark each test with its tier, the folder under tests/ that it lies in; leave out what waits for the night."""
    for item in items:
        if item.path.is_relative_to(TESTS):
            item.add_marker(item.path.relative_to(TESTS).parts[0])
        if item.nodeid.startswith(_SLOW):
            item.add_marker("slow")
        if any(map(item.get_closest_marker, ("slow", "postgres"))) or needs_service(item):
            item.add_marker("services")
        if item.get_closest_marker("postgres") and not item.nodeid.startswith(_ON_BOTH_SERVERS):
            item.add_marker("nightly")
    if not config.getoption("--nightly"):
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("nightly")])
        items[:] = [item for item in items if not item.get_closest_marker("nightly")]
    if os.environ.get("PYTEST_XDIST_WORKER"):
        items.sort(key=lambda item: next((at for at, tier in enumerate(_ORDER) if item.nodeid.startswith(tier)), 99))


def needs_service(item: pytest.Item) -> bool:
    """Return whether a fixture of the test, or one that it depends on, starts a service."""
    return not _SERVICE_FIXTURES.isdisjoint(getattr(item, "fixturenames", ()))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test whose programs, as ``@pytest.mark.services("mix")`` names them, are not installed."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin"
    for program in (program for mark in item.iter_markers("services") for program in mark.args):
        if shutil.which(program, path=path) is None:
            pytest.skip(f"{program} is not installed (as root, .ci/services.sh installs it)")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fail a test of a service where the service is missing and CI is ``true``: there everything must be tried.

    What waits for the packages of `make test-nightly` may be left out.
    """
    report = yield
    is_of_service = (
        item.get_closest_marker("e2e")
        or needs_service(item)
        or any(mark.args for mark in item.iter_markers("services"))
    )
    if report.skipped and os.environ.get("CI") == "true" and is_of_service:
        report.outcome, report.longrepr = "failed", f"CI=true, and skipped: {report.longrepr}"
    return report


def pytest_collection_finish() -> None:
    """Keep the collector of garbage from looking through all tests again and again: a tenth of a run's time."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give each worker whole files, and a whole group of _IN_SERIES to one.

    xdist's own ``loadgroup`` writes the group into the test's name. Under pytest 9.2 such groups split, in silence.
    """
    from xdist.scheduler import LoadScopeScheduling

    class InSeries(LoadScopeScheduling):  # type: ignore[misc]  # xdist tells no types
        def _split_scope(self, nodeid: str) -> str:
            return _series_of(nodeid) or nodeid.split("::", 1)[0]

    return InSeries(config, log)


def _series_of(nodeid: str) -> str | None:
    return next((name for start, name in _IN_SERIES.items() if nodeid.startswith(start)), None)


@pytest.fixture(scope="session")
def repository() -> Path:
    """Root folder of the work tree."""
    return ROOT


@pytest.fixture(scope="session")
def postgresql() -> Iterator[str]:
    """URL of a PostgreSQL server of our own, on a socket in a temporary folder, with an empty database ``postgres``."""
    with Server.running() as server:
        yield server.url


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """URL of a database that does not hold anything yet, on each kind of server in turn."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'scheduler.db'}"
        return
    import psycopg

    # A schema of its own is as good as a database, and made a hundred times faster.
    server = make_url(request.getfixturevalue("postgresql"))
    with psycopg.connect(server.set(drivername="postgresql").render_as_string(), autocommit=True) as admin:
        admin.execute("CREATE SCHEMA test")
        yield server.update_query_dict({"options": "-c search_path=test"}).render_as_string()
        admin.execute("DROP SCHEMA test CASCADE")


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    """An empty database of the current schema, on each kind of server in turn."""
    file = make_url(database_url).database
    if database_url.startswith("sqlite:") and file:
        opened = new_database(Path(file))
    else:
        opened = open_database(database_url, create=True)
    yield opened
    opened.close()


@dataclass(frozen=True)
class S3Server:
    """A server that speaks S3 on this machine, and what it does not do as S3 does."""

    endpoint: str
    conditional_writes: bool
    forms: bool  # takes signed POST forms, which sessions write by
    region: str = "us-east-1"

    def client(self) -> Any:
        """Return a client with the credentials of a tester."""
        return _client(self.endpoint, self.region)

    def new_bucket(self) -> str:
        """Make an empty bucket and return its name."""
        name = f"uff-test-{next(_BUCKETS)}"
        self.client().create_bucket(Bucket=name)
        return name

    def options(self, **more: str) -> dict[str, str]:
        """Return the settings of an artifact store in a new bucket of this server."""
        create_only = "server" if self.conditional_writes else "client"
        address = {"endpoint": self.endpoint, "region": self.region, "create_only": create_only}
        return {"bucket": self.new_bucket(), **address, **more}


_BUCKETS = count(1)


@cache
def _client(endpoint: str, region: str) -> Any:
    from platforms.artifacts.s3.client import connect

    return connect("s3", region=region, endpoint=endpoint)


@pytest.fixture(scope="session")
def aws_credentials() -> Iterator[None]:
    """Pretended credentials, and no others, for every AWS client of the session."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            patch.delenv(name)
        patch.setenv("AWS_ACCESS_KEY_ID", "test")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "test-secret")
        patch.setenv("AWS_CONFIG_FILE", os.devnull)
        patch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        yield


@pytest.fixture(scope="session")
def moto_s3(aws_credentials: None) -> Iterator[S3Server]:
    """Moto's server, on a thread of this process: right about conditions, blind to signatures and digests."""
    server_module = pytest.importorskip("moto.moto_server.threaded_moto_server", reason="moto is not installed")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = server_module.ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield S3Server(f"http://{host}:{port}", conditional_writes=True, forms=True)
    server.stop()


@pytest.fixture(scope="session")
def rclone_s3(aws_credentials: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """Rclone's server, a process: checks signatures and digests, ignores conditions on writes."""
    program = shutil.which("rclone", path=str(Path(sys.executable).parent))
    if program is None:
        pytest.skip("rclone is not installed")
    folder = tmp_path_factory.mktemp("rclone")
    command = [program, "serve", "s3", "--auth-key", "test,test-secret", "--addr", "127.0.0.1:0", str(folder)]
    quiet = {"PATH": "", "HOME": str(folder), "RCLONE_CONFIG": ""}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=quiet) as process:
        assert process.stderr
        for line in process.stderr:
            if found := re.search(r"Starting s3 server on \[(http://127\.0\.0\.1:\d+)/?\]", line):
                break
        else:
            pytest.fail("rclone did not start")
        yield S3Server(found[1], conditional_writes=False, forms=False)
        process.kill()


@pytest.fixture(params=["moto", "rclone"])
def s3_server(request: pytest.FixtureRequest) -> S3Server:
    """Each of two servers that fail differently."""
    server: S3Server = request.getfixturevalue(f"{request.param}_s3")
    return server
