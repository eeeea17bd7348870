"""What AWS answers when it does not do what it was asked: the port's own error, true, and with what to do about it."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from platforms.base import LaunchRequest, Misconfigured, PlatformError, Refused, Unreachable
from platforms.registry import PlatformContext
from platforms.sagemaker.adapter import SageMakerPlatform
from platforms.sagemaker.answers import Throttled, is_refusal, translated

exceptions = pytest.importorskip("botocore.exceptions", reason="boto3 is not installed")
CREATE = "CreateTrainingJob"


def error(code: str, message: str = "no", *, operation: str = CREATE, status: int = 400, retries: int = 0) -> Any:
    told = {"HTTPStatusCode": status, "RetryAttempts": retries}
    return exceptions.ClientError({"Error": {"Code": code, "Message": message}, "ResponseMetadata": told}, operation)


@pytest.mark.parametrize(
    ("code", "message", "kind", "remedy"),
    [
        ("ResourceLimitExceeded", "'ml.g4dn.xlarge for training job usage' is 1 Instances", Refused, "Wait"),
        ("ResourceLimitExceeded", "'ml.g4dn.xlarge for training job usage' is 0 Instances", Misconfigured, "Ask AWS"),
        ("CapacityError", "none left", Refused, ""),
        ("AccessDeniedException", "not authorized", Misconfigured, "daemon.json"),
        ("ExpiredTokenException", "expired", Misconfigured, "renew"),
        ("ValidationException", "Could not assume role", Misconfigured, "Check role"),
        ("ThrottlingException", "Rate exceeded", Refused, ""),
        ("RequestThrottled", "slow down", Refused, ""),
        ("LimitExceededException", "slow down", Refused, ""),
        ("InternalFailure", "oops", Unreachable, ""),
        ("NeverHeardOf", "what", Unreachable, ""),
    ],
)
def test_an_answer_to_a_launch_becomes_an_error_with_a_remedy(
    code: str, message: str, kind: type[PlatformError], remedy: str
) -> None:
    with pytest.raises(PlatformError) as raised, translated("launch", 1_000):
        raise error(code, message)
    assert type(raised.value) is kind
    assert remedy in raised.value.remedy
    if isinstance(raised.value, Refused):
        assert raised.value.wait_until is not None
        assert raised.value.wait_until > 1_000


@pytest.mark.parametrize("code", ["ThrottlingException", "TooManyRequestsException", "ThrottledException", "SlowDown"])
def test_a_read_that_is_throttled_tells_nothing_of_a_job(code: str) -> None:
    with pytest.raises(Throttled), translated("find", 1_000):
        raise error(code)


@pytest.mark.parametrize(
    ("given", "proves"),
    [
        (error("ResourceLimitExceeded"), True),
        (error("ThrottlingException"), True),
        (error("ThrottlingException", retries=1), False),  # the first request may have been done
        (error("ThrottlingException", status=503), False),
        (error("InternalFailure", status=500), False),
        (error("ResourceInUse"), False),
        (error("ThrottlingException", operation="DescribeTrainingJob"), False),  # asked by the SDK, after its launch
        (exceptions.NoCredentialsError(), True),
        (exceptions.ParamValidationError(report="too long"), True),
        (exceptions.ReadTimeoutError(endpoint_url="http://127.0.0.1"), False),
        (ConnectionResetError(), False),
    ],
)
def test_only_an_answer_to_a_request_that_was_sent_once_proves_that_nothing_was_done(
    given: Exception, *, proves: bool
) -> None:
    assert is_refusal(given, CREATE) is proves


@pytest.fixture
def platform(tmp_path: Path) -> SageMakerPlatform:
    """An adapter that talks to nobody."""
    options = {
        "region": "us-east-1",
        "bucket": "team",
        "role": "arn:aws:iam::123456789012:role/uff-execution",
        "image": "pytorch",
        "instance_types": "ml.g4dn.xlarge",
    }
    return SageMakerPlatform(options, PlatformContext(tmp_path, "python", tmp_path))


@pytest.mark.parametrize("answer", [{}, {"message": "<html>Sign in to this network</html>"}])
def test_what_answers_in_the_place_of_aws_says_nothing_about_a_job(
    platform: SageMakerPlatform, answer: dict[str, Any]
) -> None:
    platform._clients["sagemaker"] = SimpleNamespace(describe_training_job=lambda **_: answer)
    with pytest.raises(Unreachable, match="that is none"):
        platform.find(["uff-lm-1"], 1_000)


def test_an_answer_that_cannot_be_read_is_no_answer(platform: SageMakerPlatform) -> None:
    from botocore.parsers import ResponseParserError

    def garbled(**_: Any) -> Any:
        raise ResponseParserError("invalid XML")

    platform._clients["sagemaker"] = SimpleNamespace(describe_training_job=garbled)
    with pytest.raises(Unreachable, match="invalid XML"):
        platform.find(["uff-lm-1"], 1_000)


@pytest.mark.parametrize("times", [{}, {"LastModifiedTime": 2_000}, {"TrainingEndTime": 2_000}])
def test_a_lack_of_machines_closes_the_pool_whichever_times_are_told(
    platform: SageMakerPlatform, times: dict[str, int]
) -> None:
    from datetime import UTC, datetime

    told = {"CreationTime": 2_000, **times}
    description = {
        "TrainingJobName": "uff-lm-1",
        "TrainingJobArn": "arn",
        "TrainingJobStatus": "Failed",
        "FailureReason": "CapacityError: Unable to provision",
        "Environment": {"SCHED_RUN_ID": "uff-lm-1", "SCHED_OWNER": platform._owner},
        **{name: datetime.fromtimestamp(at, UTC) for name, at in told.items()},
    }
    platform._clients["sagemaker"] = SimpleNamespace(describe_training_job=lambda **_: description)
    platform.find(["uff-lm-1"], 2_000)
    request = LaunchRequest("uff-lm-2", "pool", 1, 9_000, {}, "", {})
    with pytest.raises(Refused, match="CapacityError"):
        platform._admit(request, 2_899)
    platform._admit(request, 2_900)
