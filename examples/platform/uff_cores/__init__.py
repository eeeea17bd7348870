"""Cores: sessions of this machine on some of its processors, so that others stay free for whoever sits at it.

A pool says ``platform = "cores"``. Options are those of a local pool and ``cores``, such as ``0-3,6``. All that makes a
launch safe is the local platform's; this one decides what its agents are started by.
"""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import replace
from typing import TYPE_CHECKING

from platforms.base import Misconfigured
from platforms.local.adapter import load as load_local
from platforms.local.spawn import secret_way
from platforms.plugin import CONTRACT, Plugin

if TYPE_CHECKING:
    from collections.abc import Mapping

    from platforms.base import Platform
    from platforms.registry import PlatformContext

_CORES = re.compile(r"\d+(-\d+)?(,\d+(-\d+)?)*", re.ASCII)


def load(settings: Mapping[str, str], context: PlatformContext) -> Platform:
    """Return the platform of one pool. Raises Misconfigured."""
    cores = settings.get("cores", "0")
    if not _CORES.fullmatch(cores):
        raise Misconfigured("cores", "load", f"cores = {cores!r} names no processors", "Write them like 0-3,6")
    own = {name: value for name, value in settings.items() if name != "cores"}
    return load_local(own, replace(context, python=_starter(cores, context)))


def _starter(cores: str, context: PlatformContext) -> str:
    """Write the program that stands for Python: the same, kept to some cores. It appears whole, whoever writes it."""
    context.state_folder.parent.mkdir(parents=True, exist_ok=True)
    path = context.state_folder.with_name(f"{context.state_folder.name}-python-{cores}")
    new = path.with_name(f".{path.name}-{os.urandom(6).hex()}")
    new.write_text(f'#!/bin/sh\nexec taskset --cpu-list {cores} {shlex.quote(context.python)} "$@"\n')
    new.chmod(0o700)
    new.rename(path)
    return str(path)


PLUGIN = Plugin(CONTRACT, load, secret_way=secret_way)
