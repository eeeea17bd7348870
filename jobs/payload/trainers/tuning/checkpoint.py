"""Files of a checkpoint. Weights, optimiser and state are separate, so that unchanged files are stored only once."""

import functools
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import torch

from .devices.group import is_part
from .errors import TrainingRefused

# Background saves: weights and optimiser state are copied to host memory and written while training goes on.
_BIG = 1 << 28  # bytes; a smaller state is written as fast as it is copied
_SPARE = 1.25  # free memory needed, as a multiple of the copies, because writing takes memory too
_LIMITS = (  # memory of a container (cgroup v2, v1): files of limit and usage, and the key of reclaimable cache
    ("memory.max", "memory.current", "inactive_file"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "total_inactive_file"),
)


class Saved(NamedTuple):
    """The state dicts that a checkpoint is written from. ``weights`` are the adapter's, or the whole model's."""

    weights: dict[str, Any]
    optimizer: dict[str, Any]


class StateSnapshot:
    """Copies large states before a save, into buffers that are reused after the save."""

    def __init__(self, uncopied: Callable[[], Saved], wish: str, *, first: bool) -> None:
        """``uncopied`` returns the state without a copy.

        ``wish``: "on", "off", or "auto" (copy a large state if free memory allows). ``first``: this is rank 0, the only
        rank that saves.
        """
        self._uncopied, self._wish, self._first = uncopied, wish, first
        self._buffers: dict[tuple[Any, ...], Any] = {}
        self._reserving: Future[None] | None = None
        self._last_save = threading.Event()

    def prepare(self) -> None:
        """Allocate the buffers (1 s per GB) in a thread. Call it after the first step, which creates the states."""
        if not self._first or not self._is_copied(saved := self._uncopied(), background=self._wish != "off"):
            return
        wanted: dict[tuple[Any, ...], tuple[tuple[Any, ...], Any, Any]] = {}

        def collect(value: Any, place: tuple[Any, ...]) -> Any:
            if isinstance(value, torch.Tensor):  # the full shape of a sharded tensor is known only after gathering
                wanted.setdefault(_identity(value, place), (place, value.shape, value.dtype))
            return value

        for name, part in saved._asdict().items():
            _mapped(part, (name,), collect)
        executor = ThreadPoolExecutor(1, "reserve")
        self._reserving = executor.submit(self._reserve, list(wanted.values()))
        executor.shutdown(wait=False)

    def take(self, *, last: bool) -> tuple[Saved, bool]:
        """Return the state, gathered on rank 0 (a collective call), and whether it may be written in a thread."""
        if self._reserving is not None:
            if last:
                self._last_save.set()
            self._reserving.result()
            self._reserving = None
        saved = self._uncopied()
        background = not last and self._wish != "off"
        if not self._is_copied(saved, background=background):
            return saved, False
        copy = functools.partial(self._copy, {})
        return Saved(*(_mapped(part, (name,), copy) for name, part in saved._asdict().items())), background

    def _is_copied(self, saved: Saved, *, background: bool) -> bool:
        if any(is_part(part) for part in _tensors(saved)):
            return True
        return background and (self._wish == "on" or bool(self._buffers) or _worth_it(saved))

    def _reserve(self, wanted: list[tuple[tuple[Any, ...], Any, Any]]) -> None:
        for place, shape, dtype in wanted:
            if self._last_save.is_set():
                return
            # The kernel allocates a page at the first write.
            self._buffers[place] = torch.empty(shape, dtype=dtype).zero_()

    def _copy(self, copies: dict[tuple[Any, ...], Any], value: Any, place: tuple[Any, ...]) -> Any:
        """Copy a tensor into its buffer. Tensors that share memory (tied embeddings) share one copy."""
        identity = _identity(value, place)
        if is_part(value):
            value = value.full_tensor()  # collective: all ranks call it, even for a tensor copied before
            if not self._first:
                return None
        if identity not in copies:
            buffer = self._buffers.get(place)
            if buffer is None or buffer.shape != value.shape or buffer.dtype != value.dtype:
                # Not pinned: pinned memory cannot be reclaimed when memory runs short, and is slow to allocate.
                buffer = self._buffers[place] = torch.empty(value.shape, dtype=value.dtype)
            copies[identity] = buffer.copy_(value.detach())
        return copies[identity]


def _mapped(value: Any, place: tuple[Any, ...], each: Callable[[Any, tuple[Any, ...]], Any]) -> Any:
    """Return nested states with ``each`` applied to their tensors; it gets the tensor and its path of keys."""
    if isinstance(value, torch.Tensor) or is_part(value):
        return each(value, place)
    if isinstance(value, dict):
        return {name: _mapped(part, (*place, name), each) for name, part in value.items()}
    if isinstance(value, list):
        return [_mapped(part, (*place, number), each) for number, part in enumerate(value)]
    if isinstance(value, tuple):
        parts = tuple(_mapped(part, (*place, number), each) for number, part in enumerate(value))
        # Parameter groups share a tuple of settings: keep the object, so that it is saved once, as without copies.
        return parts if any(new is not old for new, old in zip(parts, value, strict=True)) else value
    return value


def _identity(value: Any, place: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return a key that is equal for two names of the same tensor (same memory, dtype, shape and stride)."""
    if not isinstance(value, torch.Tensor):
        return (id(value),)
    local = value.to_local() if is_part(value) else value
    # An empty tensor has no address: use its path.
    return (local.data_ptr() or place, value.device, value.dtype, value.shape, value.stride())


def _worth_it(saved: Saved) -> bool:
    tensors = [part for part in _tensors(saved) if isinstance(part, torch.Tensor)]
    size: int = sum({(part.device, part.data_ptr()): part.nbytes for part in tensors}.values())
    return size >= _BIG and _SPARE * size <= free_memory()


def _tensors(value: Any) -> Iterator[Any]:
    """Yield the tensors of nested states, sharded ones included."""
    if isinstance(value, torch.Tensor) or is_part(value):
        yield value
    elif isinstance(value, dict | list | tuple):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _tensors(part)


def free_memory(proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the free host memory in bytes: of the machine, or of its container (cgroup) if that has less."""
    meminfo = dict(line.split(":", 1) for line in (proc / "meminfo").read_text().splitlines())
    free = int(meminfo["MemAvailable"].split()[0]) * 1024
    for limit, used, returned in _LIMITS:
        try:
            most = int((cgroup / limit).read_text())  # "max" means no limit: a ValueError
            kinds = dict(line.split() for line in (cgroup / limit).with_name("memory.stat").read_text().splitlines())
            used_bytes = int((cgroup / used).read_text()) - int(kinds[returned])
        except (OSError, KeyError, ValueError):
            continue  # no such cgroup, or no limit
        free = min(free, most - used_bytes)
    return max(0, free)


FINGERPRINT, STATE, OPTIMIZER = "fingerprint.json", "state.json", "optimizer.pt"
_BY_PRODUCTS = ("README.md",)  # model cards that libraries write


def read_fingerprint(folder: Path) -> Any:
    """Return the fingerprint of a checkpoint; None for a checkpoint of an older version, which wrote none."""
    path = folder / FINGERPRINT
    return json.loads(path.read_bytes()) if path.exists() else None


def read_step(folder: Path) -> int:
    """Return the step of a checkpoint."""
    return int(json.loads((folder / "meta.json").read_bytes())["step"])


def read_state(folder: Path) -> Any:
    """Return the state of the loop (state.json). Raises TrainingRefused if it is missing."""
    return json.loads(_require_file(folder, STATE).read_bytes())


class Weights:
    """The weights of a checkpoint of a whole model, read one by one by name."""

    def __init__(self, folder: Path) -> None:
        from safetensors import safe_open

        self._folder = folder
        self._files = [safe_open(path, framework="pt") for path in sorted(folder.glob("*.safetensors"))]
        self._places = {name: file for file in self._files for name in file.keys()}  # noqa: SIM118 - it is no dict

    def read(self, name: str) -> Any:
        """Return a weight on the CPU. Raises TrainingRefused if it is missing."""
        if name not in self._places:
            raise TrainingRefused(f"the checkpoint in {self._folder} has no weight {name!r}: it is another model's")
        return self._places[name].get_tensor(name)


def read_optimizer(folder: Path, *, mapped: bool = False) -> Any:
    """Return the optimiser state on the CPU, memory-mapped if ``mapped``. Raises TrainingRefused if missing."""
    return torch.load(_require_file(folder, OPTIMIZER), map_location="cpu", weights_only=True, mmap=mapped)


def write(
    folder: Path, model: Any, tokenizer: Any, saved: Saved, state: Mapping[str, Any], fingerprint: Mapping[str, Any]
) -> None:
    """Write a checkpoint: an adapter if ``model.adapter``, else the whole model with its tokenizer."""
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


def _require_file(folder: Path, name: str) -> Path:
    if not (folder / name).is_file():
        raise TrainingRefused(f"the checkpoint in {folder} has no {name}: the next step cannot be computed without it")
    return folder / name
