"""What can go wrong with a corpus as a whole. Bad records are findings, never errors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from jobs.problem import InvalidInput


class CorpusError(InvalidInput):
    """Base of all corpus errors."""


class NoSuchVersion(CorpusError):
    """There is no corpus of this version here."""

    def __init__(self, version: str, versions: Sequence[str]) -> None:
        self.version = version
        self.versions = tuple(versions)
        here = f"here are {', '.join(versions)}" if versions else "none has been built here"
        super().__init__(f"there is no corpus {version or 'yet'}", here, "See `schedctl corpus show`, or build one")


class CorpusDamaged(CorpusError):
    """A corpus or mixture folder does not hold what its manifest says."""

    def __init__(self, path: Path, why: str, remedy: str = "Delete its folder and build it again") -> None:
        super().__init__(f"corpus file {path} cannot be trusted", why, remedy)


@contextmanager
def reading(path: Path, fault: str) -> Iterator[None]:
    """Raise CorpusDamaged for what goes wrong while a file is read; ``fault`` says so of its content."""
    try:
        yield
    except OSError as error:
        raise CorpusDamaged(path, error.strerror or str(error)) from error
    except (ValueError, KeyError, TypeError) as error:
        raise CorpusDamaged(path, f"{fault} ({error})") from error


class BadParameter(CorpusError):
    """An argument is outside its range."""

    def __init__(self, name: str, value: object, allowed: str) -> None:
        self.name = name
        self.value = value
        self.allowed = allowed
        super().__init__(f"{name} is {value!r}, but must be {allowed}")
