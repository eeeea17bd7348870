"""Settings of the S3 store that cannot work are refused at once, with what to write instead."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from platforms.artifacts.base import StoreError, open_store

GOOD = {"bucket": "team", "region": "eu-central-1"}


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"bucket": "team"}, "missing: region"),
        ({"region": "eu-central-1", "bucket": ""}, "missing: bucket"),
        ({**GOOD, "secret": "x"}, "unknown setting secret"),
        ({**GOOD, "bucket": "two words"}, "bucket = 'two words'"),
        ({**GOOD, "bucket": "team/uff"}, "bucket = 'team/uff'"),
        ({**GOOD, "prefix": "uff"}, "prefix = 'uff'"),
        ({**GOOD, "prefix": "../"}, "prefix = '../'"),
        ({**GOOD, "create_only": "maybe"}, "create_only = 'maybe'"),
        ({**GOOD, "endpoint": "nonsense"}, "nonsense"),
        ({**GOOD, "profile": "nobody-has-this"}, "nobody-has-this"),
    ],
)
def test_a_setting_that_cannot_work_is_named(tmp_path: Path, options: dict[str, str], why: str) -> None:
    pytest.importorskip("boto3", reason="boto3 is not installed")
    with pytest.raises(StoreError, match=why) as refused:
        open_store("s3", tmp_path, options)
    assert refused.value.remedy


def test_a_kind_that_is_not_there_is_named_with_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"no such kind of store.*directory, s3"):
        open_store("ftp", tmp_path, {})


def test_a_folder_has_no_options(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="unknown: bucket"):
        open_store("directory", tmp_path, {"bucket": "team"})


@pytest.mark.usefixtures("aws_credentials")
def test_only_aws_is_asked_before_it_is_sent_a_body() -> None:
    """Simple servers leave the question unanswered, and each object would wait a second for that."""
    pytest.importorskip("boto3", reason="boto3 is not installed")
    from botocore.awsrequest import AWSResponse

    from platforms.artifacts.s3.client import connect

    asked = {}
    for endpoint in ("", "http://127.0.0.1:9"):
        client = connect("s3", region="us-east-1", endpoint=endpoint)

        def answer(request: Any, endpoint: str = endpoint, **_: Any) -> Any:
            asked[endpoint] = "Expect" in request.headers
            return AWSResponse(request.url, 200, {}, SimpleNamespace(stream=lambda: iter([b""])))

        client.meta.events.register("before-send.s3", answer)
        client.put_object(Bucket="team", Key="a", Body=b"x")
    assert asked == {"": True, "http://127.0.0.1:9": False}
