"""What S3 answers when it does not do what it was asked, in the words of the store."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from platforms.artifacts.base import Missing, StoreError, StoreUnreachable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from botocore.exceptions import ClientError

TAKEN = frozenset({"PreconditionFailed", "412"})
CONTENDED = frozenset({"ConditionalRequestConflict", "409"})
NO_UPLOAD = frozenset({"NoSuchUpload"})

_MISSING = frozenset({"NoSuchKey", "404", "NotFound"})
_DENIED = frozenset({"AccessDenied", "403", "Forbidden", "AllAccessDisabled"})
_CREDENTIALS = frozenset({
    "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken", "TokenRefreshRequired",
})  # fmt: skip
_REGION = frozenset({"PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException", "301"})
_RIGHTS = {
    "create": "s3:PutObject and s3:AbortMultipartUpload",
    "write": "s3:PutObject",
    "list": "s3:ListBucket",
    "delete": "s3:DeleteObject",
    "sweep": "s3:ListBucketMultipartUploads and s3:AbortMultipartUpload",
}


def code_of(error: ClientError) -> str:
    """Return S3's own word for an error."""
    return str(error.response.get("Error", {}).get("Code", ""))


@contextmanager
def translated(action: str, key: str, bucket: str) -> Iterator[None]:
    """Turn what the S3 client raises into StoreError and its kin."""
    from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, PartialCredentialsError
    from botocore.parsers import ResponseParserError

    try:
        yield
    except ClientError as error:
        raise _answered(action, key, bucket, error) from error
    except (NoCredentialsError, PartialCredentialsError) as error:
        remedy = "Give the daemon credentials by a profile, a role or the environment; see docs/inside/store.md"
        raise StoreError(action, key, str(error), remedy) from error
    except (BotoCoreError, ResponseParserError, OSError) as error:
        raise StoreUnreachable(action, key, str(error), "Check the endpoint and the network") from error


def _answered(action: str, key: str, bucket: str, error: ClientError) -> StoreError:
    code = code_of(error)
    why = str(error.response.get("Error", {}).get("Message") or code)
    if code in TAKEN:
        return StoreUnreachable(action, key, "it changed meanwhile", "Try again when nobody writes there")
    if code in _MISSING:
        return Missing(action, key, "there is no such object")
    if code == "NoSuchBucket":
        return StoreError(action, key, f"there is no bucket {bucket}", "Create it, or correct artifacts.options.bucket")
    if code in _DENIED:
        right = _RIGHTS.get(action, "s3:GetObject and s3:ListBucket")
        return StoreError(action, key, f"access to bucket {bucket} is denied", f"Grant {right} to the daemon")
    if code in _CREDENTIALS:
        return StoreError(action, key, f"{code}: {why}", "Correct or renew the daemon's credentials")
    if code in _REGION:
        return StoreError(action, key, f"{code}: {why}", f"Set artifacts.options.region to where {bucket} lies")
    if code == "RequestTimeTooSkewed":
        return StoreError(action, key, why, "Synchronise this machine's clock with NTP")
    return StoreUnreachable(action, key, f"{code}: {why}")
