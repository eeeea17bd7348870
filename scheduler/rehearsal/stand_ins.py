"""Emulators of Kaggle and AWS for rehearsals: the shipped ones on the rehearsal's clock, or other servers.

The emulated S3 is the artifact store of the whole rehearsal, for all pools.
"""

import json
import os
import secrets
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from config.layers import shipped
from jobs.grouping import grouped
from jobs.nouns.pool import Pool
from jobs.nouns.quota import MoneyQuota
from jobs.problem import Refusal
from jobs.toml_file import read_toml
from platforms.artifacts.base import StoreError, open_store
from platforms.base import Misconfigured, PlatformError
from platforms.registry import checkup
from platforms.sagemaker.settings import read_settings
from platforms.slurm.checkup import cluster_of
from platforms.slurm.commands import accounting_of
from scheduler import clock
from scheduler.app import App
from scheduler.core.ledger import fold
from scheduler.core.reasons import show
from scheduler.rehearsal.folder import Rehearsal

_IDLE_SECONDS = 20
_AWS, _AWS_CREDENTIALS = "sagemaker", "aws.ini"
_BUCKET = "artifacts"  # the folder of the emulator's bucket
# The settings of the store that are kept; the others are those of the emulator.
_STORE_OPTIONS = {"bucket", "region", "create_only"}
# For pools without an image. It has a valid form, since servers may check it; emulators ignore it.
_IMAGE, _INSTANCES = "123456789012.dkr.ecr.{region}.amazonaws.com/whatever-runs-here:1", "ml.g4dn.xlarge"
_KAGGLE, _KAGGLE_CREDENTIALS = "kaggle", "kaggle.json"
_OWNER = "rehearsal"
# Real seconds on the loopback interface, where answers are fast and a scheduled hour may pass in a second.
_FAST_OPTIONS = {
    "call_seconds": "5",
    "upload_seconds": "3",
    "push_seconds": "5",
    "settle_seconds": "0",
    "ready_seconds": "10",
    "pause_milliseconds": "50",
    "idle_milliseconds": "100",
}
# For foreign servers it is unknown what their kernels can reach and how late a push takes effect.
_FOREIGN = {"checkpoints": "relay", "settle_seconds": "3"}


class Emulator:
    """A program that prints its address when it is ready. ``input_text`` is its standard input."""

    def __init__(self, name: str, command: Sequence[str], log: Path, input_text: str = "") -> None:
        self._name = name
        self._command = command
        self._log = log
        self._input = input_text
        self._released = threading.Event()
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start the emulator and wait until it is ready. Raises Refusal if it does not start."""
        self._process = process = self._spawn()
        if not _is_ready(process):
            raise Refusal(f"the emulator of {self._name} did not start", remedy=f"Read the reason in {self._log}")
        threading.Thread(target=self._keep, args=(process,), name=f"{self._name} emulator", daemon=True).start()

    def release(self) -> None:
        """Stop restarting the emulator; it ends by itself when idle."""
        self._released.set()

    def end(self) -> None:
        """End the emulator and its sessions."""
        self.release()
        if self._process is not None:
            self._process.terminate()
            self._process.wait()

    def _keep(self, process: subprocess.Popen[str]) -> None:
        process.wait()
        while not self._released.is_set():
            self._process = restarted = self._spawn()
            if not _is_ready(restarted):
                return
            restarted.wait()

    def _spawn(self) -> subprocess.Popen[str]:
        with self._log.open("ab") as errors:
            process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        if process.stdin is not None:
            process.stdin.write(self._input)
            process.stdin.close()
        return process


def _is_ready(process: subprocess.Popen[str]) -> bool:
    """Wait for the first line of a program, its address; return whether it arrived."""
    if process.stdout is None:
        raise AssertionError("a pipe was requested")
    with process.stdout as output:
        return bool(output.readline())


def answers(address: str) -> bool:
    """Return whether a server listens at ``http://host:port``."""
    host, _, port = address.removeprefix("http://").rstrip("/").rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=1).close()
    except (OSError, ValueError):
        return False
    return True


def free_port() -> int:
    """Return a free port of the loopback interface."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def emulators_of(rehearsal: Rehearsal, app: App) -> list[Emulator]:
    """Return the shipped emulators that the rehearsal's settings use and that are not running."""
    emulators = (_aws_emulator(rehearsal, app), _kaggle_emulator(rehearsal, app))
    return [emulator for emulator in emulators if emulator is not None]


def _pools_on(app: App, credentials: Path, address: str) -> list[Pool]:
    """Return the pools whose options name these ``credentials`` of a shipped emulator; empty if it already runs."""
    pools = [pool for pool in app.settings.pools if pool.options.get("credentials") == str(credentials)]
    return [] if not pools or answers(pools[0].options[address]) else pools


def _emulator(
    rehearsal: Rehearsal,
    titles: tuple[str, str, str],
    figures: Mapping[str, object],
    more: Sequence[str] = (),
    input_text: str = "",
) -> Emulator:
    """Return an emulator on the rehearsal's clock; ``titles`` are its display name, module and folder."""
    title, module, folder = titles
    times = {"--epoch": rehearsal.epoch, "--origin": rehearsal.origin, "--scale": rehearsal.scale}
    arguments = [str(word) for pair in {**figures, **times, "--idle-seconds": _IDLE_SECONDS}.items() for word in pair]
    command = [sys.executable, "-m", f"platforms.emulators.{module}", str(rehearsal.folder / folder), *arguments, *more]
    return Emulator(title, command, rehearsal.folder / f"{folder}.log", input_text)


def _pools_and_address(
    base: dict[str, Any], platform: str, option: str, server: str, why: str, remedy: str
) -> tuple[list[Any], str]:
    """Return the pools of a platform to rehearse, and the address of their emulator: ``server``, or a free one here.

    With a ``server``, a pool that has the platform's name becomes a pool of that platform. Raises Refusal with ``why``
    if the platform then has no pool, or if no server answers at that address.
    """
    if server:
        base["pools"] = [{**it, "platform": platform} if it.get("name") == platform else it for it in base["pools"]]
    ours = [pool for pool in base["pools"] if pool.get("platform") == platform]
    if server and not ours:
        raise Refusal(option, why, remedy)
    if server and not answers(server):
        raise Refusal(option, f"no server answers at {server}", "Start the server first")
    return ours, server or f"http://127.0.0.1:{free_port()}"


def use_kaggle_emulator(base: dict[str, Any], folder: Path, proxy: str) -> None:
    """Point all pools of Kaggle to an emulator: the one at ``proxy``, otherwise the shipped one.

    With a proxy the credentials come from the environment, and a pool named kaggle becomes a pool of Kaggle. Raises
    Refusal, Misconfigured.
    """
    why, remedy = "the settings have no pool of Kaggle", 'Add a pool, or name a pool "kaggle"'
    ours, address = _pools_and_address(base, _KAGGLE, "--kaggle-proxy", proxy, why, remedy)
    # Kernels of the shipped emulator can access the artifact folder, as kernels of Kaggle can access an object store.
    own = _FOREIGN if proxy else {"checkpoints": "direct", "credentials": str(folder / _KAGGLE_CREDENTIALS)}
    for pool in ours:
        pool["options"] = {**_FAST_OPTIONS, **own, **pool.get("options", {}), "emulator": address}
        if proxy:
            try:  # checks the credentials with the foreign server, which may answer later if it does not now
                checkup(_KAGGLE, pool["options"], os.environ, clock.real_now(), probe=False)["credentials"]()
            except Misconfigured as error:
                remedy = f". {error.remedy}" if error.remedy else ""
                raise Refusal("--kaggle-proxy", f"{error.why}{remedy}") from None


def _kaggle_emulator(rehearsal: Rehearsal, app: App) -> Emulator | None:
    credentials = rehearsal.folder / _KAGGLE_CREDENTIALS
    pools = _pools_on(app, credentials, "emulator")
    if not pools:
        return None
    limits = [quota.limit_seconds for quota in pools[0].quotas if not isinstance(quota, MoneyQuota)]
    figures = {
        "--port": pools[0].options["emulator"].rpartition(":")[2],
        "--owner": _OWNER,
        "--gpu-hours": max(limits, default=108_000) / 3_600,
    }
    return _emulator(rehearsal, ("Kaggle", "kaggle", "kaggle"), figures, input_text=f"{_key(credentials)}\n")


def _key(file: Path) -> str:
    """Return the API key of the emulated account; it is created at the first call."""
    if not file.exists():
        file.touch(mode=0o600)
        file.write_text(json.dumps({"username": _OWNER, "key": secrets.token_hex(16)}))
    return str(json.loads(file.read_text())["key"])


def use_aws_emulator(base: dict[str, Any], folder: Path, endpoint: str) -> None:
    """Point all pools of SageMaker, and the artifact store, to an emulator: at ``endpoint``, or the shipped one.

    With an endpoint the credentials come from the usual chain of AWS, a pool named sagemaker becomes a pool of
    SageMaker, and all objects have a prefix of this rehearsal, so that other objects in the bucket are not touched.
    Raises Refusal, Misconfigured, StoreError.
    """
    wanted = base.pop("artifacts", {})
    why, remedy = "the settings have no pool of SageMaker", 'Name a pool "sagemaker", with bucket, role and region'
    ours, address = _pools_and_address(base, _AWS, "--aws-endpoint", endpoint, why, remedy)
    if not ours:
        return
    prefix = f"rehearsal-{secrets.token_hex(4)}/" if endpoint else ""
    access = {"endpoint": address} if endpoint else {"endpoint": address, "credentials": str(folder / _AWS_CREDENTIALS)}
    store = {name: text for name, text in wanted.get("options", {}).items() if name in _STORE_OPTIONS}
    places = {name: text for name, text in store.items() if name != "create_only"}
    for pool in ours:
        pool["options"] = _options({**_any(pool, places), **pool.get("options", {})}, access, prefix)
        read_settings(pool["options"])
    first = ours[0]["options"]
    root = folder / ("state/artifacts" if endpoint else _BUCKET)
    base["artifacts"] = {
        "kind": "s3",
        "root": str(root),
        "options": {"bucket": first["bucket"], "region": first["region"], **store, **access},
    }
    if endpoint:
        base["artifacts"]["options"]["prefix"] = f"{prefix}store/"
        # Names of training jobs cannot be reused, so they must differ from those of other rehearsals.
        base["daemon"] = {**base.get("daemon", {}), "launch_prefix": f"uff-{prefix[10:14]}"}
        try:  # checks that the bucket can be read before anything is deleted
            list(open_store("s3", folder / "state" / "artifacts", base["artifacts"]["options"]).keys("corpus/"))
        except StoreError as error:
            raise StoreError("open", f"bucket {first['bucket']}", error.why, error.remedy) from error


def keeps_bucket(rehearsal: Rehearsal, base: Mapping[str, Any]) -> bool:
    """Return whether the artifact store is the shipped emulator's bucket in the rehearsal's folder."""
    credentials = base.get("artifacts", {}).get("options", {}).get("credentials")
    return bool(credentials == str(rehearsal.folder / _AWS_CREDENTIALS))


def _aws_emulator(rehearsal: Rehearsal, app: App) -> Emulator | None:
    credentials = rehearsal.folder / _AWS_CREDENTIALS
    pools = _pools_on(app, credentials, "endpoint")
    if not pools:
        return None
    # The emulator ignores credentials, but without these a person's own would be sent. They are random, because secrets
    # are redacted everywhere and must not be words of ordinary text.
    key, secret = f"AKIA{secrets.token_hex(8).upper()}", secrets.token_hex(20)
    descriptor = os.open(credentials, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as stream:
        stream.write(f"[default]\naws_access_key_id = {key}\naws_secret_access_key = {secret}\n")
    options = pools[0].options
    figures = {
        "--port": options["endpoint"].rpartition(":")[2],
        "--region": options["region"],
        "--bucket": options["bucket"],
        "--objects": rehearsal.folder / _BUCKET,
        "--role": options["role"].rpartition("/")[2],
        "--instances": sum(pool.sessions_max for pool in pools),
    }
    others = sorted({pool.options["bucket"] for pool in pools} - {options["bucket"]})
    more = [word for bucket in others for word in ("--other-bucket", bucket)]
    return _emulator(rehearsal, ("AWS", "sagemaker", "aws"), figures, more)


def _any(pool: Mapping[str, Any], places: Mapping[str, str]) -> dict[str, str]:
    """Return the options for a pool without options."""
    region = str(pool.get("options", {}).get("region", places.get("region", "")))
    return {"image": _IMAGE.format(region=region), "instance_types": _INSTANCES, **places}


def _options(named: Mapping[str, str], access: Mapping[str, str], prefix: str) -> dict[str, str]:
    options: dict[str, str] = {**named, **access}
    if "credentials" in access:
        options.pop("profile", None)  # the emulator's credentials are in a separate file
    if prefix:
        options["prefix"] = f"{options.get('prefix', '')}{prefix}"
    return options


# The Slurm pool of a rehearsal: it uses the real cluster of this machine, in real seconds.
_Intervals = list[tuple[int, int]]

SLURM_SCALE = 600.0
_SLURM_SCALE_MAX = 1_200.0
_SLURM = "slurm"
# Delays of Slurm and of process starts, in real seconds.
_WALL = {"start_delay": 2.0, "setup": 3.0, "stop_margin": 2.0, "overrun": 4.0, "visibility": 5.0}
_READS, _READ_WALL_SECONDS = 10, 0.5  # accounting is read again, because its records are written a moment later
_DUPLICATE_SECONDS = 5  # real seconds until a duplicate job of a run ID notices the other and ends


def add_slurm_pool(base: dict[str, Any], folder: Path, scale: float) -> None:
    """Add the pool to the settings of a rehearsal. Raises Refusal."""
    if scale > _SLURM_SCALE_MAX:
        raise Refusal(
            "--slurm",
            f"its jobs need real seconds, and --scale {scale:g} leaves too few",
            f"Choose {_SLURM_SCALE_MAX:g} or less",
        )
    if any(pool.get("name") == _SLURM for pool in base["pools"]):
        raise Refusal("--slurm", f"the settings have a pool {_SLURM} already", "Rename it, or leave out --slurm")
    conf = os.environ.get("SLURM_CONF", "")
    options = {"slurm_conf": conf} if conf else {}
    try:
        cluster = cluster_of(options)
    except PlatformError as error:
        why = f"--slurm: no cluster of this machine answers ({error.why})"
        raise Refusal(why, remedy="Run sinfo to see the error; SLURM_CONF must name the cluster's file") from None
    gres = {"gres": cluster.gres} if cluster.gres else {}
    # Unique to this rehearsal, because Slurm remembers job names for a while.
    place = {"folder": str(folder / f"slurm-{secrets.token_hex(4)}"), "command_seconds": "30"}
    pool = {
        **read_toml(shipped("rehearsal-slurm.toml")),
        "accelerator": f"{cluster.gres or 'processors'} of the partition {cluster.partition}",
        "devices_per_session": min(2, max(1, cluster.devices)),
        **{name: f"{round(wall * scale)}s" for name, wall in _WALL.items()},
        "options": {**options, "partition": cluster.partition, **gres, **place},
    }
    base["pools"] = [*base["pools"], pool]


def disagreements(rehearsal: Rehearsal, app: App) -> tuple[str, ...] | None:
    """Return by how much (from 1 s on) ledger and Slurm's accounting differ; None without it. Raises PlatformError."""
    pool = next((pool for pool in app.settings.pools if pool.name == _SLURM and pool.platform == "slurm"), None)
    if pool is None or not pool.options.get("folder", "").startswith(f"{rehearsal.folder}/"):
        return ()
    from scheduler.store import ledger

    with app.database.read() as tx:
        charges = fold(ledger.entries(tx)).get(_SLURM, ())
    ours = grouped((charge.run or "nobody", (charge.start, charge.end)) for charge in charges)
    result: tuple[str, ...] = ()
    for _ in range(_READS):
        theirs = accounting_of(pool.options)
        if theirs is None:
            return None
        result = tuple(_differences(rehearsal, ours, theirs, app.settings.zone))
        if not result:
            break
        clock.pause(_READ_WALL_SECONDS)
    return result


def _differences(
    rehearsal: Rehearsal, ours: Mapping[str, _Intervals], accounting: Mapping[str, _Intervals], zone: str
) -> Iterator[str]:
    for key in sorted({*ours, *accounting}):
        mine = ours.get(key, [])
        theirs = [(_scheduled(rehearsal, start), _scheduled(rehearsal, end)) for start, end in accounting.get(key, ())]
        longest_duplicate = _DUPLICATE_SECONDS * rehearsal.scale
        unknown = any(last - first > longest_duplicate for first, last in theirs if (first, last) not in mine)
        if unknown or any(each not in theirs for each in mine):
            yield f"accounting: of {key} Slurm has {_words(theirs, zone)}, the ledger {_words(mine, zone)}"


def _scheduled(rehearsal: Rehearsal, real: int) -> int:
    return int(rehearsal.epoch + (real - rehearsal.origin) * rehearsal.scale)


def _words(intervals: _Intervals, zone: str) -> str:
    return ", ".join(f"{show(first, zone)} + {last - first} s" for first, last in intervals) or "nothing"
