"""What a session gets instead of credentials: addresses signed for one purpose each, which expire."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from platforms.artifacts.base import Grant

_POST_BYTES_MAX = 5 << 30  # S3's limit of one request
_SECONDS_MAX = 7 * 86_400  # S3's limit of a signature's life


def presigned_address(
    client: Any, bucket: str, prefix: str, grant: Grant, folders: Mapping[str, Sequence[str]]
) -> dict[str, Any]:
    """Return the ``store`` part of a launch: where to write below its prefixes, and from where to read each key.

    ``folders`` lists the keys of each folder that may be read. Signing asks the server nothing.
    """
    seconds = min(grant.lasts_seconds, _SECONDS_MAX)

    def get(key: str) -> str:
        parameters = {"Bucket": bucket, "Key": f"{prefix}{key}"}
        return str(client.generate_presigned_url("get_object", Params=parameters, ExpiresIn=seconds))

    def post(below: str) -> dict[str, Any]:
        signed = client.generate_presigned_post(
            bucket,
            f"{prefix}{below}${{filename}}",
            Conditions=[
                ["content-length-range", 0, _POST_BYTES_MAX],
                ["starts-with", "$x-amz-checksum-sha256", ""],
                ["starts-with", "$x-amz-checksum-algorithm", ""],
            ],
            ExpiresIn=seconds,
        )
        fields = {name: text for name, text in signed["fields"].items() if name != "key"}
        return {"below": below, "url": signed["url"], "prefix": prefix, "fields": fields}

    return {
        "kind": "presigned",
        "posts": [post(below) for below in (f"runs/{grant.run}/", *(f"jobs/{job}/" for job in grant.jobs))],
        "gets": {key: get(key) for key in grant.reads},
        "folders": {
            folder: {key.removeprefix(f"{folder}/"): get(key) for key in keys} for folder, keys in folders.items()
        },
    }
