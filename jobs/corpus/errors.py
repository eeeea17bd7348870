"""What can go wrong with a corpus as a whole. Bad records are findings, never errors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path


class CorpusError(Exception):
    """Base of all corpus errors."""


class SourceMissing(CorpusError):
    """A named source does not exist or is neither a file nor a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        super().__init__(
            f"corpus source {path} is neither a file nor a folder; check the path, or use `stdlib` for the "
            "text that comes with Python"
        )


class NothingToTrainOn(CorpusError):
    """The sources held no usable text at all."""

    def __init__(self, sources: tuple[str, ...], findings: dict[str, int]) -> None:
        self.sources = sources
        self.findings = findings
        seen = ", ".join(f"{kind} {count}" for kind, count in sorted(findings.items())) or "no files"
        super().__init__(
            f"no usable text in {', '.join(sources) or 'an empty list of sources'} (found: {seen}); "
            "add a source with text, code or episodes"
        )


class RuleFailed(CorpusError):
    """A command that was to tag the texts did not do so."""

    def __init__(self, command: Sequence[str], why: str) -> None:
        self.command = tuple(command)
        self.why = why
        super().__init__(
            f"the rule's command {' '.join(command)!r} failed: {why}. It reads a JSON object a line on standard input "
            "and answers with lines of id, stage and domains; try it by hand, or remove it from corpus.rules"
        )


class NoSuchVersion(CorpusError):
    """There is no corpus of this version here."""

    def __init__(self, version: str, known: Sequence[str]) -> None:
        self.version = version
        self.known = tuple(known)
        here = f"here are {', '.join(known)}" if known else "none has been built here"
        super().__init__(f"there is no corpus {version or 'yet'}: {here}. See `schedctl corpus show`, or build one")


class CorpusDamaged(CorpusError):
    """A corpus or mixture folder does not hold what its manifest says."""

    def __init__(self, path: Path, why: str, remedy: str = "delete its folder and build it again") -> None:
        self.path = path
        self.why = why
        self.remedy = remedy
        super().__init__(f"corpus file {path} cannot be trusted: {why}; {remedy}")


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
