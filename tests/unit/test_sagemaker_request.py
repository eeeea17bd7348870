"""What we ask AWS for, and what we refuse before AWS would."""

from typing import Any

import pytest

from platforms.base import Misconfigured, Refused
from platforms.sagemaker.answers import SageMakerOrder, is_ours, training_job
from platforms.sagemaker.settings import read_settings

OPTIONS = {
    "region": "eu-central-1",
    "bucket": "team",
    "role": "arn:aws:iam::123456789012:role/uff-execution",
    "image": "account.dkr.ecr.eu-central-1.amazonaws.com/pytorch-training:2.10",
    "instance_types": "ml.g4dn.xlarge",
}
ORDER = SageMakerOrder(
    "uff-ufm-0001", "me", "pool", "s3://team/code/ab/", "s3://team/launches/k/", "s3://team/outputs", 13_200
)


def request(**options: str) -> dict[str, Any]:
    return training_job(ORDER, read_settings({**OPTIONS, **options}))


def test_the_request_is_what_botocore_takes() -> None:
    """Names and types are checked against the very model that the client sends by."""
    session = pytest.importorskip("botocore.session", reason="boto3 is not installed").get_session()
    validate = pytest.importorskip("botocore.validate").ParamValidator().validate
    shape = session.get_service_model("sagemaker").operation_model("CreateTrainingJob").input_shape
    for options in ({}, {"spot": "yes"}, {"instance_types": "ml.g6.xlarge, ml.g5.xlarge"}):
        assert not validate(request(**options), shape).has_errors()


def test_our_agent_is_the_entry_point_and_prefixes_end_where_they_should() -> None:
    made = request()
    assert made["AlgorithmSpecification"]["ContainerEntrypoint"] == ["python3"]
    assert made["AlgorithmSpecification"]["ContainerArguments"][0].endswith("/payload/agent.py")
    uris = [channel["DataSource"]["S3DataSource"]["S3Uri"] for channel in made["InputDataConfig"]]
    assert all(uri.endswith("/") for uri in uris)
    assert made["StoppingCondition"] == {"MaxRuntimeInSeconds": 13_200, "MaxPendingTimeInSeconds": 3_600}
    assert "KeepAlivePeriodInSeconds" not in made["ResourceConfig"]


def test_spot_waits_no_longer_than_it_was_told() -> None:
    stopping = request(spot="yes", pending_seconds="1800")["StoppingCondition"]
    assert stopping == {"MaxRuntimeInSeconds": 13_200, "MaxWaitTimeInSeconds": 15_000}


def test_the_wait_for_a_machine_without_an_accelerator_cannot_be_bounded() -> None:
    """AWS would refuse the request."""
    for types in ("ml.m5.xlarge", "ml.g6.xlarge,ml.c5.xlarge"):
        assert request(instance_types=types)["StoppingCondition"] == {"MaxRuntimeInSeconds": 13_200}
    assert "MaxPendingTimeInSeconds" in request(instance_types="ml.trn1.2xlarge,ml.p4d.24xlarge")["StoppingCondition"]
    assert request(instance_types="ml.m5.xlarge", spot="yes")["StoppingCondition"]["MaxWaitTimeInSeconds"] == 16_800


def test_several_types_are_wishes_in_their_order() -> None:
    resources = request(instance_types="ml.g6.xlarge,ml.g4dn.xlarge")["ResourceConfig"]
    assert [wish["InstanceType"] for wish in resources["InstancePreferences"]] == ["ml.g6.xlarge", "ml.g4dn.xlarge"]
    assert "InstanceType" not in resources


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"bucket": ""}, "missing: bucket"),
        ({"rigion": "x"}, "unknown setting rigion"),
        ({"role": "uff-execution"}, "role = "),
        ({"instance_types": "ml.p3.2xlarge"}, "V100.*force_p3"),
        ({"instance_types": "g4dn"}, "instance_types"),
        ({"instance_types": "ml.g4dn.xlarge,ml.g6.xlarge", "spot": "yes"}, "spot works with one"),
        ({"spot": "true"}, "yes or no"),
        ({"pending_seconds": "60"}, "1800 or more"),
        ({"pending_seconds": "3600", "instance_types": "ml.m5.xlarge"}, "an accelerator only"),
        ({"prefix": "/x"}, "prefix"),
    ],
)
def test_a_setting_that_cannot_work_is_refused_with_what_to_write(options: dict[str, str], why: str) -> None:
    with pytest.raises(Misconfigured, match=why):
        request(**options)


def test_p3_is_taken_when_it_is_forced() -> None:
    assert request(instance_types="ml.p3.2xlarge", force_p3="yes")["ResourceConfig"]["InstanceType"] == "ml.p3.2xlarge"


@pytest.mark.parametrize("key", ["", "a_b", "-a", "a-", "a" * 64, "a\n", "ä"])
def test_a_name_that_aws_would_refuse_is_refused_here(key: str) -> None:
    order = SageMakerOrder(key, "me", "pool", "s3://team/code/ab/", "s3://team/l/", "s3://team/outputs", 100)
    with pytest.raises(Refused) as refused:
        training_job(order, read_settings(OPTIONS))
    assert refused.value.permanent


def test_ours_is_what_has_our_name_and_our_owner() -> None:
    assert is_ours(request(), "uff-ufm-0001", "me")
    assert not is_ours(request(), "uff-ufm-0001", "you")
    assert not is_ours(request(), "uff-ufm-0002", "me")
    assert not is_ours({}, "uff-ufm-0001", "me")
