"""The checks of `schedctl doctor sagemaker`, for an account before its first use. They cost nothing."""

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any

from jobs.payload.deadline import header_date
from platforms.artifacts.s3.client import code_of
from platforms.base import Checked, check_clock
from platforms.sagemaker import answers
from platforms.sagemaker.settings import SageMakerSettings, image_address, read_settings

_VERSION = re.compile(r"\d+\.\d+")
# The end of AWS's patches for its PyTorch training images, from its list of Deep Learning Containers in November 2026.
_PATCHED_UNTIL = {
    "2.7": datetime(2026, 4, 23, tzinfo=UTC),
    "2.8": datetime(2026, 8, 6, tzinfo=UTC),
    "2.10": datetime(2027, 1, 21, tzinfo=UTC),
}
_UNKNOWN_JOB = "uff-doctor-looks-for-nobody"


def checks(
    settings: Mapping[str, str], environ: Mapping[str, str], now: float, *, probe: bool
) -> dict[str, Callable[[], Checked]]:
    """Return the checks of one pool by name; ``now`` is real UTC seconds. A failed check raises PlatformError."""
    del environ, probe
    chosen = read_settings(settings)
    return {
        "identity": partial(_identity, chosen),
        "bucket": partial(_bucket, chosen),
        "execution role": partial(_role, chosen),
        "training jobs": partial(_jobs, chosen),
        "instance quota": partial(_quota, chosen),
        "image": partial(_image, chosen, now),
        "clock": partial(_clock, chosen, now),
    }


def _client(settings: SageMakerSettings, service: str) -> Any:
    with answers.translated("connect"):
        return settings.client(service)


def _identity(settings: SageMakerSettings) -> Checked:
    with answers.translated("identify"):
        identity = _client(settings, "sts").get_caller_identity()
    account = settings.role.split(":")[4]
    if identity["Account"] != account:
        remedy = "Use credentials and an execution role of one account"
        return Checked("bad", f"{identity['Arn']} is of account {identity['Account']}, the role of {account}", remedy)
    return Checked("ok", str(identity["Arn"]))


def _bucket(settings: SageMakerSettings) -> Checked:
    with answers.translated("look at the bucket"):
        # Without a prefix, list a single key; both prove the permission to list.
        listing = _client(settings, "s3").list_objects_v2(Bucket=settings.bucket, Prefix=settings.prefix, MaxKeys=1)
    region = listing["ResponseMetadata"]["HTTPHeaders"].get("x-amz-bucket-region", settings.region)
    if region != settings.region:
        return Checked("bad", f"{settings.bucket} lies in {region}", f"Use a bucket in {settings.region}")
    return Checked("ok", f"{settings.bucket} in {region} can be listed")


def _role(settings: SageMakerSettings) -> Checked:
    from botocore.exceptions import ClientError

    name = settings.role.rpartition("/")[2]
    with answers.translated("look at the role"):
        try:
            role = _client(settings, "iam").get_role(RoleName=name)["Role"]
        except ClientError as error:
            if code_of(error) == "NoSuchEntity":
                return Checked("bad", f"there is no role {name}", "Create it from docs/iam, or correct the option role")
            if code_of(error) in answers.DENIED:
                return Checked("warning", "not checked: the daemon may not read roles", "Nothing, if jobs start")
            raise
    trusted = str(role.get("AssumeRolePolicyDocument", ""))
    if "sagemaker.amazonaws.com" not in trusted:
        return Checked("bad", f"{name} does not trust SageMaker", "Set its trust policy from docs/iam/trust.json")
    return Checked("ok", f"{name} trusts SageMaker")


def _jobs(settings: SageMakerSettings) -> Checked:
    with answers.translated("look for a job"):
        answers.ask(lambda: _client(settings, "sagemaker").describe_training_job(TrainingJobName=_UNKNOWN_JOB))
    return Checked("ok", "can be described")


def _quota(settings: SageMakerSettings) -> Checked:
    """Check how many instances of each type the account may use; without permission, name AWS's page for it."""
    use = "spot training job usage" if settings.spot else "training job usage"
    wanted = [f"{instance_type} for {use}" for instance_type in settings.instance_types]
    with answers.translated("look at the quotas"):
        pages = _client(settings, "service-quotas").get_paginator("list_service_quotas")
        listed = answers.ask(
            lambda: [quota for page in pages.paginate(ServiceCode="sagemaker") for quota in page["Quotas"]],
            answers.DENIED,
        )
    if listed is None:
        listing = f"not checked for {', '.join(settings.instance_types)}: new accounts have 0"
        remedy = f"See Service Quotas, Amazon SageMaker, '<type> for {use}', or grant docs/iam/doctor.json"
        return Checked("warning", listing, remedy)
    limits = {quota["QuotaName"]: int(quota["Value"]) for quota in listed}
    listing = "; ".join(f"{name}: {limits.get(name, 'not listed')}" for name in wanted)
    if not any(limits.get(name) for name in wanted):
        return Checked("bad", listing, "Ask for at least 1 under Service Quotas, Amazon SageMaker")
    if not all(limits.get(name) for name in wanted):
        return Checked("warning", listing, "Ask for at least 1 of each, or take those without out of instance_types")
    return Checked("ok", listing)


def _image(settings: SageMakerSettings, now: float) -> Checked:
    """Check the image's address. Only the start of a job can show whether the image can be pulled."""
    address = image_address(settings.image, settings.region, settings.instance_types[0])
    parts = answers.ECR.fullmatch(address)
    if parts is None:
        return Checked("warning", f"{address} is no address of Amazon ECR", "SageMaker pulls from ECR in your region")
    if parts["region"] != settings.region:
        remedy = f"Use the same image of {settings.region}"
        return Checked("bad", f"{address} lies in {parts['region']}, the jobs run in {settings.region}", remedy)
    version = _VERSION.match(parts["tag"] or "") if parts["repository"] == "pytorch-training" else None
    until = _PATCHED_UNTIL.get(version[0]) if version else None
    if until is not None and now >= until.timestamp():
        remedy = "Choose a newer one: AWS's list of Deep Learning Containers"
        return Checked("warning", f"{address} gets no patches since {until:%Y-%m-%d}", remedy)
    return Checked("ok", f"{address}; whether it can be pulled is seen with the first job")


def _clock(settings: SageMakerSettings, now: float) -> Checked:
    with answers.translated("ask for the time"):
        answer = _client(settings, "sts").get_caller_identity()
    return check_clock(header_date(answer["ResponseMetadata"]["HTTPHeaders"].get("date")), now, "AWS")
