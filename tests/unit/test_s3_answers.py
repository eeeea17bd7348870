"""Every way in which S3 says no becomes the store's own error, with what to do about it."""

import pytest

from platforms.artifacts.base import Missing, StoreError, StoreUnreachable
from platforms.artifacts.s3.client import translated

exceptions = pytest.importorskip("botocore.exceptions", reason="boto3 is not installed")


@pytest.mark.parametrize(
    ("code", "kind", "remedy"),
    [
        ("NoSuchKey", Missing, ""),
        ("404", Missing, ""),
        ("NoSuchBucket", StoreError, "Create it"),
        ("AccessDenied", StoreError, "Grant s3:PutObject to the daemon"),
        ("403", StoreError, "Grant s3:PutObject to the daemon"),
        ("ExpiredToken", StoreError, "renew"),
        ("PermanentRedirect", StoreError, "region"),
        ("RequestTimeTooSkewed", StoreError, "NTP"),
        ("SlowDown", StoreUnreachable, ""),
        ("InternalError", StoreUnreachable, ""),
        ("NeverHeardOf", StoreUnreachable, ""),
    ],
)
def test_an_answer_becomes_an_error_with_a_remedy(code: str, kind: type[StoreError], remedy: str) -> None:
    with pytest.raises(StoreError) as refused, translated("write", "a/b", "team"):
        raise exceptions.ClientError({"Error": {"Code": code, "Message": "no"}}, "PutObject")
    assert type(refused.value) is kind
    assert remedy in refused.value.remedy
    assert refused.value.key == "a/b"


def test_missing_credentials_are_no_outage() -> None:
    with pytest.raises(StoreError, match="credentials") as refused, translated("read", "a", "team"):
        raise exceptions.NoCredentialsError
    assert type(refused.value) is StoreError


def test_silence_is_unreachable() -> None:
    with pytest.raises(StoreUnreachable), translated("read", "a", "team"):
        raise exceptions.ReadTimeoutError(endpoint_url="http://127.0.0.1")


def test_an_answer_that_cannot_be_read_is_no_answer() -> None:
    from botocore.parsers import ResponseParserError

    with pytest.raises(StoreUnreachable), translated("list", "a/", "team"):
        raise ResponseParserError("invalid XML")
