"""Read a TOML file, with one clear problem when that is not possible."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from jobs.payload.bounded_file import read_bounded
from jobs.problem import Problem, ProblemsFound


def read_toml(path: Path) -> dict[str, Any]:
    """Return the document in ``path``; raises ProblemsFound when it is missing, unreadable or no TOML."""
    try:
        return tomllib.loads(read_bounded(path).decode("utf-8-sig"))
    except FileNotFoundError:
        raise ProblemsFound([Problem(str(path), "", "", "there is no such file", "check the path")]) from None
    except OSError as error:
        why = f"cannot be read: {(error.strerror or str(error)).lower()}"
        raise ProblemsFound([Problem(str(path), "", "", why, "check what it is and who may read it")]) from None
    except (ValueError, RecursionError) as error:
        # ValueError: no TOML, no UTF-8, or a number of more digits than Python reads.
        raise ProblemsFound([Problem(str(path), "", "", f"is not TOML: {error}", "correct it and try again")]) from None
