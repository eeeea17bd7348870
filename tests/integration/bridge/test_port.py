"""`schedctl port`: every verb over real pipes, events without a gap, and an end with the input."""

from __future__ import annotations

import json
import os
import signal
from typing import TYPE_CHECKING, Any

import pytest

from scheduler.bridge.port import FRAME_MAX_BYTES, OF_THE_PORT
from scheduler.clock import real_now
from scheduler.store import events
from scheduler.verbs.table import VERBS
from tests.lab.crashes.processes import working_for
from tests.lab.patience import until
from tests.lab.port import PortClient, talking
from tests.lab.web.site import served
from tests.lab.web.world import World, write_world

if TYPE_CHECKING:
    from pathlib import Path

JOB = {
    "name": "tiny",
    "role": "manager",
    "command": ["{python}", "train.py"],
    "target_step": 500,
    "steps_per_hour": 1000.0,
}


def test_the_first_frame_says_what_can_be_asked(port: PortClient) -> None:
    assert port.hello["protocol"] == 1
    assert port.hello["frame_bytes_max"] == FRAME_MAX_BYTES
    assert set(port.hello["capabilities"]) == {*VERBS, *OF_THE_PORT}
    assert port.ask("hello") == port.hello


def test_reads_answer_what_the_json_api_answers(world: World, port: PortClient) -> None:
    """One model of shapes: the same question gives the same document."""
    with served(world) as site:
        asked: list[tuple[str, dict[str, Any], str]] = [
            ("queue.list", {"rows": 5}, "/queue?rows=5"),
            ("queue.show", {"job": "uff-main"}, "/jobs/uff-main"),
            ("runs.list", {"rows": 5}, "/runs?rows=5"),
            ("plan.show", {}, "/plan"),
            ("models.list", {}, "/models"),
        ]
        for verb, args, path in asked:
            api, said = site.json(f"/api/v1{path}"), port.ask(verb, **args)
            assert set(said) == set(api), verb
            for key in ("jobs", "runs", "plan", "models", "spec", "checkpoints"):
                if key in api:
                    assert said[key] == api[key], (verb, key)
        status, said = site.json("/api/v1/status"), port.ask("status")
        assert {**said, "now": 0, "work": 0} == {**status, "now": 0, "work": 0}
        quotas, said = site.json("/api/v1/quota"), port.ask("quota")
        assert [one["pool"] for one in said["quotas"]] == [one["pool"] for one in quotas["quotas"]]


def test_a_run_its_log_and_the_week_can_be_read(port: PortClient) -> None:
    key = port.ask("runs.list", rows=1)["runs"][0]["key"]
    assert port.ask("runs.show", run=key)["key"] == key
    assert port.ask("runs.log", run=key)["key"] == key
    assert port.ask("report.weekly", week="this")["label"]
    assert port.ask("training")["jobs"]
    assert port.ask("plan.explain", job="m0001")["job"] == "m0001"
    assert "placements" in json.dumps(port.ask("plan.preview"))
    assert port.ask("plan.preview", weights={"m0001": 2.0})["warnings"] == [], "of options that nobody typed"


def test_jobs_are_changed_in_the_name_of_the_user(world: World, port: PortClient) -> None:
    port.ask("queue.add", definition=JOB)
    assert port.ask("queue.hold", job="tiny", why="too warm")["job"]["state"] == "held"
    assert port.refused("queue.hold", job="tiny")["exit_code"] == 6
    assert port.ask("queue.release", job="tiny")["job"]["state"] == "queued"
    assert port.ask("queue.priority", job="tiny", weight=2.5)["job"]["weight"] == 2.5
    assert port.ask("queue.cancel", job="tiny")["job"]["state"] == "cancelled"
    with world.database.read() as tx:
        told = events.tail(tx, kinds=("job.hold",), subject="tiny")[-1]
    assert told.by == port.hello["user"]
    assert "too warm" in json.dumps(told.data)
    assert port.refused("queue.add", definition=JOB)["exit_code"] == 6  # never twice under one name


def test_a_script_is_submitted_from_its_folder_and_never_tried_here(tmp_path: Path, port: PortClient) -> None:
    script = tmp_path / "train.py"
    script.write_text("raise SystemExit('this must not run')\n")
    (tmp_path / "json.py").write_text("raise SystemExit('nor this: the folder of a user')\n")
    shown = port.ask("submit", script=str(script), target_step=10, name="here", dry_run=True)
    assert shown["jobs"][0]["code"] == str(tmp_path)
    assert [job["name"] for job in port.ask("queue.list", name="here")["jobs"]] == []
    port.ask("submit", script=str(script), target_step=10, name="here", arguments=["--json", "--lr", "-1"])
    assert port.ask("queue.show", job="here")["spec"]["command"][1:] == ["train.py", "--json", "--lr", "-1"]
    assert "must be absolute" in port.refused("submit", script="train.py", target_step=10)["message"]


@pytest.mark.parametrize(
    ("verb", "args", "code", "words"),
    [
        ("dance", {}, 2, "no verb 'dance'"),
        ("queue.show", {}, 2, "job"),
        ("queue.show", {"job": 3}, 2, "job"),
        ("queue.show", {"job": "nobody"}, 5, "nobody"),
        ("queue.list", {"page": 0}, 2, "page"),
        ("queue.list", {"pgae": 1}, 2, "pgae"),
        ("queue.priority", {"job": "m0001", "weight": -1}, 2, "range"),
        ("runs.show", {"run": "nobody-1"}, 5, "nobody-1"),
        ("models.show", {"version": "ufm"}, 5, "ufm"),
        ("models.promote", {"version": "ufm@3"}, 5, "ufm"),
        ("models.deploy", {"version": "ufm@3", "target": "nowhere"}, 5, "nowhere"),
        ("report.weekly", {"week": "2026-W99"}, 2, "no week"),
        ("queue.add", {}, 2, "definition"),
        ("queue.add", {"definition": {"name": "x", "target_step": None}}, 2, "job file"),
        ("queue.add", {"definition": {"name": "x"}}, 3, "command: is missing"),
        ("plan.preview", {"pools": {"nowhere": 3}}, 5, "nowhere"),
        ("unsubscribe", {"subscription": 99_999}, 2, "no subscription"),
        ("log.subscribe", {"run": "nobody-1"}, 5, "nobody-1"),
    ],
)
def test_what_cannot_be_done_is_said_with_its_exit_code(
    port: PortClient, verb: str, args: dict[str, Any], code: int, words: str
) -> None:
    told = port.refused(verb, **args)
    assert (told["exit_code"], words in told["message"]) == (code, True), told


def test_events_are_sent_once_in_order_and_nothing_is_missed_between_two_ports(world: World) -> None:
    """The position that the last batch named is where the next port goes on, whatever happened meanwhile."""
    seen: list[int] = []
    with talking(world.config) as first:
        began = first.ask("events.subscribe", after=0)
        with world.database.read() as tx:
            known = [event.id for event in events.tail(tx, 0, 10_000)]
        seen += [event["id"] for event in first.events(began["subscription"], len(known))]
        assert seen == known
        world.change()
        seen += [event["id"] for event in first.events(began["subscription"], 1)]
        os.kill(first.process.pid, signal.SIGKILL)
    for _ in range(300):
        world.change()
    with talking(world.config) as second:
        began = second.ask("events.subscribe", after=seen[-1])
        seen += [event["id"] for event in second.events(began["subscription"], 300)]
    assert len(seen) == len(set(seen))
    assert seen == sorted(seen)
    with world.database.read() as tx:
        assert seen == [event.id for event in events.tail(tx, 0, 10_000)]


def test_a_subscription_to_kinds_and_one_from_now_on(world: World, port: PortClient) -> None:
    none = port.ask("events.subscribe", kinds=["nothing.such"])["subscription"]
    now = port.ask("events.subscribe", subject="bench")["subscription"]
    world.change()
    (event,) = port.events(now, 1)
    assert (event["kind"], event["subject"]) == ("bench.changed", "bench")
    assert port.ask("unsubscribe", subscription=now) == {}
    world.change()
    last = port.ask("events.subscribe")
    world.change()
    assert len(port.events(last["subscription"], 1)) == 1
    assert [frame for frame in port.unasked if frame.get("subscription") in {none, now}] == []


def test_events_that_were_removed_are_told_as_missed(tmp_path: Path) -> None:
    world = write_world(tmp_path, 12, 20, int(real_now()))
    with world.database.write() as tx:
        gone = events.prune(tx, world.now - 86_400, 5)
    assert gone > 1
    with talking(world.config) as client:
        assert client.ask("events.list", after=0)["missed_up_to"] == gone
        assert client.ask("events.subscribe", after=1)["missed_up_to"] == gone
        assert client.ask("events.subscribe", after=gone)["missed_up_to"] == 0
    world.database.close()


def test_the_log_of_a_session_is_followed_to_its_end(port: PortClient) -> None:
    ended = next(run for run in port.ask("runs.list", rows=20)["runs"] if run["state"] == "ended")
    began = port.ask("log.subscribe", run=ended["key"])
    while not (frames := [one for one in port.unasked if one.get("subscription") == began["subscription"]]):
        port.unasked.append(port.read())
    assert frames[-1]["log"]["ended"] or frames[-1]["log"]["why"]


def test_slow_requests_do_not_keep_fast_ones_waiting(port: PortClient) -> None:
    slow = port.send("plan.preview")
    fast = port.send("hello")
    assert port.read()["tag"] == fast
    assert "ok" in port.answer(slow)


def test_nothing_but_frames_is_written_to_standard_output(world: World, tmp_path: Path) -> None:
    """What a library prints, in Python and below it, goes to standard error."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, threading\n"
        "def noise():\n"
        "    while True:\n"
        "        if os.readlink('/proc/self/fd/1') == os.readlink('/proc/self/fd/2'):\n"
        "            print('a library prints', flush=True)\n"
        "            os.write(1, b'and one written in C\\n')\n"
        "        threading.Event().wait(0.001)\n"
        "threading.Thread(target=noise, daemon=True).start()\n"
    )
    with talking(world.config, PYTHONPATH=str(tmp_path)) as client:
        assert all("leader" in client.ask("status") for _ in range(200))
        said = world.config.with_name("port.log")
        until(lambda: "a library prints" in said.read_text() and "one written in C" in said.read_text(), "the noise")


def test_it_ends_with_its_input_also_while_it_works(world: World) -> None:
    for verb in ("status", "plan.preview"):
        with talking(world.config) as client:
            client.send(verb)
            assert client.end() == 0


def test_a_killed_port_leaves_no_command_behind(world: World, tmp_path: Path) -> None:
    fifo = tmp_path / "job.toml"
    os.mkfifo(fifo)  # whoever reads it waits for ever
    with talking(world.config) as client:
        client.send("queue.add", file=str(fifo))
        (child,) = until(
            lambda: [pid for pid, words in working_for(tmp_path).items() if str(fifo) in words], "the command"
        )
        os.kill(client.process.pid, signal.SIGKILL)
        client.process.wait()
        until(lambda: child not in working_for(tmp_path), "the end of the command")


def test_twenty_megabytes_come_back_as_they_were(port: PortClient) -> None:
    data = "ä\u2028\U0001f600" * 2_500_000
    assert port.ask("echo", data=data) == data


def test_secrets_are_taken_out(world: World) -> None:
    secret = "xq7-" + "k" * 20
    with talking(world.config, EXAMPLE_TOKEN=secret) as client:
        client.ask("queue.hold", job="m0002", why=f"because of {secret}")
        assert secret not in json.dumps(client.ask("queue.show", job="m0002"))
        told = client.refused("queue.show", job=secret)
        assert secret not in json.dumps(told)


def test_without_settings_it_says_so_before_any_frame(tmp_path: Path) -> None:
    with pytest.raises(EOFError), talking(tmp_path / "nothing.toml") as client:
        client.ask("status")
    assert "nothing.toml" in (tmp_path / "port.log").read_text()


def test_a_database_that_is_missing_is_an_answer_and_no_end(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('state_dir = "state"\nmodels = []\n')
    with talking(tmp_path / "config.toml") as client:
        assert client.refused("status")["exit_code"] == 4
        assert client.refused("queue.hold", job="ufm")["exit_code"] == 4
        assert client.ask("echo", data=1) == 1
        assert client.end() == 0
