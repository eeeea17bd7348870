"""Whatever is lost between the scheduler and AWS: one launch is one training job, and one bill."""

import json
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from platforms.base import Misconfigured, PlatformError, Refused, SessionState, Unreachable
from tests.lab.faults import Fault, Faults
from tests.lab.night import one_in
from tests.lab.patience import PATIENCE_SECONDS, until

if TYPE_CHECKING:
    from platforms.base import LaunchRequest, Platform

World = Any  # see conftest.py
Waiting = Callable[[str], "LaunchRequest"]
NO_IMAGE, OWN_IMAGE = (f"123456789012.dkr.ecr.us-east-1.amazonaws.com/{name}:1" for name in ("none", "mine"))

# Does one thing to a session in a process that dies, as by kill -9, just before or just after its n-th call to AWS.
# Each is forked from one that has loaded the library, which takes most of a second.
DYING = """
import json, os, sys
from pathlib import Path
import botocore.httpsession
from platforms.base import LaunchRequest
from platforms.registry import PlatformContext, load
def act(action, number, when, options, state, bundle, request, now):
    send, calls = botocore.httpsession.URLLib3Session.send, []
    def die(session, prepared):
        calls.append(prepared.url)
        if len(calls) == number and when == "before":
            os._exit(9)
        answer = send(session, prepared)
        if len(calls) == number:
            os._exit(9)
        return answer
    botocore.httpsession.URLLib3Session.send = die
    platform = load("sagemaker", options, PlatformContext(Path(state), sys.executable, Path(bundle)))
    key = request["key"]
    {
        "launch": lambda: platform.launch(LaunchRequest(**request), now),
        "find": lambda: platform.find([key], now),
        "stop": lambda: platform.stop(key, now, force=False),
        "sweep": lambda: platform.sweep([key], now),
        "orphans": lambda: platform.orphans([], now),
    }[action]()
for line in sys.stdin:
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            act(*json.loads(line))
            code = 0
        finally:
            os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""
Mortals = subprocess.Popen[str]


@pytest.fixture(scope="module")
def mortals(aws_credentials: None) -> Iterator[Mortals]:
    """Forks a process that dies for each order it is sent, and tells with what it ended."""
    with subprocess.Popen(
        [sys.executable, "-c", DYING], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as made:
        yield made


def do_and_die(
    mortals: Mortals,
    world: World,
    action: str,
    options: dict[str, str],
    request: "LaunchRequest",
    number: int,
    when: str,
) -> int:
    fields = {name: getattr(request, name) for name in ("key", "pool", "devices", "deadline", "launch", "options")}
    state, now = str(world.folder / "state"), world.clock.now()
    order = [
        action,
        number,
        when,
        world.options | options,
        state,
        request.bundle,
        fields | {"bundle": request.bundle},
        now,
    ]
    assert mortals.stdin
    assert mortals.stdout
    mortals.stdin.write(json.dumps(order) + "\n")
    mortals.stdin.flush()
    return int(mortals.stdout.readline())


@pytest.fixture
def bundle(tmp_path: Path) -> str:
    """A payload of one file: it says hello and waits to be told to leave."""
    (tmp_path / "bundle" / "payload").mkdir(parents=True)
    agent = tmp_path / "bundle" / "payload" / "agent.py"
    agent.write_text("import signal\nsignal.signal(signal.SIGTERM, lambda *_: exit(0))\nsignal.pause()\n")
    return str(tmp_path / "bundle")


def bundled(request: "LaunchRequest", bundle: str) -> "LaunchRequest":
    return replace(request, bundle=bundle)


def _whens(number: int) -> tuple[str, ...]:
    """Return on which sides of a call a daemon is killed: on both in the night, else on each in turn."""
    return ("before", "after") if one_in() == 1 else (("before", "after")[number % 2],)


def test_a_daemon_killed_at_any_call_of_a_launch_leaves_nothing_that_is_started_twice(
    mortals: Mortals, world: World, waiting: Waiting, bundle: str
) -> None:
    """A restarted daemon finds what was started, or starts it; AWS never has two jobs, nor one that nobody knows."""
    world.place.rules.instances_max = 100
    launched = code = 0
    for number in range(1, 30):
        for when in _whens(number):
            key = f"uff-lm-{number}-{when}"
            own = {"prefix": f"{key}/"}  # nothing is there from the launch before
            request = bundled(waiting(key), bundle)
            code = do_and_die(mortals, world, "launch", own, request, number, when)
            known = world.adapter(**own).find([key], world.clock.now())
            assert set(known) == {key} & set(world.place.jobs), "what AWS has, the scheduler finds"
            world.adapter(**own).launch(request, world.clock.now())
            launched += 1
            assert len(world.place.jobs) == launched
            world.adapter(**own).stop(key, world.clock.now(), force=True)
        if code == 0:
            assert number > 6, "a launch takes at least six calls"
            return
        assert code == 9
    pytest.fail("a launch took more calls than were tried")


@pytest.mark.parametrize("action", ["find", "stop", "sweep", "orphans"])
def test_a_daemon_killed_at_any_call_of_what_follows_leaves_one_job_and_one_bill(
    mortals: Mortals, world: World, waiting: Waiting, bundle: str, action: str
) -> None:
    """A poll, a stop, a sweep or a search that died is made again by the next daemon, and ends as if nothing was."""
    world.place.rules.instances_max = 100
    world.place.rules.spot_seconds = 300 if action == "find" else None  # a poll stops a spot job that lost its instance
    own = {"spot": "yes"} if action == "find" else {}
    died = code = 0
    for number in range(1, 8):
        for when in _whens(number):
            key = f"uff-lm-{number}-{when}"
            request = bundled(waiting(key), bundle)
            platform = world.adapter(**own)
            platform.launch(request, world.clock.now())
            job = world.place.jobs[key]
            until(partial(_is, job, "Interrupted" if action == "find" else "Training"), "the state to act in")
            if action == "sweep":
                platform.stop(key, world.clock.now(), force=False)
                job.join(PATIENCE_SECONDS)
            code = do_and_die(mortals, world, action, own, request, number, when)
            assert code in {0, 9}
            died += code == 9
            after = world.adapter(**own)
            assert set(after.find([key], world.clock.now())) == {key} & set(world.place.jobs)
            after.orphans([], world.clock.now())
            after.stop(key, world.clock.now(), force=False)
            job.join(PATIENCE_SECONDS)
            assert not job.live
            after.sweep([key], world.clock.now())
            assert key not in world.place.jobs
            assert list(world.store.keys("launches/")) == []
        if code == 0:
            break
    assert died >= len(_whens(1)), "it was never killed"


@pytest.mark.parametrize("fault", [Fault.DROP_AFTER_COMMIT, Fault.ERROR_AFTER_COMMIT, Fault.DROP, Fault.THROTTLED])
def test_a_launch_whose_answer_is_lost_is_found_to_be_ours(world: World, waiting: Waiting, fault: Fault) -> None:
    """The client repeats it by itself; the name that is taken then is taken by the very job that was asked for."""
    world.place.faults.add("CreateTrainingJob", fault)
    assert world.adapter().launch(waiting("uff-lm-1"), world.clock.now()).key == "uff-lm-1"
    assert list(world.place.jobs) == ["uff-lm-1"]


def test_a_launch_that_is_never_answered_is_unknown_and_found_later(
    world: World, waiting: Waiting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platforms.artifacts.s3.client._ATTEMPTS", 1)
    platform = world.adapter()
    world.place.faults.add("CreateTrainingJob", Fault.DROP_AFTER_COMMIT)
    world.place.faults.draw = lambda call: Fault.SERVER_ERROR if world.place.jobs else None
    for _ in range(2):
        with pytest.raises(Unreachable):
            platform.launch(waiting("uff-lm-1"), world.clock.now())
    world.place.faults.draw = lambda _: None
    assert list(platform.find(["uff-lm-1"], world.clock.now())) == ["uff-lm-1"]


def test_throttling_that_lasts_starts_nothing_and_waits(
    world: World, waiting: Waiting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platforms.artifacts.s3.client._ATTEMPTS", 1)
    world.place.faults.add("CreateTrainingJob", Fault.THROTTLED)
    with pytest.raises(Refused) as refused:
        world.adapter().launch(waiting("uff-lm-1"), world.clock.now())
    assert refused.value.wait_until is not None
    assert not refused.value.permanent
    assert world.place.jobs == {}


@pytest.mark.parametrize("fault", [Fault.THROTTLED, Fault.SERVER_ERROR, Fault.DROP])
def test_a_launch_that_was_done_and_cannot_be_seen_is_never_refused(
    world: World, waiting: Waiting, monkeypatch: pytest.MonkeyPatch, fault: Fault
) -> None:
    """After a refusal the daemon launches the job anew under another name: it would run twice."""
    monkeypatch.setattr("platforms.artifacts.s3.client._ATTEMPTS", 1)
    world.place.faults.draw = lambda _: fault if world.place.jobs else None
    with pytest.raises(Unreachable):
        world.adapter().launch(waiting("uff-lm-1"), world.clock.now())
    assert list(world.place.jobs) == ["uff-lm-1"]


@pytest.mark.parametrize("seen", [True, False])
def test_the_refusal_of_a_repeated_request_says_nothing_about_the_first(
    world: World, waiting: Waiting, monkeypatch: pytest.MonkeyPatch, seen: bool
) -> None:
    """The client repeats what was not answered, and what was done unheard stands when the repetition is turned away."""
    monkeypatch.setattr("platforms.artifacts.s3.client._ATTEMPTS", 2)
    world.place.faults.add("CreateTrainingJob", Fault.DROP_AFTER_COMMIT, Fault.THROTTLED)
    platform = world.adapter()
    if seen:
        assert platform.launch(waiting("uff-lm-1"), world.clock.now()).key == "uff-lm-1"
    else:
        monkeypatch.setattr(platform, "_describe", lambda _: None)  # AWS shows a new job a moment later
        with pytest.raises(Unreachable):
            platform.launch(waiting("uff-lm-1"), world.clock.now())
    assert list(world.place.jobs) == ["uff-lm-1"]


def test_a_job_of_somebody_else_is_neither_adopted_nor_stopped(world: World, waiting: Waiting) -> None:
    world.adapter(owner="them").launch(waiting("uff-lm-1"), world.clock.now())
    ours = world.adapter(owner="us")
    with pytest.raises(Misconfigured, match="somebody else"):
        ours.launch(waiting("uff-lm-1"), world.clock.now())
    assert ours.find(["uff-lm-1"], world.clock.now()) == {}
    ours.stop("uff-lm-1", world.clock.now(), force=True)
    assert world.place.jobs["uff-lm-1"].status == "InProgress"


def test_a_lack_of_machines_is_no_failed_attempt_and_closes_the_pool_for_a_while(
    world: World, waiting: Waiting
) -> None:
    world.place.rules.no_capacity.add("uff-lm-1")
    platform = world.adapter()
    platform.launch(waiting("uff-lm-1"), world.clock.now())
    absent = world.until("uff-lm-1", SessionState.ABSENT, platform=platform)
    assert "CapacityError" in absent.detail
    with pytest.raises(Refused, match="CapacityError") as refused:
        platform.launch(waiting("uff-lm-2"), world.clock.now())
    assert refused.value.wait_until > world.clock.now()
    platform.launch(waiting("uff-lm-2"), refused.value.wait_until)
    assert world.place.billed_seconds() == 0


def test_a_jobs_own_image_is_used_and_what_is_wrong_with_it_closes_no_pool(world: World, waiting: Waiting) -> None:
    def asking(key: str, image: str) -> Any:
        request = waiting(key)
        return replace(request, launch={**request.launch, "image": image})

    world.place.rules.no_images.add(NO_IMAGE)
    platform = world.adapter()
    platform.launch(asking("uff-lm-1", NO_IMAGE), world.clock.now())
    assert "Cannot find" in world.until("uff-lm-1", SessionState.ABSENT, platform=platform).detail
    with pytest.raises(Refused, match=r"the job's image .*none:1: .*Cannot find repository") as refused:
        platform.launch(asking("uff-lm-2", NO_IMAGE), world.clock.now())
    assert refused.value.permanent
    for wrong in ("sdk:pytorch:0", "mine", OWN_IMAGE.replace("us-east-1", "eu-west-1")):
        with pytest.raises(Refused, match=f"the job's image {wrong}: ") as refused:
            platform.launch(asking("uff-lm-2", wrong), world.clock.now())
        assert refused.value.permanent
    platform.launch(asking("uff-lm-2", OWN_IMAGE), world.clock.now())
    request = world.place.jobs["uff-lm-2"].request
    assert request["AlgorithmSpecification"]["TrainingImage"] == OWN_IMAGE


def test_a_full_account_is_waited_for_and_an_account_without_instances_needs_a_person(
    world: World, waiting: Waiting
) -> None:
    world.adapter().launch(waiting("uff-lm-1"), world.clock.now())
    asked_at = world.clock.now()
    with pytest.raises(Refused) as refused:
        world.adapter().launch(waiting("uff-lm-2"), asked_at)
    assert refused.value.wait_until >= asked_at
    world.place.rules.instances_max = 0
    with pytest.raises(Misconfigured, match="Service Quotas"):
        world.adapter().launch(waiting("uff-lm-2"), world.clock.now())


def test_a_job_without_a_bill_is_not_over(world: World, waiting: Waiting) -> None:
    """What is told as the end is what is charged, so it is told when it is known."""
    world.place.rules.bill_delay_seconds = 1_000_000
    platform = world.adapter()
    platform.launch(waiting("uff-lm-1"), world.clock.now())
    world.until("uff-lm-1", SessionState.RUNNING)
    platform.stop("uff-lm-1", world.clock.now(), force=False)
    world.place.jobs["uff-lm-1"].join(PATIENCE_SECONDS)
    started_at, ended_at = world.place.jobs["uff-lm-1"].started_at, world.place.jobs["uff-lm-1"].ended_at
    assert platform.find(["uff-lm-1"], int(ended_at))["uff-lm-1"].detail == "Stopped, not billed yet"
    late = platform.find(["uff-lm-1"], int(ended_at) + 601)["uff-lm-1"]
    assert (late.state, late.started) == (SessionState.ENDED, int(started_at))
    assert late.ended - late.started == round(ended_at - started_at), "what it would be billed"


def test_a_folder_on_this_machine_is_no_store_for_a_training_job(world: World, waiting: Waiting) -> None:
    request = waiting("uff-lm-1")
    launch = {**request.launch, "store": {"kind": "directory", "root": "/somewhere"}}
    with pytest.raises(Misconfigured, match=r"inside/store\.md"):
        world.adapter().launch(replace(request, launch=launch), world.clock.now())


def test_spot_refuses_to_run_without_checkpoints(world: World, waiting: Waiting) -> None:
    request = waiting("uff-lm-1")
    blind = replace(request, launch={**request.launch, "store": {"kind": "presigned", "gets": {}, "posts": []}})
    with pytest.raises(Misconfigured, match="without checkpoints"):
        world.adapter(spot="yes").launch(blind, world.clock.now())
    assert world.place.jobs == {}
    assert world.adapter(spot="yes").launch(request, world.clock.now()).key == "uff-lm-1"


# All of them in the night, two with every push.
@pytest.mark.parametrize(
    "block", [pytest.param(block, marks=[pytest.mark.nightly] if block % 5 else []) for block in range(10)]
)
def test_under_any_schedule_of_faults_a_key_is_one_job_and_the_charge_is_the_bill(
    world: World, waiting: Waiting, bundle: str, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten schedules in each account, a hundred in all."""
    monkeypatch.setattr("platforms.artifacts.s3.client._ATTEMPTS", 1)
    rules, faults = world.place.rules, world.place.faults
    rules.queue_seconds = rules.download_seconds = rules.upload_seconds = 0
    rules.instances_max = 100
    platform = world.adapter()
    keys = [f"uff-lm-{block * 10 + number}" for number in range(10)]
    for seed, key in enumerate(keys, block * 10):
        draw_from(random.Random(seed), faults)
        answered(partial(launched, world, platform, bundled(waiting(key), bundle)))
        answered(partial(platform.stop, key, world.clock.now(), force=False))
        faults.draw = lambda _: None
        assert set(platform.find([key], world.clock.now())) == {key} & set(world.place.jobs)
    for key, job in world.place.jobs.items():
        platform.stop(key, world.clock.now(), force=False)
        job.join(PATIENCE_SECONDS)
    seen = world.adapter().find(keys, world.clock.now()).values()
    assert sum(0 if one.started is None else one.ended - one.started for one in seen) == world.place.billed_seconds()


def launched(world: World, platform: "Platform", request: "LaunchRequest") -> None:
    """Launch once. What is not "unknown" must be true, for the daemon builds on it."""
    try:
        platform.launch(request, world.clock.now())
    except (Refused, Misconfigured):
        assert request.key not in world.place.jobs
        raise
    assert request.key in world.place.jobs


def draw_from(chance: random.Random, faults: Faults) -> None:
    """Let two calls of seven go well."""
    faults.draw = lambda _: chance.choice([None, None, *Fault])


def answered(call: Callable[[], object]) -> None:
    """Make a call until it is answered, as the daemon does from cycle to cycle; not for ever."""
    for _ in range(20):
        try:
            call()
        except PlatformError:
            continue
        return


def _is(job: Any, secondary: str) -> bool:
    return bool(job.secondary == secondary)
