"""What a lane's GPUs do: whether they are the expected ones, how busy they are, and the memory in use."""

from __future__ import annotations

import re
import subprocess
import threading
from collections.abc import Collection

from ..log import log
from .failure import Failure
from .launch import Devices
from .meter import LaneMeter

_TOOL = "nvidia-smi"
_NAMES = (_TOOL, "--query-gpu=name", "--format=csv,noheader")
_USE = (_TOOL, "--query-gpu=index,utilization.gpu,memory.used", "--format=csv,noheader,nounits")
_ANSWER_SECONDS = 60
_EVERY_SECONDS = 60.0


def check_devices(expected: Devices | None) -> tuple[str, ...]:
    """Return the names of the devices; raises Failure when they are not the expected ones. None: do not look."""
    if expected is None:
        return ()
    try:
        lines = _ask(_NAMES)
    except (OSError, subprocess.SubprocessError) as error:
        raise Failure("wrong_device", f"expected {expected.number} x {expected.name}, but: {error}") from None
    names = tuple(line.strip() for line in lines if line.strip())
    # Platforms call them NvidiaTeslaT4, the driver Tesla T4.
    wanted = _plain(expected.name)
    if len(names) < expected.number or not all(_plain(name) == wanted for name in names):
        raise Failure("wrong_device", f"expected {expected.number} x {expected.name}, got {', '.join(names) or 'none'}")
    return names


class GpuWatch:
    """Gives a meter once a minute what nvidia-smi says of a lane's devices; nothing where there is no such tool."""

    def __init__(self, meter: LaneMeter, devices: Collection[int], lane: int) -> None:
        self._meter, self._devices, self._lane = meter, frozenset(devices), lane
        self._ended = threading.Event()

    def start(self) -> None:
        """Begin to look. A tool that hangs holds up its own thread only."""
        threading.Thread(target=self._watch, name="gpus", daemon=True).start()

    def end(self) -> None:
        """Look no more."""
        self._ended.set()

    def _watch(self) -> None:
        logged = False
        while not self._ended.wait(_EVERY_SECONDS):
            try:
                self.look()
            except FileNotFoundError:
                return  # no NVIDIA driver here
            except (OSError, subprocess.SubprocessError, ValueError) as error:
                if not logged:
                    log(self._lane, f"nvidia-smi does not say how busy the GPUs are: {error}")
                logged = True

    def look(self) -> None:
        """Note the mean utilisation and the most memory in use. Raises OSError, SubprocessError, ValueError."""
        rows = [[int(value) for value in line.split(",")] for line in _ask(_USE) if line.strip()]
        ours = [(percent, mebibytes) for index, percent, mebibytes in rows if index in self._devices]
        if ours:
            self._meter.note_gpus(sum(percent for percent, _ in ours) / len(ours) / 100, max(m for _, m in ours) << 20)


def _ask(words: tuple[str, ...]) -> list[str]:
    answer = subprocess.run(words, capture_output=True, text=True, timeout=_ANSWER_SECONDS, check=True)
    return answer.stdout.splitlines()


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower()).removeprefix("nvidia")
