"""The body of CreateTrainingJob, and what AWS would find wrong with it only late. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from platforms.base import Refused
from platforms.sagemaker.settings import SageMakerSettings

RUN_VARIABLE = "SCHED_RUN_ID"
OWNER_VARIABLE = "SCHED_OWNER"
CODE_CHANNEL = "code"
LAUNCH_CHANNEL = "launch"
# Seen from launch.json's folder: the job's own volume, where a job may write and from which AWS uploads nothing.
WORK_DIR = "../../../output/work"

# An image in Amazon ECR by tag, by digest or by name alone.
ECR = re.compile(
    r"\d{12}\.dkr\.ecr(-fips)?\.(?P<region>[a-z0-9-]+)\.amazonaws\.com(\.cn)?/(?P<repository>[a-z0-9._/-]+)"
    r"(:(?P<tag>[\w.-]+)|@sha256:[0-9a-f]{64})?",
    re.ASCII,
)
_NAME = re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}", re.ASCII)
_SECONDS_MAX = 28 * 86_400
_VALUE_BYTES_MAX = 512
_ARGUMENT_BYTES_MAX = 256


@dataclass(frozen=True, slots=True)
class SageMakerOrder:
    """What one training job is to do. ``code`` and ``launch`` are S3 prefixes that end with '/'."""

    key: str
    owner: str
    pool: str
    code: str
    launch: str
    output: str
    seconds: int


def valid_name(key: str) -> bool:
    """Return whether a launch key can be a training job's name."""
    return bool(_NAME.fullmatch(key))


def training_job(order: SageMakerOrder, settings: SageMakerSettings) -> dict[str, Any]:
    """Return the request. Raises Refused, for good, when AWS would not take it."""
    runtime = min(order.seconds, _SECONDS_MAX)
    stopping = {"MaxRuntimeInSeconds": runtime}
    if settings.spot:
        stopping["MaxWaitTimeInSeconds"] = min(runtime + (settings.pending_seconds or runtime), _SECONDS_MAX)
    elif settings.pending_seconds:
        stopping["MaxPendingTimeInSeconds"] = settings.pending_seconds
    request = {
        "TrainingJobName": order.key,
        "RoleArn": settings.role,
        "AlgorithmSpecification": {
            "TrainingImage": settings.image,
            "TrainingInputMode": "File",
            # Not the image's own: that runs scripts as grandchildren, which never see SIGTERM.
            "ContainerEntrypoint": [settings.python],
            "ContainerArguments": [
                f"/opt/ml/input/data/{CODE_CHANNEL}/payload/agent.py",
                f"/opt/ml/input/data/{LAUNCH_CHANNEL}/launch.json",
            ],
        },
        "InputDataConfig": [_channel(CODE_CHANNEL, order.code), _channel(LAUNCH_CHANNEL, order.launch)],
        "OutputDataConfig": {"S3OutputPath": order.output},
        "ResourceConfig": _resources(settings),
        "StoppingCondition": stopping,
        "EnableManagedSpotTraining": settings.spot,
        # Visible to all who may describe the job: names only, never a secret.
        "Environment": {RUN_VARIABLE: order.key, OWNER_VARIABLE: order.owner, "PYTHONUNBUFFERED": "1"},
        "Tags": [
            {"Key": "sched:run-id", "Value": order.key},
            {"Key": "sched:owner", "Value": order.owner},
            {"Key": "sched:pool", "Value": order.pool},
        ],
    }
    _check(request)
    return request


def is_ours(description: Mapping[str, Any], key: str, owner: str) -> bool:
    """Return whether a training job of this name is the one that this scheduler launched."""
    environment = description.get("Environment") or {}
    return environment.get(RUN_VARIABLE) == key and environment.get(OWNER_VARIABLE) == owner


def is_told(description: Mapping[str, Any]) -> bool:
    """Return whether a description says whose job it is: ours always do."""
    environment = description.get("Environment") or {}
    words = (environment.get(RUN_VARIABLE), environment.get(OWNER_VARIABLE))
    return all(isinstance(word, str) and word for word in words)


def _channel(name: str, prefix: str) -> dict[str, Any]:
    return {
        "ChannelName": name,
        "InputMode": "File",
        "DataSource": {
            "S3DataSource": {
                "S3DataType": "S3Prefix",
                # Without the '/' at its end a prefix also matches its neighbours.
                "S3Uri": prefix,
                "S3DataDistributionType": "FullyReplicated",
            }
        },
    }


def _resources(settings: SageMakerSettings) -> dict[str, Any]:
    if len(settings.instance_types) > 1:
        wishes = [{"InstanceType": name, "InstanceCount": 1} for name in settings.instance_types]
        return {"InstancePreferences": wishes, "VolumeSizeInGB": settings.volume_gb}
    return {"InstanceType": settings.instance_types[0], "InstanceCount": 1, "VolumeSizeInGB": settings.volume_gb}


def _check(request: Mapping[str, Any]) -> None:
    algorithm = request["AlgorithmSpecification"]
    words = [*algorithm["ContainerEntrypoint"], *algorithm["ContainerArguments"]]
    if not valid_name(request["TrainingJobName"]):
        raise _refused(f"{request['TrainingJobName']!r} cannot be a training job's name", "Use A-Z a-z 0-9 and -")
    if any(len(word) > _ARGUMENT_BYTES_MAX for word in words):
        raise _refused(f"a word of the entry point has more than {_ARGUMENT_BYTES_MAX} characters", "Shorten it")
    if any(len(text) > _VALUE_BYTES_MAX for pair in request["Environment"].items() for text in pair):
        raise _refused(f"an environment variable has more than {_VALUE_BYTES_MAX} characters", "Shorten it")
    if any(len(tag["Key"]) > 128 or len(tag["Value"]) > 256 for tag in request["Tags"]):
        raise _refused("a tag is too long", "Shorten the pool's name")


def _refused(why: str, remedy: str) -> Refused:
    return Refused("sagemaker", "launch", why, remedy, permanent=True)
