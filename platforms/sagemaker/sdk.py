"""SageMaker's own Python SDK (version 3), where a pool asks for it: to look up images, and as another launcher.

It is an extra, because it brings about 130 packages; and it is imported here alone and when first used, because that
takes seconds and 170 MB. Everything else is done by boto3, and the launcher sends by the same client: only who puts the
request together differs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from platforms.base import Misconfigured

PREFIX = "sdk:"  # of images that are looked up: sdk:pytorch:2.10 or sdk:pytorch:2.10:py313
_PARTS = range(2, 4)
_WORDS = 300  # characters of the SDK's own messages, which name everything it knows
_EXTRA = "Install the extra: uff-scheduler[sagemaker]"


def names_image(text: str) -> bool:
    """Return whether an image is to be looked up, and is named as it should be."""
    parts = text.removeprefix(PREFIX).split(":")
    return text.startswith(PREFIX) and len(parts) in _PARTS and all(parts)


def image_address(text: str, region: str, instance_type: str) -> str:
    """Return the address of the training image named like ``sdk:pytorch:2.10``. Makes no request: the SDK has a list.

    Raises Misconfigured when the SDK is missing or does not know the image.
    """
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
    """Return a session for the SDK that hands out our own clients: our endpoint, credentials and retries.

    ``connect`` returns our client of a service. The SDK keeps each session it is given, so one is made for a pool.
    """
    import boto3

    session = boto3.session.Session(region_name=region)
    session.client = lambda service, *_, **__: connect(service)
    return session


def create_training_job(body: Mapping[str, Any], session: Any) -> None:
    """Create a training job of exactly this name by the SDK, which checks the request against its own model first.

    Raises Misconfigured, and what our client raises.
    """
    try:
        from sagemaker.core.resources import TrainingJob
        from sagemaker.core.utils.code_injection.codec import transform
    except ImportError as error:
        raise Misconfigured("sagemaker", "launch", str(error), f"{_EXTRA}, or set launcher = boto3") from error
    wanted = transform(dict(body), "CreateTrainingJobRequest")
    try:
        TrainingJob.create(**wanted, session=session, region=session.region_name)
    except ValueError as error:  # pydantic's: our request is none by the SDK's model
        raise Misconfigured("sagemaker", "launch", str(error)[:_WORDS], "Set launcher = boto3") from error
