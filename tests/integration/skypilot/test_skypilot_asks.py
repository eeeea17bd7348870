"""What a pool's options become, who is told what, and what the doctor sees."""

import base64
import gzip
import json
import subprocess
import sys
from http.client import HTTPConnection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from platforms.base import Misconfigured, Refused
from platforms.registry import checkup
from scheduler.clock import real_now

if TYPE_CHECKING:
    from tests.integration.skypilot.conftest import World


def test_options_become_the_resources_of_a_task(world: "World") -> None:
    world.options = {
        "infra": "lambda/us-east-1", "accelerator": "H100", "use_spot": "yes", "image": "docker:pytorch/pytorch:2.9",
        "disk_size": "200", "cpus": "8+", "memory": "64+", "autodown_minutes": "7", "max_hourly_cost": "3.5",
    }  # fmt: skip
    world.launch("one")
    assert world.server.tasks[0]["resources"] == {
        "infra": "lambda/us-east-1", "accelerators": "H100:2", "use_spot": True, "disk_size": 200, "cpus": "8+",
        "image_id": "docker:pytorch/pytorch:2.9", "memory": "64+", "max_hourly_cost": 3.5,
        "autostop": {"idle_minutes": 7, "down": True},
    }  # fmt: skip


def test_the_launch_document_is_a_secret_of_the_task(world: "World") -> None:
    world.launch("one")
    task = world.server.tasks[0]
    document = json.loads(gzip.decompress(base64.b64decode(task["secrets"].pop("UFF_LAUNCH"))))
    assert document["run"] == "one"
    assert document["work_dir"] == "work"
    assert "lasting" not in json.dumps({**task, "run": task["run"].partition("<<'END'")[0]})


def test_a_launch_document_that_is_too_long_is_refused_for_good(world: "World") -> None:
    request = world.request("one")
    long = {**request.launch, "inputs": [f"{number * 7919:x}" * 3 for number in range(40_000)]}
    object.__setattr__(request, "launch", long)
    with pytest.raises(Refused, match="launch document") as refused:
        world.adapter().launch(request, int(real_now()))
    assert refused.value.permanent
    assert world.launches() == []


def test_a_launch_that_the_server_does_not_understand_is_refused_and_what_was_sent_is_not_told(world: "World") -> None:
    world.server.complains = True
    with pytest.raises(Refused, match=r"'cluster_name'.*Field required") as refused:
        world.launch("one")
    assert "UFF_LAUNCH" not in str(refused.value)
    world.server.complains = False
    world.launch("one")  # nothing is left of the first one
    assert len(world.server.tasks) == 1


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"use_spot": "maybe"}, "use_spot = 'maybe'"),
        ({"autodown_minutes": "0"}, "nothing would end a forgotten cluster"),
        ({"address": "ftp://server"}, "no plain http or https address"),
        ({"address": "https://me:secret@server"}, "no plain http or https address"),
        ({"address": "http://server", "token_file": "/x"}, "in the clear"),
        ({"infra": "aws; rm -rf"}, "infra = 'aws; rm -rf' is not usable"),
        ({"owner": "me"}, "owner = 'me'"),
        ({"region": "x"}, "unknown setting region"),
    ],
)
def test_a_bad_option_is_named_and_no_secret_with_it(world: "World", options: dict[str, str], says: str) -> None:
    with pytest.raises(Misconfigured, match=says) as error:
        world.adapter(**options)
    assert "secret" not in str(error.value)


def test_a_folder_of_this_machine_is_no_store_for_a_cloud(world: "World") -> None:
    request = world.request("one")
    object.__setattr__(request, "launch", {**request.launch, "store": {"kind": "directory"}})
    with pytest.raises(Misconfigured, match="cannot reach a folder"):
        world.adapter(infra="aws").launch(request, int(real_now()))
    world.adapter(infra="slurm/lab").launch(request, int(real_now()))


@pytest.mark.parametrize(
    ("token", "header"),
    [("sky_abc\n", "Bearer sky_abc"), ("me:word", f"Basic {base64.b64encode(b'me:word').decode()}")],
)
def test_a_token_is_read_from_its_file_and_sent(
    world: "World", tmp_path: Path, monkeypatch: pytest.MonkeyPatch, token: str, header: str
) -> None:
    (tmp_path / "token").write_text(token)
    sent: list[str] = []
    request = HTTPConnection.request

    def noting(connection: HTTPConnection, method: str, url: str, body: Any, headers: dict[str, str]) -> None:
        sent.append(headers["Authorization"])
        request(connection, method, url, body, headers)

    monkeypatch.setattr(HTTPConnection, "request", noting)
    world.adapter(token_file=str(tmp_path / "token")).find([], int(real_now()))
    assert set(sent) == {header}


def test_the_doctor_sees_server_clouds_price_and_clock_and_launches_nothing(world: "World") -> None:
    options = {"address": world.server.address, "infra": "slurm/lab", "accelerator": "H100"}
    found = {name: check() for name, check in checkup("skypilot", options, {}, real_now(), probe=False).items()}
    assert {name: one.grade for name, one in found.items()} == dict.fromkeys(found, "ok")
    assert found["server"].found == "SkyPilot 0.14.1 is healthy"
    assert found["catalogue"].found.startswith("one H100 from $2.50 an hour")
    assert world.server.tasks == []
    dear = checkup("skypilot", {**options, "max_hourly_cost": "1"}, {}, real_now(), probe=False)["catalogue"]()
    assert dear.grade == "bad"
    off = checkup("skypilot", {**options, "infra": "aws"}, {}, real_now(), probe=False)["clouds"]()
    assert (off.grade, off.found) == ("bad", "aws is not enabled, but slurm")


def test_nothing_of_skypilot_is_imported() -> None:
    script = "import sys, platforms.skypilot.adapter, platforms.skypilot.checkup; print('sky' in sys.modules)"
    told = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout
    assert told == "False\n"
