"""Two daemons on one PostgreSQL, in real processes: one leads, the other takes over, and nothing is launched twice."""

import signal
from collections.abc import Callable, Iterator

import pytest

from tests.lab.crashes.audit import audit
from tests.lab.crashes.cluster import LEASE_SECONDS, Cluster
from tests.lab.crashes.postgresql import Server
from tests.lab.crashes.stage import Stage
from tests.lab.patience import until

pytestmark = pytest.mark.postgres


@pytest.fixture
def server() -> Iterator[Server]:
    """A server that a test may kill."""
    with Server.running(durable=True) as server:
        yield server


@pytest.fixture
def cluster(make_stage: Callable[..., Stage], server: Server) -> Cluster:
    """Two daemons, the first of which leads and trains."""
    cluster = Cluster(make_stage(hours=500.0), server)
    cluster.start_both()
    return cluster


@pytest.mark.parametrize("way", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "hung"])
def test_another_daemon_takes_over_within_two_lease_lengths(cluster: Cluster, way: signal.Signals) -> None:
    """By the database's clock. What trained trains on under the same keys; who was only hung leaves when it wakes."""
    before = cluster.stage.live()
    struck = cluster.clock()
    cluster.daemons["a"].send_signal(way)
    until(lambda: cluster.leader() == "b", "the takeover")
    assert cluster.clock() - struck <= 2 * LEASE_SECONDS
    until(lambda: "daemon.started" in cluster.said("b"), "the first words of the new leader")
    known = len(cluster.stage.manifests())
    cluster.stage.until_saved(count=known + 2)
    assert all(cluster.stage.live().get(key, claim) == claim for key, claim in before.items())
    if way == signal.SIGSTOP:
        cluster.daemons["a"].send_signal(signal.SIGCONT)
        ended = cluster.stage.ended(cluster.daemons["a"], seconds=60)
        assert ended.code == 8, ended.err
        assert "another daemon acquired the lease" in ended.err
        assert "Traceback" not in ended.err
    cluster.settle("b")
    assert audit(cluster.stage).all == []


def test_a_leader_that_leaves_hands_over_at_once_and_the_one_that_waits_can_be_stopped(cluster: Cluster) -> None:
    """SIGTERM of the leader gives the lease back; SIGTERM of the one that stands by ends it without a word of error."""
    third = cluster.daemons["b"]
    third.terminate()
    ended = cluster.stage.ended(third)
    assert ended.code == 0, ended.err
    assert "Traceback" not in ended.err
    cluster.start("b")
    until(lambda: "daemon.standing_by" in cluster.said("b"), "the daemon that stands by")
    cluster.daemons["a"].terminate()
    assert cluster.stage.ended(cluster.daemons["a"]).code == 0
    until(lambda: cluster.leader() == "b", "the takeover")
    cluster.settle("b")
    assert audit(cluster.stage).all == []


def test_the_leader_outlives_a_server_that_is_killed_and_comes_back(cluster: Cluster) -> None:
    """Kill -9 of PostgreSQL: sessions train on, the daemon says what is wrong, and goes on when it is there again."""
    before = cluster.stage.live()
    cluster.server.kill()
    known = len(cluster.stage.manifests())  # sessions last seconds here: they may be over when the daemon complains
    until(lambda: "cycle.failed" in cluster.said("a"), "the daemon's complaint")
    cluster.stage.until_saved(count=known + 1)
    cluster.server.start()
    leader = until(cluster.leader, "a leader")
    assert all(daemon.poll() is None for daemon in cluster.daemons.values())
    assert all(cluster.stage.live().get(key, claim) == claim for key, claim in before.items())
    until(lambda: _steps(cluster) >= known + 1, "what was saved meanwhile in the database")
    other = cluster.daemons["b" if leader == "a" else "a"]
    other.terminate()
    cluster.stage.ended(other)
    cluster.settle(leader)
    assert audit(cluster.stage).all == []


def _steps(cluster: Cluster) -> int:
    database = cluster.database()
    try:
        with database.read() as tx:
            return int(tx.exec_driver_sql("SELECT count(*) FROM checkpoints").scalar_one())
    finally:
        database.close()
