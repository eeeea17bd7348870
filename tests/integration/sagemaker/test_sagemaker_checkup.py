"""What `schedctl doctor sagemaker` finds in an account that works, and in some that do not."""

import json
import re
from typing import Any

import pytest

from platforms.artifacts.s3.client import connect
from platforms.base import PlatformError
from platforms.registry import checkup
from scheduler.clock import real_now

World = Any  # see conftest.py


def found(world: World, name: str, now: float | None = None, **options: str) -> Any:
    checks = checkup("sagemaker", {**world.options, **options}, {}, real_now() if now is None else now, probe=False)
    return checks[name]()


def make_role(world: World, name: str, service: str) -> str:
    iam = connect("iam", region="us-east-1", endpoint=world.address)
    statement = {"Effect": "Allow", "Principal": {"Service": service}, "Action": "sts:AssumeRole"}
    policy = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
    return str(iam.create_role(RoleName=name, AssumeRolePolicyDocument=policy)["Role"]["Arn"])


def test_an_account_that_works_is_told_so(world: World) -> None:
    role = make_role(world, f"uff-{world.bucket}", "sagemaker.amazonaws.com")
    image = "763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-training:2.10-gpu-py313"
    names = checkup("sagemaker", world.options, {}, real_now(), probe=False)
    assert set(names) == {"identity", "bucket", "execution role", "training jobs", "instance quota", "image", "clock"}
    for name in names:
        assert found(world, name, role=role, image=image).grade == "ok", name


def test_instances_that_the_account_may_not_use_are_named(world: World) -> None:
    assert found(world, "instance quota", instance_types="ml.g4dn.xlarge,ml.g7.xlarge").grade == "warning"
    assert "not listed" in found(world, "instance quota", instance_types="ml.g7.xlarge").found
    world.place.rules.instances_max = 0
    none = found(world, "instance quota")
    assert (none.grade, none.found) == ("bad", "ml.g4dn.xlarge for training job usage: 0")


@pytest.mark.parametrize(
    ("image", "grade", "why"),
    [
        ("763104351884.dkr.ecr.eu-west-1.amazonaws.com/pytorch-training:2.10-gpu-py313", "bad", "lies in eu-west-1"),
        ("763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-training:2.7-gpu-py312", "warning", "no patches since"),
        ("docker.io/pytorch:latest", "warning", "no address of Amazon ECR"),
        ("123456789012.dkr.ecr.us-east-1.amazonaws.com/team/own:v1", "ok", "first job"),
    ],
)
def test_an_image_is_judged_by_its_address(world: World, image: str, grade: str, why: str) -> None:
    told = found(world, "image", image=image, now=1_795_219_200)
    assert (told.grade, why in told.found) == (grade, True), told


def test_a_role_that_is_missing_or_trusts_somebody_else_is_bad(world: World) -> None:
    assert "no role" in found(world, "execution role", role="arn:aws:iam::123456789012:role/nobody").found
    role = make_role(world, f"other-{world.bucket}", "ec2.amazonaws.com")
    assert "does not trust" in found(world, "execution role", role=role).found


def test_a_role_of_another_account_is_bad(world: World) -> None:
    assert found(world, "identity", role="arn:aws:iam::999999999999:role/x").grade == "bad"


def test_a_clock_that_is_off_is_bad(world: World) -> None:
    off = found(world, "clock", real_now() - 3_600)
    assert off.grade == "bad"
    assert re.search(r"-3[56]\d\d s off", off.found), off.found  # AWS tells whole seconds


def test_a_bucket_that_is_not_there_raises(world: World) -> None:
    with pytest.raises(PlatformError, match="NoSuchBucket"):
        found(world, "bucket", bucket="nowhere-at-all")
