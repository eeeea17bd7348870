"""Commands typed in this process: an interpreter of its own takes most of a second, and a wait asks many times."""

from __future__ import annotations

import json
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from typing import TYPE_CHECKING, Any

from scheduler.cli import main as entry

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class Typed:
    """What a command did."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        """The JSON on standard output."""
        found = json.loads(self.out)
        assert isinstance(found, dict)
        return found

    @property
    def error(self) -> dict[str, Any]:
        """The JSON error, the last line on standard error; standard output must be empty."""
        assert self.out == ""
        found = json.loads(self.err.splitlines()[-1])["error"]
        assert isinstance(found, dict)
        return found


def typed(config: Path, *words: str) -> Typed:
    """Run ``schedctl`` with ``words`` on a settings file and return what it did."""
    with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as err:
        code = entry.main(("--config", str(config), *words))
    return Typed(code, out.getvalue(), err.getvalue())


def told(config: Path, *words: str) -> dict[str, Any]:
    """Return the document of a command that must go well. Raises AssertionError."""
    done = typed(config, "--json", *words)
    if done.code:
        raise AssertionError(done.err)
    return done.document
