"""What a training job printed, from CloudWatch: one stream for each start of its container."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from jobs.payload.bounds import INSTANT_MAX, digits

GROUP = "/aws/sagemaker/TrainingJobs"


def read_logs(client: Any, job: str, offset: int, limit_bytes: int) -> Iterator[bytes]:
    """Yield a job's output from byte ``offset`` on, at most ``limit_bytes``; each event is a line.

    There is nothing until the container starts, and never anything of an image that could not be pulled. Raises
    ClientError, BotoCoreError.
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
        if error.response.get("Error", {}).get("Code") != "ResourceNotFoundException":
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
    """A stream is named ``<job>/algo-<n>-<epoch>``."""
    return (digits(stream.rpartition("-")[2], INSTANT_MAX) or 0, stream)
