"""Samples: what ``--json`` prints for commands of an installation in the middle of its week, shortened for reading."""

from __future__ import annotations

import contextlib
import io
import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scheduler.cli.root import invoke
from scheduler.cli.shell.context import GlobalOptions
from tests.lab.world import MODELS, SETTINGS, build

if TYPE_CHECKING:
    from collections.abc import Iterator

# Commands whose answer depends on nothing but the installation.
COMMANDS = (
    "status",
    "queue list",
    "queue show ufm",
    "plan explain ucm",
    "quota",
    "pools",
    "runs list --live",
    "checkpoints list ulm",
)


def samples() -> Iterator[tuple[str, str]]:
    """Yield each command with what it prints: of a list the first entry, of a long text the beginning."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        (home / "config.toml").write_text(SETTINGS, encoding="utf-8")
        (home / "models.toml").write_text(MODELS, encoding="utf-8")
        build(home / "state")
        for words in COMMANDS:
            with contextlib.redirect_stdout(io.StringIO()) as out:
                code = invoke(words.split(), GlobalOptions(config=home / "config.toml", json=True))
            assert code == 0, words
            document = json.loads(out.getvalue().replace(os.fspath(home), "/home/ann/uff"))
            yield words, json.dumps(_shortened(document), indent=2, ensure_ascii=False)


def _shortened(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _shortened(entry) for key, entry in value.items()}
    return [_shortened(entry) for entry in value[:1]] if isinstance(value, list) else value
