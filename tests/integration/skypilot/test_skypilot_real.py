"""A real SkyPilot drives our own Slurm by the adapter; and the stand-in of its server answers as it does."""

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from platforms.base import HourPrice, LaunchRequest, Platform, SessionState
from platforms.registry import PlatformContext, checkup, load
from platforms.skypilot.server import ApiServer
from platforms.skypilot.settings import read_settings
from scheduler.clock import real_now
from tests.lab.conformance import AGENT
from tests.lab.patience import until
from tests.lab.sky_server import SkyServer
from tests.lab.skypilot import SkyLab, sky_lab

if TYPE_CHECKING:
    from platforms.base import Observed

pytestmark = pytest.mark.nightly
OWNER = "0badcafe"
OVER = (SessionState.ENDED, SessionState.ABSENT)


@pytest.fixture(scope="module")
def lab() -> Iterator[SkyLab]:
    with sky_lab() as made:
        yield made


class Pool:
    """A pool at the real server."""

    def __init__(self, lab: SkyLab, folder: Path) -> None:
        (folder / "bundle" / "payload").mkdir(parents=True)
        (folder / "bundle" / "payload" / "agent.py").write_text(AGENT)
        self.lab, self.folder = lab, folder

    def adapter(self, **options: str) -> Platform:
        """A new adapter."""
        context = PlatformContext(self.folder / "state", sys.executable, self.folder / "bundle", sessions_max=4)
        return load("skypilot", {**self.lab.options(OWNER), **options}, context)

    def launch(self, key: str, *, lasting: bool = True, works: bool = True) -> "Observed":
        """Launch a session."""
        self.lab.prepare(key, OWNER, works=works)
        launch = {"format": 1, "run": key, "lasting": lasting, "lanes": [{"devices": [0]}]}
        request = LaunchRequest(key, "pool", 1, int(real_now()) + 3600, launch, "", {})
        return self.adapter().launch(request, int(real_now()))

    def until(self, key: str, *states: SessionState) -> "Observed":
        """Wait for a state, as long as a busy machine takes to make a cluster."""

        def find() -> "Observed | None":
            seen = self.adapter().find([key], int(real_now())).get(key)
            return seen if seen is not None and seen.state in states else None

        return until(find, f"{key} to be {states}", seconds=1200, every=2)


def test_a_real_skypilot_launches_shows_takes_back_and_ends_sessions(lab: SkyLab, tmp_path: Path) -> None:
    pool = Pool(lab, tmp_path)
    found = {name: one() for name, one in checkup("skypilot", lab.options(OWNER), {}, real_now(), probe=False).items()}
    assert {name: one.grade for name, one in found.items()} == dict.fromkeys(found, "ok")
    assert found["catalogue"].found.startswith("one H100 from $2.50")
    (price,) = pool.adapter().read_quota(int(real_now()))
    assert isinstance(price, HourPrice)
    assert price.microdollars == 2_500_000

    for key in ("kept", "taken"):
        pool.launch(key)
    pool.launch("done", lasting=False)
    pool.launch("broken", works=False)
    kept, taken = (pool.until(key, SessionState.RUNNING) for key in ("kept", "taken"))
    assert pool.launch("kept") == kept
    until(lambda: b"".join(pool.adapter().logs("kept", 0, 100)) == b"hello from kept\n", "its hello")

    server = ApiServer(read_settings(lab.options(OWNER), tmp_path))
    real = answers(server, f"uff-{OWNER}-kept")
    with SkyServer(tmp_path / "cloud") as stand_in:
        stood = answers(server_with(stand_in, tmp_path), f"uff-{OWNER}-kept")
    assert differences(stood, real) == []

    # A job that is done, or whose machine could not be set up, leaves no machine behind.
    assert pool.until("done", *OVER).told
    assert b"".join(pool.adapter().logs("done", 0, 100)) == b"hello from done\n"
    broken = pool.until("broken", *OVER)
    assert broken.state is SessionState.ENDED
    assert set(server.clusters()) == {f"uff-{OWNER}-kept", f"uff-{OWNER}-taken"}

    # An administrator takes the machine; the records go on saying that it is up.
    job = lab.slurm.say("squeue", "-h", "-o", "%A", "-n", f"uff-{OWNER}-taken-{OWNER}").strip()
    lab.slurm.say("scancel", job)
    gone = pool.until("taken", *OVER)
    assert (gone.state, gone.started, gone.told) == (SessionState.ENDED, taken.started, False)

    assert [one.key for one in pool.adapter().orphans((), int(real_now()))] == ["kept"]
    pool.adapter().stop("kept", int(real_now()), force=True)
    ended = pool.until("kept", *OVER)
    assert ended.told
    assert "by SkyPilot's estimate" in ended.detail
    assert server.clusters() == {}
    assert lab.slurm.say("squeue", "-h").strip() == ""


def test_a_cluster_that_nobody_looks_after_takes_itself_down(lab: SkyLab, tmp_path: Path) -> None:
    pool = Pool(lab, tmp_path)
    pool.launch("alone", lasting=False)
    server = ApiServer(read_settings(lab.options(OWNER), tmp_path))
    until(lambda: f"uff-{OWNER}-alone" in server.clusters(), "its cluster", seconds=600, every=2)
    until(lambda: not server.clusters(), "its end", seconds=600, every=2)
    ended = pool.until("alone", *OVER)
    assert ended.state is SessionState.ENDED
    assert not ended.told


def server_with(stand_in: SkyServer, folder: Path) -> ApiServer:
    """Return the stand-in with a session in it."""
    server = ApiServer(read_settings({"address": stand_in.address, "owner": OWNER}, folder))
    resources = {"accelerators": "H100:1", "autostop": {"idle_minutes": 1, "down": True}}
    task = {"name": "kept", "resources": resources, "run": "echo hello from kept", "secrets": {}}
    server.launch(f"uff-{OWNER}-kept", task)
    until(lambda: [one for one in server.clusters().values() if one.status == "UP"], "its cluster")
    until(lambda: server.log(f"uff-{OWNER}-kept") == b"hello from kept\n", "its hello")
    return server


def answers(server: ApiServer, name: str) -> dict[str, Any]:
    """Return what a server answers to the questions of the adapter, as it says it."""
    ask, nobody = server._call, f"{name}-nobody"
    words = {"cluster_names": [name], "refresh": "NONE", "all_users": True, "summary_response": True}
    queue = {"skip_finished": False, "all_users": True}
    requests = json.loads(server._send("GET", f"/api/status?all_status=true&cluster_name={name}").body)
    health, _ = server.health()
    prices = ask(
        "/list_accelerators", "sky.list_accelerators", gpus_only=True, name_filter="^H100$", region_filter=None,
        quantity_filter=1, clouds=["slurm"], all_regions=False, require_price=True, case_sensitive=False,
    )  # fmt: skip
    return {
        "status": ask("/status", "sky.status", **words),
        "status of nobody": ask("/status", "sky.status", **{**words, "cluster_names": [nobody]}),
        "queue": ask("/queue", "sky.queue", cluster_name=name, **queue),
        "queue of nobody": failure(server, "/queue", "sky.queue", cluster_name=nobody, **queue),
        "down of nobody": failure(server, "/down", "sky.down", cluster_name=nobody),
        "log": server.log(name).decode(),
        "log of nobody": failure(server, "/logs", "sky.logs", cluster_name=nobody, job_id=None, follow=False, tail=0),
        "costs": [one for one in ask("/cost_report", "sky.cost_report", days=2) if one["name"] == name],
        "requests": [one for one in requests if one["name"] == "sky.launch"],
        "prices": prices,
        "clouds": server.clouds(),
        "health": dict(health),
    }


def failure(server: ApiServer, path: str, name: str, **words: Any) -> str:
    """Return as what a request fails."""
    with pytest.raises(Exception, match="does not exist") as error:
        server._call(path, name, **words)
    return type(error.value).__name__


def differences(stood: Any, real: Any, where: str = "") -> list[str]:
    """Return where the stand-in says what the real one does not, or as another type. It may say less."""
    if isinstance(stood, Mapping) and isinstance(real, Mapping):
        lacking = [f"{where}/{name}: not said" for name in stood if name not in real]
        both = [name for name in stood if name in real]
        return lacking + [one for name in both for one in differences(stood[name], real[name], f"{where}/{name}")]
    if isinstance(stood, list) and isinstance(real, list):
        if bool(stood) != bool(real):
            return [f"{where}: {len(stood)} and {len(real)} of them"]
        return differences(stood[0], real[0], f"{where}[0]") if stood else []
    numbers = isinstance(stood, int | float) and isinstance(real, int | float)
    same = numbers or type(stood) is type(real)
    return [] if same else [f"{where}: {stood!r} and {real!r}"]
