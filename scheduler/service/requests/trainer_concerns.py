"""Jobs of finetune.py that cannot train: rows too long for the model, or that some number of devices cannot share.

Refused when a job is added or changed and when settings are checked, by the command and by the model's config.json
where it lies on this machine. A session refuses the same before its first step, but perhaps days later.
"""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from jobs.advice.job import TRAINER, options_of
from jobs.payload.bounded_file import read_bounded
from jobs.payload.bounds import read_json
from jobs.payload.trainers.tuning.base import check_length
from jobs.payload.trainers.tuning.errors import Refused
from jobs.payload.trainers.tuning.options import rows_at_once

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from config.pool_settings import PoolSettings
    from jobs.spec import JobSpec

_CONFIG_BYTES_MAX = 1 << 20


def of_trainer(spec: JobSpec, pools: Iterable[PoolSettings]) -> Iterator[tuple[str, str, str]]:
    """Yield an option of finetune.py, why no session, or none with so many devices, can train with it, and a remedy."""
    start = next((place for place, word in enumerate(spec.command) if word.endswith(TRAINER)), None)
    if start is None:
        return
    said = options_of(spec.command[start + 1 :])
    try:
        length, batch, accumulate, devices_max = (
            int(said.get(name) or usual)
            for name, usual in (("--length", 1024), ("--batch", 4), ("--accumulate", 8), ("--devices", 0))
        )
        at_once = int(said["--rows-at-once"]) if said.get("--rows-at-once") else None
    except ValueError:
        return
    if min(length, batch, accumulate, at_once or 1) < 1 or devices_max < 0:
        return
    model = said.get("--model", "")
    if model.startswith("input:"):
        model = {one.name: one.source for one in spec.inputs}.get(model.removeprefix("input:"), "")
    try:
        config = (
            read_json(read_bounded(Path(model.partition("#")[0]) / "config.json", _CONFIG_BYTES_MAX)) if model else None
        )
    except (OSError, ValueError):
        config = None  # elsewhere, or the session will say what is wrong with it
    if isinstance(config, dict):
        try:
            check_length(length, config, model)
        except Refused as error:
            yield "--length", str(error), "change it in the command"
    options = Namespace(batch=batch, accumulate=accumulate, rows_at_once=at_once, stage=said.get("--stage") or "sft")
    # With --devices, which counts those of each node, several nodes may use more: what fits them fits fewer too.
    counts = {min(count, devices_max or count) for pool in pools for count in _counts(spec, pool)}
    for devices in sorted(counts):
        try:
            rows_at_once(options, devices)
        except ValueError as error:
            yield "--batch", str(error), "change it in the command, or the devices that needs asks for"
            return


def _counts(spec: JobSpec, pool: PoolSettings) -> list[int]:
    """Return how many devices a lane of the job may get in a pool."""
    most = max(spec.needs.devices_min, spec.needs.devices_max)
    offered = pool.device_counts or range(1, pool.devices_per_session + 1)
    return [count for count in offered if spec.needs.devices_min <= count <= most]
