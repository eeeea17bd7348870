"""Secrets on SageMaker: the name travels, the value stays at AWS until the session asks for it with its own role."""

import io
import json
from pathlib import Path
from typing import Any

import boto3
import pytest

from platforms.base import SessionState
from tests.lab.canary import NAME, files_that_tell, new_canary, proves_redaction, run_canary, told_in

World = Any  # see conftest.py


def client(world: World, service: str) -> Any:
    """The account's own client of one of AWS's services."""
    return boto3.client(service, region_name="us-east-1", endpoint_url=world.address)


def objects(world: World) -> bytes:
    """All that lies in the bucket, names and content."""
    s3, found = client(world, "s3"), io.BytesIO()
    for page in s3.get_paginator("list_objects_v2").paginate(Bucket=world.bucket):
        for entry in page.get("Contents", ()):
            found.write(entry["Key"].encode() + b"\n")
            found.write(s3.get_object(Bucket=world.bucket, Key=entry["Key"])["Body"].read() + b"\n")
    return found.getvalue()


def test_a_session_has_its_secret_and_nothing_that_it_leaves_tells_it(world: World, tmp_path: Path) -> None:
    value = new_canary()
    client(world, "ssm").put_parameter(Name=f"/uff/{NAME}", Value=value, Type="SecureString", Overwrite=True)
    settings = world.settings(tmp_path, options={**world.options, "secrets": "ssm:/uff/"})
    said = run_canary(tmp_path, settings, "")  # the daemon itself does not know the value
    proves_redaction(world.output("uff-leaky-0001"), value)
    assert told_in(said.encode(), value) == []
    assert files_that_tell(tmp_path, value) == []
    kept = objects(world)
    assert b"jobs/leaky/manifests/" in kept
    assert b'"secret_store": {"kind": "ssm", "prefix": "/uff/"' in kept
    assert told_in(kept, value) == []
    assert told_in(json.dumps([job.describe() for job in world.place.jobs.values()]).encode(), value) == []


@pytest.mark.parametrize(
    ("option", "why"),
    [
        ("secretsmanager:{own}/", ""),
        ("ssm:/elsewhere/", f"Systems Manager has no parameter /elsewhere/{NAME}"),
        ("secretsmanager:elsewhere/", "docs/iam/execution-role.json"),
    ],
)
def test_a_secret_that_the_role_may_not_read_ends_the_session_before_its_command(
    world: World, option: str, why: str
) -> None:
    client(world, "secretsmanager").create_secret(Name=f"{world.bucket}/{NAME}", SecretString="canary_0123456789")
    program = f"import os; print('has', len(os.environ[{NAME!r}]), flush=True)"
    request = world.request("uff-lm-0001", ["{python}", "-c", program], folders=(), secrets=[NAME])
    world.adapter(secrets=option.format(own=world.bucket)).launch(request, world.clock.now())
    world.until("uff-lm-0001", SessionState.ENDED)
    output, result = world.output("uff-lm-0001"), world.result("uff-lm-0001")
    if why:
        assert (result["outcome"], result["error_class"]) == ("failed", "secret"), output
        assert why in result["why"]
        assert "has 17" not in output
    else:
        assert "has 17" in output
