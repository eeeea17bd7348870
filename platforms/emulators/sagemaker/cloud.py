"""The instances' own way to S3, CloudWatch and IAM: straight into moto's memory, past HTTP and all ordered faults."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from platforms.sagemaker.answers import GROUP

ACCOUNT = "123456789012"  # to moto, everybody whose keys it did not issue
_SERVICE = "sagemaker.amazonaws.com"


class MotoCloud:
    """Moto's S3, CloudWatch and IAM of this process, as instances in ``region`` see them.

    ``credentials`` is the address at which a container gets those of its role.
    """

    def __init__(self, region: str, credentials: str) -> None:
        from moto.iam.models import iam_backends
        from moto.logs.models import logs_backends
        from moto.s3.models import s3_backends

        self._region = region
        self.credentials = credentials
        self._files: Any = s3_backends[ACCOUNT]["aws"]
        self._logs: Any = logs_backends[ACCOUNT][region]
        self._roles: Any = iam_backends[ACCOUNT]["aws"]

    def make_bucket(self, bucket: str) -> None:
        """Make an empty bucket; one that is there already stays."""
        if bucket not in self._files.buckets:
            self._files.create_bucket(bucket, self._region)

    def make_role(self, name: str) -> None:
        """Make an execution role that trusts SageMaker; one that is there already stays."""
        if any(role.name == name for role in self._roles.get_roles()):
            return
        statement = {"Effect": "Allow", "Principal": {"Service": _SERVICE}, "Action": "sts:AssumeRole"}
        trust = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
        self._roles.create_role(name, trust, "/", None, "", [], "3600")

    def copy(self, uri: str, folder: Path) -> int:
        """Copy all objects whose names begin with ``uri``, as SageMaker does: a prefix need not end at a '/'."""
        bucket, _, prefix = uri.removeprefix("s3://").partition("/")
        keys = self._files.get_bucket(bucket).keys
        names = [name for name in list(keys) if name.startswith(prefix)]
        for name in names:
            path = folder / name.removeprefix(prefix).lstrip("/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(keys[name].value)
        return len(names)

    def put(self, uri: str, data: bytes) -> None:
        """Write an object."""
        bucket, _, key = uri.removeprefix("s3://").partition("/")
        self._files.put_object(bucket, key, data)

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
            self._logs.put_log_events(GROUP, stream, [{"timestamp": at, "message": message}])

    def forget_logs(self) -> None:
        """Remove all output: moto's memory is the whole process's, and the next place must not find it."""
        self._logs.groups.pop(GROUP, None)

    def _begin(self, stream: str) -> None:
        from moto.logs.exceptions import ResourceAlreadyExistsException

        with suppress(ResourceAlreadyExistsException):  # of another job in the same moment
            self._logs.create_log_group(GROUP, {})
        self._logs.create_log_stream(GROUP, stream)
