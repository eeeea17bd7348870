"""The settings of a SageMaker pool, checked as far as possible without a call to AWS."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from platforms.artifacts.s3.client import S3Options, credential_files
from platforms.base import BadOption, Misconfigured, SecretWay
from platforms.options import YES, Written, read_options

PREFIX = "sdk:"  # of image names that the SDK looks up: sdk:pytorch:2.10 or sdk:pytorch:2.10:py313
_PARTS = range(2, 4)
_WORDS = 300  # characters of an SDK message that are shown; such a message may list all images
_EXTRA = "Install the extra: uff-scheduler[sagemaker]"
_ROLE = re.compile(r"arn:aws[a-z-]*:iam::\d{12}:role/[\w+=,.@/-]{1,512}", re.ASCII)
_INSTANCE = re.compile(r"ml\.[a-z0-9-]{1,20}\.[a-z0-9]{1,20}", re.ASCII)
_OWNER = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9.-]{0,63}", re.ASCII)
_SECRETS = re.compile(r"((ssm|secretsmanager):(/?[\w+=.@-]+(/[\w+=.@-]+)*/?|/))?", re.ASCII)
_INSTANCES_MAX = 5
_ACCELERATED = re.compile(r"ml\.(g|p|trn)\d")
_PENDING_MIN = 1_800


@dataclass(frozen=True, kw_only=True)
class SageMakerSettings(S3Options):
    """The settings of a pool.

    ``image`` is an address, or a name that SageMaker's SDK knows; ``launcher`` is what sends requests: boto3 or sdk.
    ``instance_types`` are tried in order; ``pending_seconds`` is how long AWS may wait for one (0: AWS's own limit),
    ``poll_seconds`` the interval between polls of a running job. ``owner`` distinguishes this scheduler's jobs from
    another's of the same name; if empty, it is generated at first use. ``secrets`` says where sessions look up secrets:
    ``ssm:`` or ``secretsmanager:`` and the prefix of the names there; empty means that they get none.
    """

    role: Annotated[
        str, Written(form=_ROLE, remedy="Write the execution role's ARN: arn:aws:iam::<account>:role/<name>")
    ]
    image: str
    instance_types: tuple[str, ...]
    python: str = "python3"
    volume_gb: Annotated[int, Written(least=1)] = 50
    pending_seconds: int = 3_600
    poll_seconds: int = 30
    spot: Annotated[bool, YES] = False
    launcher: Annotated[str, Written(words=("boto3", "sdk"), remedy="Write boto3 or sdk")] = "boto3"
    owner: Annotated[str, Written(form=_OWNER, remedy="Use characters, digits, hyphens and dots only")] = ""
    force_p3: Annotated[bool, YES] = False
    secrets: Annotated[
        str, Written(form=_SECRETS, remedy='Write "ssm:/uff/" or "secretsmanager:uff/"; the name of each follows it')
    ] = ""


def files(options: Mapping[str, str], environ: Mapping[str, str]) -> list[Path]:
    """Return every file that credentials of a pool with these options may come from, existing or not."""
    return credential_files(options.get("credentials", ""), environ)


def read_settings(options: Mapping[str, str]) -> SageMakerSettings:
    """Return the settings of a pool. Raises Misconfigured."""
    settings = read_options("sagemaker", SageMakerSettings, options)
    image, types = settings.image, settings.instance_types
    if len(image) > 255 or not image.isprintable() or (image.startswith(PREFIX) and not names_image(image)):
        raise _bad(f"image = {image[:255]!r}", "Write the address of a training image, or a name like sdk:pytorch:2.10")
    if not types or len(types) > _INSTANCES_MAX or not all(_INSTANCE.fullmatch(name) for name in types):
        raise _bad(f"instance_types = {options['instance_types']!r}", "Write one to five like ml.g6.xlarge")
    if not settings.force_p3 and (old := [name for name in types if name.startswith("ml.p3.")]):
        raise _bad(
            f"{', '.join(old)} costs five times as much as ml.g4dn.xlarge, and no PyTorch image that AWS still cares "
            "for has kernels for its V100",
            "Use ml.g4dn.xlarge, ml.g6.xlarge or ml.g5.xlarge; with an image of your own set force_p3 = yes",
        )
    if settings.spot and len(types) > 1:
        raise _bad("spot works with one instance type only", "Keep one, or set spot = no")
    bounded = settings.spot or all(map(_ACCELERATED.match, types))
    pending = settings.pending_seconds if bounded or "pending_seconds" in options else 0
    if 0 < pending < _PENDING_MIN:
        raise _bad(f"pending_seconds = {pending}", f"AWS takes {_PENDING_MIN} or more; 0 leaves it to AWS")
    if pending and not bounded:
        raise _bad(f"pending_seconds = {pending}", "AWS bounds the wait for types with an accelerator only: remove it")
    return replace(settings, pending_seconds=pending)


def secret_way(options: Mapping[str, str]) -> SecretWay:
    """Return how sessions get secrets: they ask the AWS service that the option names. Raises Misconfigured."""
    if read_options("sagemaker", SageMakerSettings, options).secrets:
        return SecretWay("asked")
    remedy = 'Store them in Systems Manager and set secrets = "ssm:/uff/" among the options; see docs/sagemaker.md'
    return SecretWay("none", "nothing says where at AWS a training job finds secrets", remedy)


def _bad(why: str, remedy: str) -> BadOption:
    return BadOption("sagemaker", "load", why, remedy)


# SageMaker's Python SDK (version 3), for pools that use it: to look up images, and as another launcher.
#
# The SDK is an extra, because it installs about 130 packages. It is imported only here and at first use, because that
# takes seconds and 170 MB. boto3 does everything else; the SDK's launcher also sends its request by boto3, and only
# builds it in another way.
def names_image(text: str) -> bool:
    """Return whether ``text`` is a valid name of an image for the SDK to look up."""
    parts = text.removeprefix(PREFIX).split(":")
    return text.startswith(PREFIX) and len(parts) in _PARTS and all(parts)


def image_address(text: str, region: str, instance_type: str) -> str:
    """Return the address of a training image; a name such as ``sdk:pytorch:2.10`` is looked up in the SDK.

    Raises Misconfigured if the SDK is missing or does not know the image.
    """
    if not names_image(text):
        return text
    framework, version, *python = text.removeprefix(PREFIX).split(":")
    try:
        from sagemaker.core import image_uris
    except ImportError as error:
        raise Misconfigured("sagemaker", "look up the image", str(error), f"{_EXTRA}, or write the address") from error
    try:
        address: str = image_uris.retrieve(
            framework,
            region,
            version=version,
            py_version=python[0] if python else None,
            instance_type=instance_type,
            image_scope="training",
        )
    except ValueError as error:
        remedy = "Name one that it knows, or write the image's address"
        raise Misconfigured("sagemaker", "look up the image", str(error)[:_WORDS], remedy) from error
    return address


def session_of(connect: Callable[[str], Any], region: str) -> Any:
    """Return a session for the SDK that uses our clients: our endpoint, credentials and retries.

    ``connect`` returns our client of a service. The SDK keeps each session that it gets, so create one per pool.
    """
    import boto3

    session = boto3.session.Session(region_name=region)
    session.client = lambda service, *_, **__: connect(service)
    return session


def create_by_sdk(body: Mapping[str, Any], session: Any) -> None:
    """Create a training job of exactly this name by the SDK, which first checks the request against its own model.

    Raises Misconfigured, and the errors of our client.
    """
    try:
        from sagemaker.core.resources import TrainingJob
        from sagemaker.core.utils.code_injection.codec import transform
    except ImportError as error:
        raise Misconfigured("sagemaker", "launch", str(error), f"{_EXTRA}, or set launcher = boto3") from error
    wanted = transform(dict(body), "CreateTrainingJobRequest")
    try:
        TrainingJob.create(**wanted, session=session, region=session.region_name)
    except ValueError as error:  # pydantic's error: our request does not match the SDK's model
        raise Misconfigured("sagemaker", "launch", str(error)[:_WORDS], "Set launcher = boto3") from error
