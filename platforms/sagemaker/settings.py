"""Settings of a SageMaker pool, checked as far as that is possible without asking AWS."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from platforms.artifacts.base import is_key
from platforms.artifacts.s3.client import connect, credential_files
from platforms.base import Misconfigured, SecretWay
from platforms.registry import read_count, reject_unknown
from platforms.sagemaker.sdk import PREFIX, names_image

_REQUIRED = ("region", "bucket", "role", "image", "instance_types")
_KNOWN = frozenset({
    *_REQUIRED, "prefix", "python", "volume_gb", "pending_seconds", "poll_seconds", "spot", "launcher",
    "owner", "profile", "credentials", "endpoint", "force_p3", "expected_device", "secrets",
})  # fmt: skip
_ROLE = re.compile(r"arn:aws[a-z-]*:iam::\d{12}:role/[\w+=,.@/-]{1,512}", re.ASCII)
_INSTANCE = re.compile(r"ml\.[a-z0-9-]{1,20}\.[a-z0-9]{1,20}", re.ASCII)
_OWNER = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9.-]{0,63}", re.ASCII)
_SECRETS = re.compile(r"(ssm|secretsmanager):(/?[\w+=.@-]+(/[\w+=.@-]+)*/?|/)", re.ASCII)
_INSTANCES_MAX = 5
_ACCELERATED = re.compile(r"ml\.(g|p|trn)\d")
_PENDING = 3_600
_PENDING_MIN = 1_800


@dataclass(frozen=True, slots=True)
class Settings:
    """Where training jobs run and on what.

    ``image`` is an address, or a name that SageMaker's SDK knows; ``launcher`` is what sends requests: boto3 or sdk.
    ``instance_types`` are tried in their order; ``pending_seconds`` is how long AWS may look for one (0: AWS's own
    limit), ``poll_seconds`` how often a running job is looked at. ``owner`` tells this scheduler's jobs from another's
    of the same name; empty means made up at first use. ``secrets`` is where sessions ask for theirs: ``ssm:`` or
    ``secretsmanager:`` and what precedes each name there; empty: nowhere.
    """

    region: str
    bucket: str
    prefix: str
    role: str
    image: str
    instance_types: tuple[str, ...]
    python: str
    volume_gb: int
    pending_seconds: int
    poll_seconds: int
    spot: bool
    launcher: str
    owner: str
    profile: str
    credentials: str
    endpoint: str
    secrets: str

    def client(self, service: str) -> Any:
        """Return a client of a service of AWS. Raises what platforms.artifacts.s3.client.connect raises."""
        return connect(
            service,
            region=self.region,
            endpoint=self.endpoint,
            profile=self.profile,
            credentials=self.credentials,
        )


def files(options: Mapping[str, str], environ: Mapping[str, str]) -> list[Path]:
    """Return every file that credentials of a pool with these options may come from, there or not."""
    return credential_files(options.get("credentials", ""), environ)


def read_settings(options: Mapping[str, str]) -> Settings:
    """Return the settings that a pool's options give. Raises Misconfigured."""
    reject_unknown("sagemaker", options, _KNOWN)
    if missing := [name for name in _REQUIRED if not options.get(name)]:
        raise _bad(f"missing: {', '.join(missing)}", "See docs/sagemaker.md")
    prefix = options.get("prefix", "")
    if prefix and not (prefix.endswith("/") and is_key(prefix[:-1])):
        raise _bad(f"prefix = {prefix!r}", "Write plain words that end with '/', like uff/")
    if not _ROLE.fullmatch(options["role"]):
        raise _bad(f"role = {options['role']!r}", "Write the execution role's ARN: arn:aws:iam::<account>:role/<name>")
    if not _OWNER.fullmatch(options.get("owner", "x")):
        raise _bad(f"owner = {options['owner']!r}", "Write a name of letters, digits, hyphens and dots")
    image = options["image"]
    if len(image) > 255 or not image.isprintable() or (image.startswith(PREFIX) and not names_image(image)):
        raise _bad(f"image = {image[:255]!r}", "Write the address of a training image, or a name like sdk:pytorch:2.10")
    launcher = options.get("launcher", "boto3")
    if launcher not in {"boto3", "sdk"}:
        raise _bad(f"launcher = {launcher!r}", "Write boto3 or sdk")
    spot, instance_types = _yes(options, "spot"), _instance_types(options)
    if spot and len(instance_types) > 1:
        raise _bad("spot works with one instance type only", "Keep one, or set spot = no")
    bounded = spot or all(map(_ACCELERATED.match, instance_types))
    pending = read_count("sagemaker", options, "pending_seconds", _PENDING if bounded else 0)
    if 0 < pending < _PENDING_MIN:
        raise _bad(f"pending_seconds = {pending}", f"AWS takes {_PENDING_MIN} or more; 0 leaves it to AWS")
    if pending and not bounded:
        raise _bad(f"pending_seconds = {pending}", "AWS bounds the wait for types with an accelerator only: remove it")
    return Settings(
        region=options["region"],
        bucket=options["bucket"],
        prefix=prefix,
        role=options["role"],
        image=image,
        instance_types=instance_types,
        python=options.get("python", "python3"),
        volume_gb=max(1, read_count("sagemaker", options, "volume_gb", 50)),
        pending_seconds=pending,
        poll_seconds=read_count("sagemaker", options, "poll_seconds", 30),
        spot=spot,
        launcher=launcher,
        owner=options.get("owner", ""),
        profile=options.get("profile", ""),
        credentials=options.get("credentials", ""),
        endpoint=options.get("endpoint", ""),
        secrets=_secrets(options),
    )


def secret_way(options: Mapping[str, str]) -> SecretWay:
    """Return how sessions get secrets: they ask AWS where the option says. Raises Misconfigured."""
    if _secrets(options):
        return SecretWay("asked")
    remedy = 'Store them in Systems Manager and set secrets = "ssm:/uff/" among the options; see docs/sagemaker.md'
    return SecretWay("none", "nothing says where at AWS a training job finds secrets", remedy)


def _secrets(options: Mapping[str, str]) -> str:
    text = options.get("secrets", "")
    if text and not _SECRETS.fullmatch(text):
        raise _bad(f"secrets = {text!r}", 'Write "ssm:/uff/" or "secretsmanager:uff/"; the name of each follows it')
    return text


def _instance_types(options: Mapping[str, str]) -> tuple[str, ...]:
    names = tuple(name.strip() for name in options["instance_types"].split(",") if name.strip())
    if not names or len(names) > _INSTANCES_MAX or not all(_INSTANCE.fullmatch(name) for name in names):
        raise _bad(f"instance_types = {options['instance_types']!r}", "Write one to five like ml.g6.xlarge")
    old = [name for name in names if name.startswith("ml.p3.")]
    if old and not _yes(options, "force_p3"):
        raise _bad(
            f"{', '.join(old)} costs five times as much as ml.g4dn.xlarge, and no PyTorch image that AWS still cares "
            "for has kernels for its V100",
            "Use ml.g4dn.xlarge, ml.g6.xlarge or ml.g5.xlarge; with an image of your own set force_p3 = yes",
        )
    return names


def _yes(options: Mapping[str, str], name: str) -> bool:
    text = options.get(name, "no")
    if text not in {"yes", "no"}:
        raise _bad(f"{name} = {text!r}", "Write yes or no")
    return text == "yes"


def _bad(why: str, remedy: str) -> Misconfigured:
    return Misconfigured("sagemaker", "load", why, remedy)
