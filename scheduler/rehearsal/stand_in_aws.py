"""What a rehearsal has in place of AWS: the shipped emulator on the rehearsal's clock, or somebody else's server.

Its S3 is the artifact store of the whole rehearsal, so that every place writes to it and reads from it.
"""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from platforms.artifacts.base import StoreError, open_store
from platforms.sagemaker.settings import read_settings
from scheduler.app import App
from scheduler.rehearsal.emulator import Emulator, answers, free_port
from scheduler.rehearsal.folder import Rehearsal, RehearsalError

_PLATFORM = "sagemaker"
_CREDENTIALS = "aws.ini"
_BUCKET = "artifacts"  # the folder in which the emulator keeps its bucket
_IDLE_SECONDS = 20
_STORE_OPTIONS = {"bucket", "region", "create_only"}  # of the store that was set; the rest is the stand-in's
# For pools that name none. An address that AWS could take: a server may check it, and runs what it likes.
_IMAGE, _INSTANCES = "123456789012.dkr.ecr.{region}.amazonaws.com/whatever-runs-here:1", "ml.g4dn.xlarge"


def stand_in(base: dict[str, Any], folder: Path, endpoint: str) -> None:
    """Point every pool of SageMaker, and the artifact store, to a stand-in: at ``endpoint``, or one of our own.

    With an endpoint the credentials come from AWS's usual chain, a pool named sagemaker becomes one of SageMaker's, and
    everything goes below a prefix of this rehearsal's own: nothing that is in the bucket is touched. Raises
    RehearsalError, Misconfigured, StoreError.
    """
    wanted = base.pop("artifacts", {})
    pools = [
        {**pool, "platform": _PLATFORM} if endpoint and pool.get("name") == _PLATFORM else pool
        for pool in base["pools"]
    ]
    ours = [pool for pool in pools if pool.get("platform") == _PLATFORM]
    if not ours:
        if endpoint:
            raise RehearsalError(
                "--aws-endpoint: no pool is one of SageMaker's. "
                "Name one sagemaker, with bucket, role and region in its options"
            )
        return
    if endpoint and not answers(endpoint):
        raise RehearsalError(f"--aws-endpoint: nobody listens at {endpoint}. Start the server first")
    prefix = f"rehearsal-{secrets.token_hex(4)}/" if endpoint else ""
    address = endpoint or f"http://127.0.0.1:{free_port()}"
    access = {"endpoint": address} if endpoint else {"endpoint": address, "credentials": str(folder / _CREDENTIALS)}
    store = {name: text for name, text in wanted.get("options", {}).items() if name in _STORE_OPTIONS}
    places = {name: text for name, text in store.items() if name != "create_only"}
    base["pools"] = [
        {**pool, "options": _options({**_any(pool, places), **pool.get("options", {})}, access, prefix)}
        if pool.get("platform") == _PLATFORM
        else pool
        for pool in pools
    ]
    for pool in base["pools"]:
        if pool.get("platform") == _PLATFORM:
            read_settings(pool["options"])
    first = next(pool for pool in base["pools"] if pool.get("platform") == _PLATFORM)["options"]
    root = folder / ("state/artifacts" if endpoint else _BUCKET)
    base["artifacts"] = {
        "kind": "s3",
        "root": str(root),
        "options": {"bucket": first["bucket"], "region": first["region"], **store, **access},
    }
    if endpoint:
        base["artifacts"]["options"]["prefix"] = f"{prefix}store/"
        # Names of training jobs are never free again, so those of another rehearsal must not be met.
        base["daemon"] = {**base.get("daemon", {}), "launch_prefix": f"uff-{prefix[10:14]}"}
        _look(base["artifacts"]["options"], folder)


def keeps_bucket(rehearsal: Rehearsal, base: Mapping[str, Any]) -> bool:
    """Tell whether the artifact store is a bucket that the shipped emulator keeps in the rehearsal's folder."""
    credentials = base.get("artifacts", {}).get("options", {}).get("credentials")
    return bool(credentials == str(rehearsal.folder / _CREDENTIALS))


def emulator_of(rehearsal: Rehearsal, app: App) -> Emulator | None:
    """Return the shipped emulator that the rehearsal's settings point to, if it does not run yet."""
    credentials = rehearsal.folder / _CREDENTIALS
    pools = [pool for pool in app.settings.pools if pool.options.get("credentials") == str(credentials)]
    if not pools or answers(pools[0].options["endpoint"]):
        return None
    _write_credentials(credentials)
    options = pools[0].options
    figures = {
        "--port": options["endpoint"].rpartition(":")[2],
        "--region": options["region"],
        "--bucket": options["bucket"],
        "--objects": rehearsal.folder / _BUCKET,
        "--role": options["role"].rpartition("/")[2],
        "--instances": sum(pool.sessions_max for pool in pools),
        "--epoch": rehearsal.epoch,
        "--origin": rehearsal.origin,
        "--scale": rehearsal.scale,
        "--idle-seconds": _IDLE_SECONDS,
    }
    words = [str(word) for pair in figures.items() for word in pair]
    others = sorted({pool.options["bucket"] for pool in pools} - {options["bucket"]})
    words += [word for bucket in others for word in ("--other-bucket", bucket)]
    command = [sys.executable, "-m", "platforms.emulators.sagemaker", str(rehearsal.folder / "aws"), *words]
    return Emulator("AWS", command, rehearsal.folder / "aws.log")


def _any(pool: Mapping[str, Any], places: Mapping[str, str]) -> dict[str, str]:
    """Return options for a pool that names none."""
    region = str(pool.get("options", {}).get("region", places.get("region", "")))
    return {"image": _IMAGE.format(region=region), "instance_types": _INSTANCES, **places}


def _options(named: Mapping[str, str], access: Mapping[str, str], prefix: str) -> dict[str, str]:
    options: dict[str, str] = {**named, **access}
    if "credentials" in access:
        options.pop("profile", None)  # the emulator's credentials are in a file of its own
    if prefix:
        options["prefix"] = f"{options.get('prefix', '')}{prefix}"
    return options


def _look(options: Mapping[str, str], folder: Path) -> None:
    """See that the bucket can be read, before anything is given up for it."""
    try:
        list(open_store("s3", folder / "state" / "artifacts", options).keys("corpus/"))
    except StoreError as error:
        raise StoreError("open", f"bucket {options['bucket']}", error.why, error.remedy) from error


def _write_credentials(file: Path) -> None:
    """Make credentials for the emulator, which looks at none, so that nobody's own are sent to it.

    They are random: what is a secret is hidden everywhere, and no word that people read may be one.
    """
    key, secret = f"AKIA{secrets.token_hex(8).upper()}", secrets.token_hex(20)
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as stream:
        stream.write(f"[default]\naws_access_key_id = {key}\naws_secret_access_key = {secret}\n")
