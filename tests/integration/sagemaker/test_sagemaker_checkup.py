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
    for name in ("identity", "bucket", "execution role", "training jobs", "clock"):
        assert found(world, name, role=role).grade == "ok", name
    assert found(world, "instance quota").grade == "warning"


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
