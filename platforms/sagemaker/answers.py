"""Build requests about training jobs; translate AWS's responses and errors for the platform interface."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from jobs.payload.bounds import INSTANT_MAX, digits
from platforms.artifacts.base import StoreError, StoreUnreachable
from platforms.artifacts.s3.client import code_of
from platforms.base import InQueue, Misconfigured, Observed, PlatformError, Refused, SessionState, Unreachable
from platforms.sagemaker.settings import SageMakerSettings

if TYPE_CHECKING:
    from botocore.exceptions import ClientError

_GOING = frozenset({"InProgress", "Stopping"})
TERMINAL = frozenset({"Completed", "Failed", "Stopped", "Deleting"})  # only ended jobs can be deleted
NO_MACHINE = "CapacityError"  # the class of a failure that is not the code's fault
_INTERRUPTED = frozenset({"Interrupted", "Restarting"})
_AWS_FAILED = frozenset({NO_MACHINE, "InternalServerError"})
# How long after a job's end its billed time may be missing.
_BILL_SECONDS = 600
_REASON_CHARACTERS, _WORD_CHARACTERS = 500, 40
_SECONDS_MAX = 366 * 86_400  # longer than any job of AWS
_NEEDED = {"TrainingJobArn": str, "TrainingJobStatus": str, "CreationTime": datetime}
_OPTIONAL: Mapping[str, type] = {
    "TrainingStartTime": datetime,
    "TrainingEndTime": datetime,
    "LastModifiedTime": datetime,
    "BillableTimeInSeconds": int,
    "SecondaryStatus": str,
    "FailureReason": str,
    "SecondaryStatusTransitions": list,
    "StoppingCondition": dict,
    "Environment": dict,
}
_RUNTIME_SECONDS = 86_400  # AWS's own limit if none is set
GROUP = "/aws/sagemaker/TrainingJobs"
# AWS has several error codes for a job that does not exist.
MISSING = frozenset({"ResourceNotFound", "ResourceNotFoundException", "ValidationException"})
IN_USE = frozenset({"ResourceInUse", "ResourceInUseException"})
# Error codes of a server that is not AWS and lacks the operation.
UNKNOWN = frozenset({"UnknownOperationException", "NotImplemented"})
DENIED = frozenset({"AccessDenied", "AccessDeniedException", "UnauthorizedOperation"})

_CREDENTIALS = frozenset({
    "UnrecognizedClientException", "InvalidClientTokenId", "SignatureDoesNotMatch", "InvalidSignatureException",
    "ExpiredToken", "ExpiredTokenException", "IncompleteSignature", "MissingAuthenticationToken", "OptInRequired",
})  # fmt: skip
# Codes of one error: which one botocore reports depends on the service and on proxies before it.
_THROTTLED = frozenset({
    "ThrottlingException", "Throttling", "ThrottledException", "RequestThrottled", "RequestThrottledException",
    "TooManyRequestsException", "RequestLimitExceeded", "LimitExceededException", "BandwidthLimitExceeded",
    "PriorRequestNotComplete", "ProvisionedThroughputExceededException", "TransactionInProgressException",
    "EC2ThrottledException", "SlowDown", "429",
})  # fmt: skip
_CAPACITY = frozenset({"CapacityError", "InsufficientCapacityException", "ServiceQuotaExceededException"})
_LIMIT = re.compile(r"\bis (\d+) Instances", re.IGNORECASE)
_THROTTLED_SECONDS = 120
_LIMIT_SECONDS = 300
CAPACITY_SECONDS = 900


# The meaning of a training job's description. ``Stopped`` does not mean success: it is also the status after a stop, a
# time limit and a lost spot instance. The results of a session are in the artifact store, never in the description.
def lacking(description: Mapping[str, Any], key: str) -> str:
    """Return what a description of ``key`` lacks; "" if nothing. The client checks no types of fields."""
    if description.get("TrainingJobName") != key:
        return f"it is not about {key}"
    for name, kind in _NEEDED.items():
        if not isinstance(description.get(name), kind):
            return f"{name} is missing or of another type"
    for name, kind in _OPTIONAL.items():
        if not isinstance(description.get(name), kind | None) or isinstance(description.get(name), bool):
            return f"{name} is of another type"
    if not all(isinstance(step, dict) for step in description.get("SecondaryStatusTransitions") or ()):
        return "SecondaryStatusTransitions is of another type"
    if not isinstance((description.get("StoppingCondition") or {}).get("MaxRuntimeInSeconds"), int | None):
        return "StoppingCondition is of another type"
    if not 0 <= (description.get("BillableTimeInSeconds") or 0) <= _SECONDS_MAX:
        return "BillableTimeInSeconds cannot be"
    ran = description["TrainingJobStatus"] == "Completed" or description.get("BillableTimeInSeconds")
    if ran and description.get("TrainingStartTime") is None:
        return "it ran, and when it started is missing"
    return ""


def observed(description: Mapping[str, Any], now: int) -> Observed:
    """Return a training job as an observed session; UNCLEAR if its status is unknown to us.

    ``started`` .. ``ended`` is exactly the billed time. An ended job without a billed time counts as running for at
    most ten minutes; then the time from its start to its end is used.
    """
    key, arn = str(description["TrainingJobName"]), str(description["TrainingJobArn"])
    status = str(description["TrainingJobStatus"])
    began = description.get("TrainingStartTime")
    started = None if began is None else int(began.timestamp())
    if status not in TERMINAL | _GOING:
        return Observed(key, SessionState.UNCLEAR, arn, detail=f"its status {status[:_WORD_CHARACTERS]!r} is not known")
    if status not in TERMINAL:
        # A spot job that waits for another instance keeps its times, so it counts as running.
        state = SessionState.QUEUED if started is None else SessionState.RUNNING
        waits = InQueue(_waiting(description)) if started is None else None
        return Observed(key, state, arn, started, detail=status, waits=waits)
    if started is None:
        return Observed(key, SessionState.ABSENT, arn, detail=f"never started: {_why(description)}")
    billed, end = description.get("BillableTimeInSeconds"), description.get("TrainingEndTime")
    if billed is None:
        if end is None or now < end.timestamp() + _BILL_SECONDS:
            return Observed(key, SessionState.RUNNING, arn, started, detail=f"{status}, not billed yet")
        billed = round((end - began).total_seconds())
    if not billed and failure(description)[0] == NO_MACHINE:
        return Observed(key, SessionState.ABSENT, arn, detail=f"never started: {_why(description)}")
    interrupted = _was_interrupted(description) or failure(description)[0] in _AWS_FAILED
    return Observed(key, SessionState.ENDED, arn, started, started + int(billed), _why(description), taken=interrupted)


def ends_by(description: Mapping[str, Any]) -> int:
    """Return when AWS ends a job at the latest, if it started when it was created."""
    runtime = description.get("StoppingCondition", {}).get("MaxRuntimeInSeconds", _RUNTIME_SECONDS)
    return int(description["CreationTime"].timestamp()) + int(runtime)


def lost_its_instance(description: Mapping[str, Any]) -> bool:
    """Return whether a job that has not ended lost its instance, even if it has another by now."""
    return description["TrainingJobStatus"] == "InProgress" and _was_interrupted(description)


def failure(description: Mapping[str, Any]) -> tuple[str, str]:
    """Return the class that AWS puts before a failure's reason, such as ``CapacityError``, and the whole reason."""
    reason = str(description.get("FailureReason") or "")
    kind, colon, _ = reason.partition(":")
    return (kind if colon else "", reason[:_REASON_CHARACTERS])


def _was_interrupted(description: Mapping[str, Any]) -> bool:
    stages = {step.get("Status") for step in description.get("SecondaryStatusTransitions") or ()}
    return not {*stages, description.get("SecondaryStatus")}.isdisjoint(_INTERRUPTED)


def _waiting(description: Mapping[str, Any]) -> str:
    """Return the stage of a job without an instance, with AWS's message about it."""
    stage = str(description.get("SecondaryStatus") or description["TrainingJobStatus"])
    last: Mapping[str, Any] = (description.get("SecondaryStatusTransitions") or [{}])[-1]
    message = str(last.get("StatusMessage") or "") if last.get("Status") == stage else ""
    return (f"{stage}: {message}" if message else stage)[:_REASON_CHARACTERS]


def _why(description: Mapping[str, Any]) -> str:
    status, secondary = str(description["TrainingJobStatus"]), str(description.get("SecondaryStatus") or "")
    words = status if secondary in {"", status} else f"{status}, {secondary}"
    reason = str(description.get("FailureReason") or "")[:_REASON_CHARACTERS]
    return f"{words}: {reason}" if reason else words


# The output of a training job, from CloudWatch: one stream for each start of its container.
def read_logs(client: Any, job: str, offset: int, limit_bytes: int) -> Iterator[bytes]:
    """Yield a job's output from byte ``offset`` on, at most ``limit_bytes``; each event is a line.

    There is no output before the container starts, or if its image cannot be pulled. Raises ClientError,
    BotoCoreError.
    """
    from botocore.exceptions import ClientError

    skip = max(0, offset)
    try:
        for line in _lines(client, job):
            if limit_bytes <= 0:
                return
            piece = line[skip:][:limit_bytes]
            skip = max(0, skip - len(line))
            limit_bytes -= len(piece)
            if piece:
                yield piece
    except ClientError as error:
        if code_of(error) != "ResourceNotFoundException":
            raise


def _lines(client: Any, job: str) -> Iterator[bytes]:
    streams = client.get_paginator("describe_log_streams").paginate(logGroupName=GROUP, logStreamNamePrefix=f"{job}/")
    names = [stream["logStreamName"] for page in streams for stream in page["logStreams"]]
    for name in sorted(names, key=_started):
        token: str | None = None
        while True:
            more = {"nextToken": token} if token else {}
            page = client.get_log_events(logGroupName=GROUP, logStreamName=name, startFromHead=True, **more)
            for event in page["events"]:
                yield event["message"].encode() + b"\n"
            if page["nextForwardToken"] == token:
                break
            token = page["nextForwardToken"]


def _started(stream: str) -> tuple[int, str]:
    """Return the start of a stream named ``<job>/algo-<n>-<epoch>``."""
    return (digits(stream.rpartition("-")[2], INSTANT_MAX) or 0, stream)


def ask(call: Callable[[], Any], none: Collection[str] = MISSING) -> Any:
    """Return the response to a call; None for the error codes in ``none``, such as that of a missing job."""
    from botocore.exceptions import ClientError

    try:
        return call()
    except ClientError as error:
        if code_of(error) in none:
            return None
        raise


def is_refusal(error: Exception, operation: str) -> bool:
    """Return whether an error proves that ``operation`` was not carried out.

    Botocore retries requests without a response; the error of a retry proves nothing about the earlier attempts.
    """
    from botocore.exceptions import ClientError, NoCredentialsError, ParamValidationError, PartialCredentialsError

    if isinstance(error, ClientError):
        metadata = error.response.get("ResponseMetadata", {})
        once = metadata.get("RetryAttempts", 0) == 0 and metadata.get("HTTPStatusCode", 500) < 500
        return once and error.operation_name == operation and code_of(error) not in IN_USE
    return isinstance(error, ParamValidationError | NoCredentialsError | PartialCredentialsError)


def of_one_type(request: Mapping[str, Any], error: Exception) -> dict[str, Any] | None:
    """Return an invalid request with only the first of its instance types; None if it has only one.

    Not every region, and not every version of AWS's client, knows InstancePreferences.
    """
    from botocore.exceptions import ClientError, ParamValidationError

    invalid = isinstance(error, ParamValidationError)
    if isinstance(error, ClientError):
        invalid = code_of(error) == "ValidationException"
    resources = dict(request["ResourceConfig"])
    wishes = resources.pop("InstancePreferences", ())
    return {**request, "ResourceConfig": {**resources, **wishes[0]}} if wishes and invalid else None


class Throttled(Unreachable):
    """AWS throttles requests, of us or of other users of the account."""


@contextmanager
def translated(action: str, now: int = 0) -> Iterator[None]:
    """Translate errors of AWS's client and of the artifact store into PlatformError and its subclasses."""
    from botocore.exceptions import (
        BotoCoreError,
        ClientError,
        NoCredentialsError,
        ParamValidationError,
        PartialCredentialsError,
        ProfileNotFound,
    )
    from botocore.parsers import ResponseParserError

    try:
        yield
    except ClientError as error:
        raise _answered(action, error, now) from error
    except ParamValidationError as error:
        raise Refused("sagemaker", action, str(error), permanent=True) from error
    except (NoCredentialsError, PartialCredentialsError, ProfileNotFound) as error:
        remedy = "Give the daemon credentials by a profile, a file, a role or the environment"
        raise Misconfigured("sagemaker", action, str(error), remedy) from error
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError) as error:
        if action == "connect":
            raise Misconfigured("sagemaker", action, str(error), "Correct credentials or endpoint") from error
        # AWS's client and our code expect certain fields of certain types.
        why = f"the answer makes no sense: {type(error).__name__}: {error}"
        raise Unreachable("sagemaker", action, why, "Check the network") from error
    except (BotoCoreError, ResponseParserError, OSError, StoreUnreachable) as error:
        raise Unreachable("sagemaker", action, str(error), "Check the network and AWS's status page") from error
    except StoreError as error:
        raise Misconfigured("sagemaker", action, error.why, error.remedy) from error


def _answered(action: str, error: "ClientError", now: int) -> PlatformError:
    code = code_of(error)
    why = f"{code}: {error.response.get('Error', {}).get('Message', '')}"
    if code == "ResourceLimitExceeded":
        limit = _LIMIT.search(why)
        if limit and limit[1] == "0":
            remedy = (
                "Ask AWS for a quota of at least 1 under Service Quotas, SageMaker, '<type> for training job usage'"
            )
            return Misconfigured("sagemaker", action, why, remedy)
        return Refused("sagemaker", action, why, "Wait until a job ends", wait_until=now + _LIMIT_SECONDS)
    if code in _CAPACITY:
        return Refused("sagemaker", action, why, wait_until=now + CAPACITY_SECONDS)
    if code in DENIED:
        return Misconfigured("sagemaker", action, why, "Compare the daemon's rights with docs/iam/daemon.json")
    if code in _CREDENTIALS:
        return Misconfigured("sagemaker", action, why, "Correct or renew the daemon's credentials")
    if code in _THROTTLED:
        if action == "launch":  # rejected before anything was done
            return Refused("sagemaker", action, why, wait_until=now + _THROTTLED_SECONDS)
        return Throttled("sagemaker", action, why)
    if code == "ValidationException" and action == "launch":
        return Misconfigured("sagemaker", action, why, "Check role, bucket, image and instance types of this pool")
    return Unreachable("sagemaker", action, why)


# The request of CreateTrainingJob, with a check for errors that AWS reports only later. Pure.
RUN_VARIABLE = "SCHED_RUN_ID"
OWNER_VARIABLE = "SCHED_OWNER"
CODE_CHANNEL = "code"
LAUNCH_CHANNEL = "launch"
# Relative to the folder of launch.json: a folder on the job's own volume, which AWS does not upload.
WORK_DIR = "../../../output/work"

# An image in Amazon ECR by tag, by digest or only by name.
ECR = re.compile(
    r"\d{12}\.dkr\.ecr(-fips)?\.(?P<region>[a-z0-9-]+)\.amazonaws\.com(\.cn)?/(?P<repository>[a-z0-9._/-]+)"
    r"(:(?P<tag>[\w.-]+)|@sha256:[0-9a-f]{64})?",
    re.ASCII,
)
_NAME = re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}", re.ASCII)
_RUNTIME_SECONDS_MAX = 28 * 86_400
_VALUE_BYTES_MAX = 512
_ARGUMENT_BYTES_MAX = 256


@dataclass(frozen=True, slots=True)
class SageMakerOrder:
    """The content of one training job. ``code`` and ``launch`` are S3 prefixes that end with '/'."""

    key: str
    owner: str
    pool: str
    code: str
    launch: str
    output: str
    seconds: int


def valid_name(key: str) -> bool:
    """Return whether a launch key is valid as the name of a training job."""
    return bool(_NAME.fullmatch(key))


def training_job(order: SageMakerOrder, settings: SageMakerSettings) -> dict[str, Any]:
    """Return the request. Raises Refused, permanent, if AWS would reject it."""
    runtime = min(order.seconds, _RUNTIME_SECONDS_MAX)
    stopping = {"MaxRuntimeInSeconds": runtime}
    if settings.spot:
        stopping["MaxWaitTimeInSeconds"] = min(runtime + (settings.pending_seconds or runtime), _RUNTIME_SECONDS_MAX)
    elif settings.pending_seconds:
        stopping["MaxPendingTimeInSeconds"] = settings.pending_seconds
    request = {
        "TrainingJobName": order.key,
        "RoleArn": settings.role,
        "AlgorithmSpecification": {
            "TrainingImage": settings.image,
            "TrainingInputMode": "File",
            # Not the image's own entrypoint, because it runs scripts as grandchildren, which never get SIGTERM.
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
        # Everyone who may describe the job can see these, so they must not contain secrets.
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
    """Return whether this scheduler launched the training job of this name."""
    environment = description.get("Environment") or {}
    return environment.get(RUN_VARIABLE) == key and environment.get(OWNER_VARIABLE) == owner


def is_told(description: Mapping[str, Any]) -> bool:
    """Return whether a description names its launch key and its owner, as those of our jobs always do."""
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
                # Without the '/' at its end a prefix also matches longer names.
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
