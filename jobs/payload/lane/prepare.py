"""Prepare a lane: check its devices, and provide secrets, data, inputs, code, packages and the checkpoint."""

import json
import os
import re
import shutil
import stat
import subprocess
import tarfile
import threading
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from ..clock import stopwatch
from ..log import log
from ..store import hub
from ..store.manifest import split_key, valid_component_name
from ..store.publish import Restored, restore
from ..store.transport import Transport
from ..store.tree import MOUNTED, by_gigabytes, fetch_tree, find_mounted, record_use, unpack
from .failure import Failure
from .launch import Devices, LaneOrder, Launch
from .meter import LaneMeter
from .secret_values import secrets_of
from .status import LaneStatus


class Prepared(NamedTuple):
    """What a lane's command needs: devices, folders and secrets."""

    devices: tuple[str, ...]
    data: str  # folder of the training data; empty: none
    inputs: Mapping[str, str]  # folders of the inputs, by environment variable
    restored: Restored
    parent: str  # folder of the weights to initialise from; empty if there are none, or if the job resumes
    environment: Path | None  # virtual environment with the job's packages; None: the image has all
    secrets: Mapping[str, str]  # by environment variable


def prepare(launch: Launch, order: LaneOrder, transport: Transport, folder: Path, status: LaneStatus) -> Prepared:
    """Prepare all that a lane's command needs, and return where it is. Raises Failure, with the reason for people."""
    devices = check_devices(launch.expected_devices)
    secrets = secrets_of(order.secrets, launch.secrets, launch.secret_store)
    try:
        data = str(transport.folder(order.data)) if order.data else ""
    except (OSError, ValueError) as error:
        raise Failure("data", f"the data {order.data!r} cannot be found: {error}") from None
    inputs = fetch_inputs(launch, order, transport, secrets.get("HF_TOKEN"))
    _unpack_code(transport, order, folder / "command")
    environment = None
    if order.packages is not None:
        from .environment import build  # imported here because few sessions need it

        environment = build(launch, order, order.packages, transport)
    if order.whole:
        try:
            (folder / "command" / OUTPUT).mkdir(exist_ok=True)
        except OSError as error:
            raise Failure("code", f"the output folder of the command cannot be created: {error}") from None
    status.phase = "restoring" if order.restore or order.parent else "starting"
    parent = "" if order.restore else _restore_parent(transport, order, folder / "parent")
    try:
        restored = restore(transport, order.job, order.restore, folder / "resume")
    except OSError as error:
        raise Failure("store", f"the checkpoint cannot be put into {folder}: {error}") from None
    return Prepared(devices, data, inputs, restored, parent, environment, secrets)


def _unpack_code(transport: Transport, order: LaneOrder, target: Path) -> None:
    """Unpack the code of a lane into the empty working folder of its command."""
    if order.code:
        try:
            unpack(transport.folder(order.code), order.code.rpartition("/")[2], target)
        except OSError as error:
            raise Failure("store", f"the code {order.code!r} cannot be unpacked: {error}") from None
        except ValueError as error:
            why = f"the code {order.code!r} is damaged: {error}. To send it again: schedctl queue update {order.job}"
            raise Failure("store", why) from None


def _restore_parent(transport: Transport, order: LaneOrder, target: Path) -> str:
    """Return the folder with the checkpoint of the parent; empty if the lane has none. Raises Failure."""
    if not order.parent:
        return ""
    parts = split_key(order.parent)
    if parts is None:
        raise Failure("parent", f"{order.parent!r} is not the key of a manifest, so it cannot initialise the job")
    try:
        restored = restore(transport, parts[0], (order.parent,), target)
    except OSError as error:
        raise Failure("store", f"the parent's checkpoint cannot be put into {target}: {error}") from None
    if restored.manifest is None:
        why = "; ".join(why for _, why in restored.bad)
        raise Failure("parent", f"the parent's checkpoint {order.parent} cannot be used: {why}")
    return str(target)


# Inputs of a lane: read-only folders, downloaded and verified once per machine.
PURPOSE = "input."  # the purpose of an input is this prefix and its name


def fetch_inputs(launch: Launch, order: LaneOrder, transport: Transport, token: str | None = None) -> dict[str, str]:
    """Return a lane's input folders by variable. Without ``token``, HF_TOKEN is used for the Hub. Raises Failure."""
    result: dict[str, str] = {}
    for purpose, prefix in sorted(order.trees.items()):
        if purpose.startswith(PURPOSE):
            name = purpose[len(PURPOSE) :]
            result[f"SCHED_INPUT_{name.upper()}"] = _fetch(launch, order, transport, name, prefix, token)
    return result


def _fetch(launch: Launch, order: LaneOrder, transport: Transport, name: str, prefix: str, token: str | None) -> str:
    lane, target = order.lane, launch.cache / prefix.replace("/", "-")
    began = stopwatch()
    kind = prefix.partition("/")[0]
    try:
        if kind == MOUNTED:
            mounted = find_mounted(transport, prefix, target, launch.mounts)
            log(lane, f"input {name}: {mounted.source}, attached at {mounted.folder}, its file sizes match")
            return str(mounted.folder)
        report_size = by_gigabytes(lambda size: log(lane, f"input {name}: {size}"))
        hub_token = os.environ.get("HF_TOKEN", "") if token is None else token
        source = (
            hub.fetch_repository(transport, prefix, target, report_size, hub_token)
            if kind == hub.KIND
            else fetch_tree(transport, prefix, target, report_size)
        )
        record_use(target, launch.clock.wall_seconds_until(launch.deadline))
    except (OSError, ValueError) as error:
        why = f"the input {name} ({prefix[:20]}) cannot be fetched: {error}"
        if isinstance(error, ValueError) and kind not in {hub.KIND, MOUNTED}:
            why += f". To send it again: schedctl queue update {order.job} --input {name}"
        raise Failure("network" if kind == hub.KIND and isinstance(error, ConnectionError) else "store", why) from None
    spent = stopwatch() - began
    log(lane, f"input {name}: {len(source.entries)} files, {source.bytes / 1e9:.2f} GB, verified, {spent:.0f} s")
    return str(target)


# The output of a command without checkpoints becomes the only checkpoint of its job. Files with valid names are stored
# below ``output``. Entries that a checkpoint cannot store as files (links, unusual names, deep folders) are packed into
# ``output.tar`` beside that folder, so that nothing is lost.
OUTPUT = "output"
_ARCHIVE = "output.tar"
_FILES_MAX = 9_000  # files in one checkpoint; the others are archived


class Gathered(NamedTuple):
    """Numbers of stored files, of files among them that are in the archive, and of entries that no archive can hold."""

    files: int
    archived: int
    skipped: int


def gather(command_folder: Path, checkpoints: Path, step: int) -> Gathered:
    """Move the output folder of an ended command into the checkpoint of ``step``; links stay links. Raises OSError."""
    partial = checkpoints / f".partial-{step:08d}"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    output, target = command_folder / OUTPUT, partial / OUTPUT
    if output.is_dir() and not output.is_symlink():
        output.rename(target)
    files, to_archive, skipped = _classify_output(partial, target)
    if to_archive:
        with tarfile.open(partial / _ARCHIVE, "w", format=tarfile.PAX_FORMAT) as archive:
            for path in to_archive:
                archive.add(path, path.relative_to(partial).as_posix(), recursive=False)
        for path in to_archive:
            path.unlink()
    (partial / "meta.json").write_text(json.dumps({"step": step, "metrics": {}}))
    partial.rename(checkpoints / f"step-{step:08d}")
    return Gathered(files + len(to_archive), len(to_archive), skipped)


def _classify_output(partial: Path, target: Path) -> tuple[int, list[Path], int]:
    """Return the number of files to store, the entries to archive, and the number of entries that were removed."""
    files, to_archive, skipped = 0, [], 0
    for path in _entries(target):
        status = path.lstat()
        if stat.S_ISREG(status.st_mode):
            path.chmod(status.st_mode | stat.S_IRUSR)
            if files < _FILES_MAX and valid_component_name(path.relative_to(partial).as_posix()):
                files += 1
            else:
                to_archive.append(path)
        elif stat.S_ISLNK(status.st_mode):
            to_archive.append(path)
        else:
            path.unlink()
            skipped += 1
    return files, to_archive, skipped


def _entries(folder: Path) -> Iterator[Path]:
    """Yield all entries except folders, sorted by name; links to folders are entries."""
    for place, inner, names in os.walk(folder):
        parent = folder / place
        inner.sort()
        for name in inner:
            if not (parent / name).is_symlink():
                (parent / name).chmod(0o700)  # an unreadable folder may contain results too
        links = [name for name in inner if (parent / name).is_symlink()]
        yield from (parent / name for name in sorted([*names, *links]))


# The GPUs of a lane: a check of their models, and samples of their utilisation and memory.
_TOOL = "nvidia-smi"
_NAMES_QUERY = (_TOOL, "--query-gpu=name", "--format=csv,noheader")
_FIELDS = "index,utilization.gpu,memory.used,power.draw"
# Drivers before 535 know only the second name of this field, and newer drivers may remove it.
_REASON_FIELDS = (",clocks_event_reasons.active", ",clocks_throttle_reasons.active", "")
# The reasons that count as throttling: heat, and the hardware's slowdown and power brake. The software power limit
# (0x4) does not count, because a busy H200 always runs at it.
_THROTTLED = 0xE8
_UNKNOWN_FIELD = 2  # exit status of nvidia-smi for a field that it does not know
_ANSWER_SECONDS = 60
_INTERVAL_SECONDS = 60.0


def check_devices(expected: Devices | None) -> tuple[str, ...]:
    """Return the names of the session's devices, () if ``expected`` is None. Raises Failure for other devices."""
    if expected is None:
        return ()
    try:
        lines = _run_tool(_NAMES_QUERY)
    except (OSError, subprocess.SubprocessError) as error:
        raise Failure("wrong_device", f"expected {expected.number} x {expected.name}, but: {error}") from None
    names = tuple(line.strip() for line in lines if line.strip())
    # The same card is NvidiaTeslaT4 for platforms and Tesla T4 for the driver.
    wanted = _normalised(expected.name)
    if len(names) < expected.number or not all(_normalised(name) == wanted for name in names):
        raise Failure("wrong_device", f"expected {expected.number} x {expected.name}, got {', '.join(names) or 'none'}")
    return names


class GpuWatch:
    """Reads the state of a lane's devices from nvidia-smi once a minute for a meter; does nothing without that tool."""

    def __init__(self, meter: LaneMeter, devices: Collection[int], lane: int) -> None:
        self._meter, self._devices, self._lane = meter, frozenset(devices), lane
        self._reasons = list(_REASON_FIELDS)
        self._throttled: list[bool] = []  # whether a GPU was throttled, by sample
        self._ended = threading.Event()

    def start(self) -> None:
        """Start the thread; a tool that hangs blocks only this thread."""
        threading.Thread(target=self._watch, name="gpus", daemon=True).start()

    def end(self) -> None:
        """Stop the thread."""
        self._ended.set()

    def _watch(self) -> None:
        logged = False
        while not self._ended.wait(_INTERVAL_SECONDS):
            try:
                self.sample()
            except FileNotFoundError:
                return  # no NVIDIA driver here
            except (OSError, subprocess.SubprocessError) as error:
                if not logged:
                    log(self._lane, f"nvidia-smi does not report the use of the GPUs: {error}")
                logged = True

    def sample(self) -> None:
        """Send one sample to the meter, without fields that a GPU does not support. Raises OSError, SubprocessError."""
        rows = [line.split(",") for line in self._query()]
        ours = [[_number(cell) for cell in row[1:]] for row in rows if _number(row[0]) in self._devices]
        busy, memory, watts, reasons = (
            [value for row in ours for value in row[field : field + 1] if value is not None] for field in range(4)
        )
        metrics: dict[str, float] = {}
        if busy:
            metrics["gpu_busy"] = sum(busy) / len(busy) / 100
        if watts:
            metrics["gpu_watts"] = sum(watts)
        if reasons:
            self._throttled.append(any(int(active) & _THROTTLED for active in reasons))
            metrics["gpu_throttled"] = sum(self._throttled) / len(self._throttled)
        self._meter.record_gpus(int(max(memory)) << 20 if memory else None, metrics)

    def _query(self) -> list[str]:
        try:
            return _run_tool((_TOOL, f"--query-gpu={_FIELDS}{self._reasons[0]}", "--format=csv,noheader,nounits"))
        except subprocess.CalledProcessError as error:
            if error.returncode != _UNKNOWN_FIELD or not self._reasons[1:]:
                raise
            self._reasons.pop(0)
            return self._query()


def _run_tool(words: tuple[str, ...]) -> list[str]:
    answer = subprocess.run(words, capture_output=True, text=True, timeout=_ANSWER_SECONDS, check=True)
    return answer.stdout.splitlines()


def _number(cell: str) -> float | None:
    """Return a number in the output of nvidia-smi; None for words such as [N/A] and [Not Supported]."""
    text = cell.strip()
    if re.fullmatch(r"0x[0-9a-fA-F]{1,16}", text):
        return int(text, 16)
    return float(text) if re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", text) else None


def _normalised(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower()).removeprefix("nvidia")
