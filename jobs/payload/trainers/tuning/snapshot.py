"""Weights and optimiser copied to the machine's memory, to be written from there while training goes on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from .group import is_part

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_BIG = 1 << 28  # bytes; less is written as soon as it is copied
_SPARE = 1.25  # of the memory that copies take: what they are written through is memory too
_LIMITS = (  # of a container: the most, what is taken, and what of that is given back when asked for
    ("memory.max", "memory.current", "inactive_file"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "total_inactive_file"),
)


class Saved(NamedTuple):
    """What a checkpoint is written from: states as torch gives them. ``weights``: of the adapter, or of all."""

    weights: dict[str, Any]
    optimizer: dict[str, Any]


class Snapshot:
    """Takes what is saved, as it lies or in copies. The copies' memory is kept: to ask for it takes as long as to copy.

    So nothing may be taken while an earlier copy is still being written.
    """

    def __init__(self, as_it_lies: Callable[[], Saved], wish: str, *, first: bool) -> None:
        """``as_it_lies`` returns what is saved, not copied.

        ``wish``: on, off, or auto, which copies what is big where the memory holds it. ``first``: this process saves.
        """
        self._as_it_lies, self._wish, self._first = as_it_lies, wish, first
        self._kept: dict[tuple[Any, ...], Any] = {}

    def take(self, *, last: bool) -> tuple[Saved, bool]:
        """Return what is saved, and whether it may be written while training goes on, as copies may.

        What is shared out is brought together, for which all processes must ask; the first one has copies then.
        """
        saved = self._as_it_lies()
        shared = any(is_part(part) for part in _tensors(saved))
        background = not last and self._wish != "off"
        worth_it = self._wish == "on" or self._kept or shared or (background and _worth_it(saved))
        if not shared and not (background and worth_it):
            return saved, False
        seen: dict[tuple[Any, ...], Any] = {}
        return Saved(*(self._copy(part, (name,), seen) for name, part in saved._asdict().items())), background

    def _copy(self, value: Any, place: tuple[Any, ...], seen: dict[tuple[Any, ...], Any]) -> Any:
        """Copy nested states. What two names share (tied embeddings) stays one, or it would be saved twice."""
        if isinstance(value, dict):
            return {name: self._copy(part, (*place, name), seen) for name, part in value.items()}
        if isinstance(value, list):
            return [self._copy(part, (*place, number), seen) for number, part in enumerate(value)]
        if isinstance(value, tuple):
            parts = tuple(self._copy(part, (*place, number), seen) for number, part in enumerate(value))
            # Two groups share a tuple of settings, and then it is saved once: the same bytes as without copies.
            return parts if any(new is not old for new, old in zip(parts, value, strict=True)) else value
        known: tuple[Any, ...]
        if isinstance(value, torch.Tensor):
            # An empty tensor lies nowhere.
            local = value.to_local() if is_part(value) else value
            known = (local.data_ptr() or place, value.device, value.dtype, value.shape, value.stride())
        elif is_part(value):
            known = (id(value),)
        else:
            return value
        if is_part(value):
            value = value.full_tensor()  # all ask for all, also where one has it already
            if not self._first:
                return None
        if known not in seen:
            buffer = self._kept.get(place)
            if buffer is None or buffer.shape != value.shape or buffer.dtype != value.dtype:
                # Not pinned: what is cannot be given back when the machine runs short, and takes long to get.
                buffer = self._kept[place] = torch.empty(value.shape, dtype=value.dtype)
            seen[known] = buffer.copy_(value.detach())
        return seen[known]


def _worth_it(saved: Saved) -> bool:
    lying = [part for part in _tensors(saved) if isinstance(part, torch.Tensor)]
    size: int = sum({(part.device, part.data_ptr()): part.nbytes for part in lying}.values())
    return size >= _BIG and _SPARE * size <= free_memory()


def _tensors(value: Any) -> Iterator[Any]:
    """Yield tensors, and what is brought together to be one, of nested states."""
    if isinstance(value, torch.Tensor) or is_part(value):
        yield value
    elif isinstance(value, dict | list | tuple):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _tensors(part)


def free_memory(proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the bytes of memory that a program may still take: of the machine, and of its container if less."""
    told = dict(line.split(":", 1) for line in (proc / "meminfo").read_text().splitlines())
    free = int(told["MemAvailable"].split()[0]) * 1024
    for limit, used, returned in _LIMITS:
        try:
            most = int((cgroup / limit).read_text())  # "max" where there is none
            kinds = dict(line.split() for line in (cgroup / limit).with_name("memory.stat").read_text().splitlines())
            taken = int((cgroup / used).read_text()) - int(kinds[returned])
        except (OSError, KeyError, ValueError):
            continue  # no container of this kind
        free = min(free, most - taken)
    return max(0, free)
