"""The rights we ask for: enough for every call we make, and nothing that we do not use."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from scheduler.host.acceptance import SITES

CALLS = re.compile(r"(?:_jobs|_client|_s3|\bclient|_client\(\w+, \"[a-z-]+\"\))\.([a-z_]+)\(")
PAGED_CALLS = re.compile(r"get_paginator\(\"([a-z_0-9]+)\"\)")
RIGHT_OF = {
    "create_training_job": "sagemaker:CreateTrainingJob",
    "describe_training_job": "sagemaker:DescribeTrainingJob",
    "stop_training_job": "sagemaker:StopTrainingJob",
    "delete_training_job": "sagemaker:DeleteTrainingJob",
    "list_training_jobs": "sagemaker:ListTrainingJobs",
    "list_service_quotas": "servicequotas:ListServiceQuotas",
    "get_role": "iam:GetRole",
    "get_caller_identity": "",  # everybody may
    "describe_log_streams": "logs:DescribeLogStreams",
    "get_log_events": "logs:GetLogEvents",
    "put_object": "s3:PutObject",
    "get_object": "s3:GetObject",
    "head_object": "s3:GetObject",
    "delete_object": "s3:DeleteObject",
    "list_objects_v2": "s3:ListBucket",
    "create_multipart_upload": "s3:PutObject",
    "upload_part": "s3:PutObject",
    "complete_multipart_upload": "s3:PutObject",
    "abort_multipart_upload": "s3:AbortMultipartUpload",
    "list_multipart_uploads": "s3:ListBucketMultipartUploads",
}
SIGNING = {"generate_presigned_url", "generate_presigned_post", "get_paginator"}  # ask AWS nothing
# Actions that AWS knows no resource for.
RESOURCELESS = (
    ["ecr:GetAuthorizationToken"],
    ["cloudwatch:PutMetricData"],
    ["sagemaker:ListTrainingJobs"],
    ["servicequotas:ListServiceQuotas"],
)
# Needed by what a request says rather than by a call of its own.
IMPLIED = {"iam:PassRole", "sagemaker:AddTags"}


def statements(repository: Path, name: str) -> list[dict[str, Any]]:
    document = json.loads((repository / "docs" / "iam" / name).read_text())
    assert document["Version"] == "2012-10-17"
    found: list[dict[str, Any]] = document["Statement"]
    return found


def actions(statement: dict[str, Any]) -> list[str]:
    wanted = statement["Action"]
    return [wanted] if isinstance(wanted, str) else list(wanted)


def test_the_daemon_may_do_what_it_does_and_no_more(repository: Path) -> None:
    used = set()
    for folder in ("platforms/sagemaker", "platforms/artifacts/s3"):
        for path in (repository / folder).glob("*.py"):
            used |= {call for pattern in (CALLS, PAGED_CALLS) for call in pattern.findall(path.read_text())}
    granted = {action for statement in statements(repository, "daemon.json") for action in actions(statement)}
    looked_at = {action for statement in statements(repository, "doctor.json") for action in actions(statement)}
    assert granted | looked_at == {RIGHT_OF[call] for call in used - SIGNING} - {""} | IMPLIED
    assert not granted & looked_at, "the daemon needs nothing of what only a look at the account needs"


@pytest.mark.parametrize("name", ["daemon.json", "doctor.json", "execution-role.json"])
def test_no_right_is_wider_than_it_must_be(repository: Path, name: str) -> None:
    for statement in statements(repository, name):
        assert statement["Effect"] == "Allow"
        assert all(re.fullmatch(r"[a-z0-9]+:[A-Za-z]+", action) for action in actions(statement)), "no wildcard actions"
        if statement["Resource"] == "*":
            assert actions(statement) in RESOURCELESS


def test_a_training_job_can_neither_read_checkpoints_nor_write_them_by_its_role(repository: Path) -> None:
    """It has signed addresses for what is its own; the role alone opens nothing of the store."""
    for statement in statements(repository, "execution-role.json"):
        if {"s3:GetObject", "s3:PutObject", "s3:DeleteObject"} & set(actions(statement)):
            places = statement["Resource"]
            for place in [places] if isinstance(places, str) else places:
                assert place.split("/")[1] in {"code", "launches", "outputs"}


def test_the_role_is_handed_to_sagemaker_only(repository: Path) -> None:
    (passing,) = [s for s in statements(repository, "daemon.json") if actions(s) == ["iam:PassRole"]]
    assert passing["Condition"] == {"StringEquals": {"iam:PassedToService": "sagemaker.amazonaws.com"}}
    assert passing["Resource"].endswith(":role/EXECUTION_ROLE")
    (trust,) = statements(repository, "trust.json")
    assert trust["Principal"] == {"Service": "sagemaker.amazonaws.com"}
    assert trust["Action"] == "sts:AssumeRole"


def test_the_daemon_may_launch_what_acceptance_launches(repository: Path) -> None:
    policy = json.loads((repository / "docs" / "iam" / "daemon.json").read_text())
    conditions = [statement.get("Condition", {}) for statement in policy["Statement"]]
    allowed = [one["ForAllValues:StringEquals"]["sagemaker:InstanceTypes"] for one in conditions if len(one) == 2]
    assert SITES["sagemaker"].small["instance_types"] in allowed[0]
