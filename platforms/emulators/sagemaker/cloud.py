"""The instances' own way to S3 and CloudWatch, past the faults that are meant for the scheduler."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any, ClassVar

from platforms.sagemaker.logs import GROUP

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_FIRST_REGION = "us-east-1"  # the only one whose name must not be given when a bucket is made
_SERVICE = "sagemaker.amazonaws.com"


class MotoCloud:
    """Moto's S3 and CloudWatch at ``address``."""

    SIGNATURE: ClassVar[str] = "emulated-instance"

    def __init__(self, address: str, region: str) -> None:
        self._region = region
        self._files = self._client("s3", address)
        self._logs = self._client("logs", address)
        self._roles = self._client("iam", address)

    def make_bucket(self, bucket: str) -> None:
        """Make an empty bucket; one that is there already stays."""
        from botocore.exceptions import ClientError

        elsewhere = {"CreateBucketConfiguration": {"LocationConstraint": self._region}}
        try:
            self._files.create_bucket(Bucket=bucket, **({} if self._region == _FIRST_REGION else elsewhere))
        except ClientError as error:
            if error.response["Error"]["Code"] != "BucketAlreadyOwnedByYou":
                raise

    def make_role(self, name: str) -> None:
        """Make an execution role that trusts SageMaker; one that is there already stays."""
        from botocore.exceptions import ClientError

        statement = {"Effect": "Allow", "Principal": {"Service": _SERVICE}, "Action": "sts:AssumeRole"}
        trust = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
        try:
            self._roles.create_role(RoleName=name, AssumeRolePolicyDocument=trust)
        except ClientError as error:
            if error.response["Error"]["Code"] != "EntityAlreadyExists":
                raise

    def copy(self, uri: str, folder: Path) -> int:
        """Copy all objects whose names begin with ``uri``, as SageMaker does: a prefix need not end at a '/'."""
        bucket, _, prefix = uri.removeprefix("s3://").partition("/")
        pages = self._files.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
        number = 0
        for page in pages:
            for entry in page.get("Contents", ()):
                path = folder / entry["Key"].removeprefix(prefix).lstrip("/")
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(self._files.get_object(Bucket=bucket, Key=entry["Key"])["Body"].read())
                number += 1
        return number

    def log(self, job: str, lines: Iterable[bytes]) -> None:
        """Send each line as an event as soon as it is there. The stream begins with the first."""
        at = int(time.time() * 1000)  # noqa: TID251 - CloudWatch lives in real time
        stream = f"{job}/algo-1-{at // 1000}"
        begun = False
        for line in lines:
            if not begun:
                self._begin(stream)
                begun = True
            at = max(at, int(time.time() * 1000))  # noqa: TID251 - as above
            message = line.rstrip(b"\n").decode(errors="replace") or " "
            events = [{"timestamp": at, "message": message}]
            self._logs.put_log_events(logGroupName=GROUP, logStreamName=stream, logEvents=events)

    def forget_logs(self) -> None:
        """Remove all output: moto's memory is the whole process's, and the next place must not find it."""
        from botocore.exceptions import ClientError

        try:
            self._logs.delete_log_group(logGroupName=GROUP)
        except ClientError as error:
            if error.response["Error"]["Code"] != "ResourceNotFoundException":
                raise

    def _begin(self, stream: str) -> None:
        from botocore.exceptions import ClientError

        try:
            self._logs.create_log_group(logGroupName=GROUP)
        except ClientError as error:
            if error.response["Error"]["Code"] != "ResourceAlreadyExistsException":
                raise
        self._logs.create_log_stream(logGroupName=GROUP, logStreamName=stream)

    def _client(self, service: str, address: str) -> Any:
        import boto3
        from botocore.config import Config

        return boto3.session.Session(
            aws_access_key_id="emulator", aws_secret_access_key=self.SIGNATURE, region_name=self._region
        ).client(service, endpoint_url=address, config=Config(user_agent_extra=self.SIGNATURE))
