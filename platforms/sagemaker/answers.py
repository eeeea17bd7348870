"""What AWS answers when it does not do what it was asked, in the words of the port."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from platforms.artifacts.base import StoreError, StoreUnreachable
from platforms.base import Misconfigured, PlatformError, Refused, Unreachable

if TYPE_CHECKING:
    from botocore.exceptions import ClientError

# A job that is not there is told in either of two ways.
MISSING = frozenset({"ResourceNotFound", "ResourceNotFoundException", "ValidationException"})
IN_USE = frozenset({"ResourceInUse", "ResourceInUseException"})
UNKNOWN = frozenset({"UnknownOperationException", "NotImplemented"})  # of a server that is not AWS, or not all of it
DENIED = frozenset({"AccessDenied", "AccessDeniedException", "UnauthorizedOperation"})

_CREDENTIALS = frozenset({
    "UnrecognizedClientException", "InvalidClientTokenId", "SignatureDoesNotMatch", "InvalidSignatureException",
    "ExpiredToken", "ExpiredTokenException", "IncompleteSignature", "MissingAuthenticationToken", "OptInRequired",
})  # fmt: skip
# All of botocore's words for it: which of them comes depends on the service, and on what stands before it.
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


def code_of(error: ClientError) -> str:
    """Return AWS's own word for an error."""
    return str(error.response.get("Error", {}).get("Code", ""))


def is_refusal(error: Exception, operation: str) -> bool:
    """Tell whether an error proves that ``operation`` was not carried out.

    Botocore repeats what was not answered, and what it is told then says nothing about the requests before.
    """
    from botocore.exceptions import ClientError, NoCredentialsError, ParamValidationError, PartialCredentialsError

    if isinstance(error, ClientError):
        told = error.response.get("ResponseMetadata", {})
        once = told.get("RetryAttempts", 0) == 0 and told.get("HTTPStatusCode", 500) < 500
        return once and error.operation_name == operation and code_of(error) not in IN_USE
    return isinstance(error, ParamValidationError | NoCredentialsError | PartialCredentialsError)


class Throttled(Unreachable):
    """AWS is asked too often, by us or by somebody else of the account."""


@contextmanager
def translated(action: str, now: int = 0) -> Iterator[None]:
    """Turn what AWS's client and the artifact store raise into PlatformError and its kin."""
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
        # AWS's client and we look for fields that were due, and for their types.
        why = f"the answer makes no sense: {type(error).__name__}: {error}"
        raise Unreachable("sagemaker", action, why, "Check the network") from error
    except (BotoCoreError, ResponseParserError, OSError, StoreUnreachable) as error:
        raise Unreachable("sagemaker", action, str(error), "Check the network and AWS's status page") from error
    except StoreError as error:
        raise Misconfigured("sagemaker", action, error.why, error.remedy) from error


def _answered(action: str, error: ClientError, now: int) -> PlatformError:
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
        if action == "launch":  # turned away before anything was done
            return Refused("sagemaker", action, why, wait_until=now + _THROTTLED_SECONDS)
        return Throttled("sagemaker", action, why)
    if code == "ValidationException" and action == "launch":
        return Misconfigured("sagemaker", action, why, "Check role, bucket, image and instance types of this pool")
    return Unreachable("sagemaker", action, why)
