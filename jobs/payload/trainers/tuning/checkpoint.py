"""The files of a checkpoint: weights, optimiser and state apart, so that what has not changed is stored once."""

from __future__ import annotations

import functools
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import torch

from .errors import TrainingRefused
from .group import is_part

# Weights and optimiser copied to the machine's memory, to be written from there while training goes on.
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


class StateSnapshot:
    """Takes what is saved, as it lies or in copies. The copies' memory is kept: to ask for it takes as long as to copy.

    So nothing may be taken while an earlier copy is still being written.
    """

    def __init__(self, as_it_lies: Callable[[], Saved], wish: str, *, first: bool) -> None:
        """``as_it_lies`` returns what is saved, not copied.

        ``wish``: on, off, or auto, which copies what is big where the memory holds it. ``first``: this process saves.
        """
        self._as_it_lies, self._wish, self._first = as_it_lies, wish, first
        self._kept: dict[tuple[Any, ...], Any] = {}
        self._reserving: Future[None] | None = None
        self._enough = threading.Event()

    def prepare(self) -> None:
        """Ask for the copies' memory while training goes on: else the first save waits for it, a second a gigabyte.

        To be called once, when the optimiser has its states.
        """
        if not self._first or not self._is_copied(saved := self._as_it_lies(), background=self._wish != "off"):
            return
        wanted: dict[tuple[Any, ...], tuple[tuple[Any, ...], Any, Any]] = {}

        def note(value: Any, place: tuple[Any, ...]) -> Any:
            if isinstance(value, torch.Tensor):  # the form of other parts is known when they are brought together
                wanted.setdefault(_identity(value, place), (place, value.shape, value.dtype))
            return value

        for name, part in saved._asdict().items():
            _mapped(part, (name,), note)
        with_one = ThreadPoolExecutor(1, "reserve")
        self._reserving = with_one.submit(self._reserve, list(wanted.values()))
        with_one.shutdown(wait=False)

    def take(self, *, last: bool) -> tuple[Saved, bool]:
        """Return what is saved, and whether it may be written while training goes on, as copies may.

        What is shared out is brought together, for which all processes must ask; the first one has copies then.
        """
        if self._reserving is not None:
            if last:
                self._enough.set()
            self._reserving.result()
            self._reserving = None
        saved = self._as_it_lies()
        background = not last and self._wish != "off"
        if not self._is_copied(saved, background=background):
            return saved, False
        copy = functools.partial(self._copy, {})
        return Saved(*(_mapped(part, (name,), copy) for name, part in saved._asdict().items())), background

    def _is_copied(self, saved: Saved, *, background: bool) -> bool:
        if any(is_part(part) for part in _tensors(saved)):
            return True
        return background and (self._wish == "on" or bool(self._kept) or _worth_it(saved))

    def _reserve(self, wanted: list[tuple[tuple[Any, ...], Any, Any]]) -> None:
        for place, shape, dtype in wanted:
            if self._enough.is_set():
                return
            # The machine gives a page when it is first written to.
            self._kept[place] = torch.empty(shape, dtype=dtype).zero_()

    def _copy(self, copies: dict[tuple[Any, ...], Any], value: Any, place: tuple[Any, ...]) -> Any:
        """Copy a part. What two names share (tied embeddings) stays one, or it would be saved twice."""
        identity = _identity(value, place)
        if is_part(value):
            value = value.full_tensor()  # all ask for all, also where one has it already
            if not self._first:
                return None
        if identity not in copies:
            buffer = self._kept.get(place)
            if buffer is None or buffer.shape != value.shape or buffer.dtype != value.dtype:
                # Not pinned: what is cannot be given back when the machine runs short, and takes long to get.
                buffer = self._kept[place] = torch.empty(value.shape, dtype=value.dtype)
            copies[identity] = buffer.copy_(value.detach())
        return copies[identity]


def _mapped(value: Any, place: tuple[Any, ...], each: Callable[[Any, tuple[Any, ...]], Any]) -> Any:
    """Return nested states with ``each`` of their tensors and parts, which gets its place among them."""
    if isinstance(value, torch.Tensor) or is_part(value):
        return each(value, place)
    if isinstance(value, dict):
        return {name: _mapped(part, (*place, name), each) for name, part in value.items()}
    if isinstance(value, list):
        return [_mapped(part, (*place, number), each) for number, part in enumerate(value)]
    if isinstance(value, tuple):
        parts = tuple(_mapped(part, (*place, number), each) for number, part in enumerate(value))
        # Two groups share a tuple of settings, and then it is saved once: the same bytes as without copies.
        return parts if any(new is not old for new, old in zip(parts, value, strict=True)) else value
    return value


def _identity(value: Any, place: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return what two names of the same part have in common."""
    if not isinstance(value, torch.Tensor):
        return (id(value),)
    local = value.to_local() if is_part(value) else value
    # An empty tensor lies nowhere.
    return (local.data_ptr() or place, value.device, value.dtype, value.shape, value.stride())


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
    meminfo = dict(line.split(":", 1) for line in (proc / "meminfo").read_text().splitlines())
    free = int(meminfo["MemAvailable"].split()[0]) * 1024
    for limit, used, returned in _LIMITS:
        try:
            most = int((cgroup / limit).read_text())  # "max" where there is none
            kinds = dict(line.split() for line in (cgroup / limit).with_name("memory.stat").read_text().splitlines())
            used_bytes = int((cgroup / used).read_text()) - int(kinds[returned])
        except (OSError, KeyError, ValueError):
            continue  # no container of this kind
        free = min(free, most - used_bytes)
    return max(0, free)


FINGERPRINT, STATE, OPTIMIZER = "fingerprint.json", "state.json", "optimizer.pt"
_BY_PRODUCTS = ("README.md",)  # what libraries write for a hub's visitors


def read_fingerprint(folder: Path) -> Any:
    """Return the fingerprint of a checkpoint; None for one of the program before, which kept none."""
    path = folder / FINGERPRINT
    return json.loads(path.read_bytes()) if path.exists() else None


def read_step(folder: Path) -> int:
    """Return the step of a checkpoint."""
    return int(json.loads((folder / "meta.json").read_bytes())["step"])


def read_state(folder: Path) -> Any:
    """Return the state beside weights and optimiser. Raises TrainingRefused when it is missing."""
    return json.loads(_there(folder, STATE).read_bytes())


class Weights:
    """The weights of a checkpoint's whole model by their names, read as they are asked for."""

    def __init__(self, folder: Path) -> None:
        from safetensors import safe_open

        self._folder = folder
        self._files = [safe_open(path, framework="pt") for path in sorted(folder.glob("*.safetensors"))]
        self._places = {name: file for file in self._files for name in file.keys()}  # noqa: SIM118 - it is no dict

    def read(self, name: str) -> Any:
        """Return a weight on the processor. Raises TrainingRefused when it is missing."""
        if name not in self._places:
            raise TrainingRefused(f"the checkpoint in {self._folder} has no weight {name!r}: it is of another model")
        return self._places[name].get_tensor(name)


def read_optimizer(folder: Path, *, mapped: bool = False) -> Any:
    """Return the optimiser's state, on the processor; ``mapped``: read from the file as it is asked for.

    Raises TrainingRefused when it is missing.
    """
    return torch.load(_there(folder, OPTIMIZER), map_location="cpu", weights_only=True, mmap=mapped)


def write(
    folder: Path, model: Any, tokenizer: Any, saved: Saved, state: Mapping[str, Any], fingerprint: Mapping[str, Any]
) -> None:
    """Write a checkpoint. ``model`` says what is saved: an adapter, or a whole model with its tokenizer."""
    model.whole.save_pretrained(folder, state_dict=saved.weights)
    if not model.adapter:
        tokenizer.save_pretrained(folder)
    for name, content in model.beside.items():
        (folder / name).write_bytes(content)
    for name in _BY_PRODUCTS:
        (folder / name).unlink(missing_ok=True)
    torch.save(saved.optimizer, folder / OPTIMIZER)
    (folder / STATE).write_text(json.dumps(state))
    (folder / FINGERPRINT).write_text(json.dumps(fingerprint, indent=1))


def _there(folder: Path, name: str) -> Path:
    if not (folder / name).is_file():
        raise TrainingRefused(f"the checkpoint in {folder} has no {name}: what decides the next step is lost with it")
    return folder / name
