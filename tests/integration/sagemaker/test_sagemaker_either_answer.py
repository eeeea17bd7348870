"""The answers that only an account gives, where the usual pool would not notice them: what follows is said."""

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from platforms.base import Misconfigured, SessionState
from tests.lab.aws import FLIPPED_AWS

if TYPE_CHECKING:
    from platforms.base import LaunchRequest

World = Any  # see conftest.py
Waiting = Callable[[str], "LaunchRequest"]
SECRET = "HF_TOKEN"


def flip(world: World, question: str) -> None:
    """Let the account answer a question the other way."""
    for name, value in FLIPPED_AWS[question].items():
        setattr(world.place.rules, name, value)


def test_every_switch_is_a_rule(world: World) -> None:
    names = {field.name for field in dataclasses.fields(world.place.rules)}
    assert {name for answers in FLIPPED_AWS.values() for name in answers} <= names


def test_without_instance_preferences_the_first_type_is_launched(world: World, waiting: Waiting) -> None:
    """Once: launching again finds it. Another mistake in the request is reported as before."""
    flip(world, "there are no instance preferences")
    two = {"instance_types": "ml.g4dn.xlarge,ml.g5.xlarge"}
    for _ in range(2):
        world.adapter(**two).launch(waiting("uff-lm-0001"), world.clock.now())
    (job,) = world.place.jobs.values()
    assert job.request["ResourceConfig"] == {"InstanceType": "ml.g4dn.xlarge", "InstanceCount": 1, "VolumeSizeInGB": 50}
    world.adapter().stop("uff-lm-0001", world.clock.now(), force=False)
    world.until("uff-lm-0001", SessionState.ENDED, SessionState.ABSENT)
    gone = {"instance_types": "ml.p3.2xlarge,ml.g5.xlarge", "force_p3": "yes"}
    flip(world, "p3 is gone")
    with pytest.raises(Misconfigured, match=r"ml\.p3\.2xlarge is not available") as refused:
        world.adapter(**gone).launch(waiting("uff-lm-0002"), world.clock.now())
    assert "instance types" in refused.value.remedy


def test_a_session_without_its_roles_credentials_ends_before_its_command(world: World) -> None:
    flip(world, "containers get no credentials")
    request = world.request("uff-lm-0001", ["{python}", "-c", "print('ran')"], folders=(), secrets=[SECRET])
    world.adapter(secrets="ssm:/uff/").launch(request, world.clock.now())
    world.until("uff-lm-0001", SessionState.ENDED)
    result = world.result("uff-lm-0001")
    assert (result["outcome"], result["error_class"]) == ("failed", "secret"), world.output("uff-lm-0001")
    assert "ran" not in world.output("uff-lm-0001")


def test_a_bill_that_grows_counts_once_it_is_final(world: World, waiting: Waiting) -> None:
    flip(world, "a bill grows while a job runs")
    world.adapter().launch(waiting("uff-lm-0001"), world.clock.now())
    running = world.until("uff-lm-0001", SessionState.RUNNING)
    assert running.ended is None
    world.adapter().stop("uff-lm-0001", world.clock.now(), force=False)
    ended = world.until("uff-lm-0001", SessionState.ENDED)
    assert ended.ended - ended.started == world.place.billed_seconds()
