"""A look at an account before anything depends on it: what `schedctl doctor sagemaker` asks. It costs nothing."""

from __future__ import annotations

from email.utils import parsedate_to_datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from platforms.base import Checked
from platforms.sagemaker import answers
from platforms.sagemaker.settings import read_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from platforms.sagemaker.settings import Settings

_SKEW_SECONDS = 60
_NOBODY = "uff-doctor-looks-for-nobody"


def checks(
    settings: Mapping[str, str], environ: Mapping[str, str], now: float, *, probe: bool
) -> dict[str, Callable[[], Checked]]:
    """Return the checks of one pool by name, to be called in any order; ``now`` is real UTC seconds.

    There is no probe that costs nothing, so ``probe`` adds none. What fails raises PlatformError.
    """
    del environ, probe
    chosen = read_settings(settings)
    return {
        "identity": partial(_identity, chosen),
        "bucket": partial(_bucket, chosen),
        "execution role": partial(_role, chosen),
        "training jobs": partial(_jobs, chosen),
        "instance quota": partial(_quota, chosen),
        "clock": partial(_clock, chosen, now),
    }


def _client(settings: Settings, service: str) -> Any:
    with answers.translated("connect"):
        return settings.client(service)


def _identity(settings: Settings) -> Checked:
    with answers.translated("identify"):
        identity = _client(settings, "sts").get_caller_identity()
    account = settings.role.split(":")[4]
    if identity["Account"] != account:
        remedy = "Use credentials and an execution role of one account"
        return Checked("bad", f"{identity['Arn']} is of account {identity['Account']}, the role of {account}", remedy)
    return Checked("ok", str(identity["Arn"]))


def _bucket(settings: Settings) -> Checked:
    with answers.translated("look at the bucket"):
        # Without a prefix of our own the listing is of one key; both prove the right to list.
        found = _client(settings, "s3").list_objects_v2(Bucket=settings.bucket, Prefix=settings.prefix, MaxKeys=1)
    headers = found["ResponseMetadata"]["HTTPHeaders"]
    region = headers.get("x-amz-bucket-region", settings.region)
    if region != settings.region:
        return Checked("bad", f"{settings.bucket} lies in {region}", f"Use a bucket in {settings.region}")
    return Checked("ok", f"{settings.bucket} in {region} can be listed")


def _role(settings: Settings) -> Checked:
    from botocore.exceptions import ClientError

    name = settings.role.rpartition("/")[2]
    with answers.translated("look at the role"):
        try:
            role = _client(settings, "iam").get_role(RoleName=name)["Role"]
        except ClientError as error:
            if answers.code_of(error) == "NoSuchEntity":
                return Checked("bad", f"there is no role {name}", "Create it from docs/iam, or correct the option role")
            if answers.code_of(error) in answers.DENIED:
                return Checked("warning", "not checked: the daemon may not read roles", "Nothing, if jobs start")
            raise
    trusted = str(role.get("AssumeRolePolicyDocument", ""))
    if "sagemaker.amazonaws.com" not in trusted:
        return Checked("bad", f"{name} does not trust SageMaker", "Set its trust policy from docs/iam/trust.json")
    return Checked("ok", f"{name} trusts SageMaker")


def _jobs(settings: Settings) -> Checked:
    from botocore.exceptions import ClientError

    with answers.translated("look for a job"):
        try:
            _client(settings, "sagemaker").describe_training_job(TrainingJobName=_NOBODY)
        except ClientError as error:
            if answers.code_of(error) not in answers.MISSING:
                raise
    return Checked("ok", "can be described")


def _quota(settings: Settings) -> Checked:
    """The quota can be read only by rights that a daemon does not need; say where people see it."""
    types = ", ".join(settings.instance_types)
    found = f"not checked for {types}: new accounts have 0"
    return Checked("warning", found, "See Service Quotas, Amazon SageMaker, '<type> for training job usage'")


def _clock(settings: Settings, now: float) -> Checked:
    with answers.translated("ask for the time"):
        answer = _client(settings, "sts").get_caller_identity()
    theirs = parsedate_to_datetime(answer["ResponseMetadata"]["HTTPHeaders"]["date"]).timestamp()
    off = round(now - theirs)
    if abs(off) > _SKEW_SECONDS:
        return Checked("bad", f"this machine's clock is {off:+d} s off AWS's", "Synchronise it with NTP")
    return Checked("ok", f"agrees with AWS's to {max(1, abs(off))} s")
