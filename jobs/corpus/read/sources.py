"""Sources of text: files and folders, and the standard library of the running interpreter."""

from __future__ import annotations

import ast
import csv
import hashlib
import re
import sysconfig
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import ClassVar

from jobs.corpus.errors import CorpusError, Findings, Kind
from jobs.corpus.options import CorpusOptions
from jobs.corpus.read import records
from jobs.payload.bounded_file import open_regular
from jobs.payload.records.contents import DELIMITERS, MissingLibrary
from jobs.payload.records.encodings import decode, read_block
from jobs.payload.records.reader import LOST, RecordFile

_BLOCK_BYTES = 1 << 20
_HEAD_BYTES = 4096
_RECORD_SUFFIXES = {".jsonl", ".ndjson"}
_NOT_SOURCE_TEXT = {"__pycache__", "node_modules"}
_STAGE_FOLDER = re.compile("stage_[1-4]")
# Folders without library code: installed packages, tests, tools with data, tables of character codes.
_STDLIB_LEFT_OUT = {
    "__pycache__", "site-packages", "dist-packages", "test", "tests", "idlelib", "idle_test", "lib2to3", "ensurepip",
    "encodings", "pydoc_data", "turtledemo", "lib-dynload",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Files:
    """A file, or all files below a folder; names and content decide between JSON records and plain text."""

    path: Path

    @property
    def label(self) -> str:
        """The name in rows and findings, without any folder of this machine."""
        return self.path.resolve().name


@dataclass(frozen=True, slots=True)
class Stdlib:
    """The interpreter's standard library: language reference, then modules, up to `max_bytes`."""

    max_bytes: int = 8_000_000
    label: ClassVar[str] = "stdlib"  # the name in rows and findings


Source = Files | Stdlib


def parse_source(text: str) -> Source:
    """Return the source of ``stdlib`` or a path. Raises CorpusError if there is no such file or folder."""
    if text == "stdlib":
        return Stdlib()
    path = Path(text).expanduser()
    if not (path.is_file() or path.is_dir()):
        raise _missing(path)
    return Files(path)


def label_of(source: str) -> str:
    """Return the label of the source that a text's source belongs to."""
    return Stdlib.label if source.startswith(f"{Stdlib.label}:") else source.partition("/")[0]


class Loader:
    """Reads sources into documents; counts bytes and encodings, and adds findings."""

    def __init__(self, findings: Findings, options: CorpusOptions, own_folder: Path) -> None:
        self.encodings: Counter[str] = Counter()
        self.bytes_read = 0
        self._findings = findings
        self._options = options
        self._own_folder = own_folder.resolve()

    def load(self, source: Source) -> Iterator[records.CorpusDocument]:
        """Yield all documents of a source, in the order of its file names."""
        match source:
            case Files(path):
                for file, label in self._walk(path, source.label):
                    yield from self._file(file, label)
            case Stdlib(max_bytes):
                yield from self._stdlib(Path(sysconfig.get_path("stdlib")), max_bytes)

    def _walk(self, path: Path, label: str) -> Iterator[tuple[Path, str]]:
        if path.is_file():
            yield path, label
            return
        if not path.is_dir():
            raise _missing(path)
        try:
            children = sorted(path.iterdir(), key=lambda child: child.name)
        except OSError as error:
            self._findings.add(Kind.UNREADABLE, label, 0, error.strerror or str(error))
            return
        for child in children:
            # Names that are not UTF-8 have surrogates, which must not get into JSON files.
            name = f"{label}/{child.name}".encode("utf-8", "replace").decode()
            if child.name.startswith(".") or child.name in _NOT_SOURCE_TEXT:
                self._findings.add(Kind.SKIPPED, name, 0, "hidden or generated")
            elif child.is_dir():
                if child.is_symlink() or child.resolve() == self._own_folder:
                    self._findings.add(Kind.SKIPPED, name, 0, "a link to a folder, or where corpora are built")
                else:
                    yield from self._walk(child, name)
            elif child.is_file():
                yield child, name
            else:
                self._findings.add(Kind.SKIPPED, name, 0, "neither a file nor a folder")

    def _file(self, path: Path, label: str) -> Iterator[records.CorpusDocument]:
        try:
            with open_regular(path) as file:
                self.bytes_read += path.stat().st_size
                opened = RecordFile(file, path.name, self._options.max_record_bytes, records.NUMBERS)
                if opened.wide:
                    self.encodings["utf-16"] += 1
                    self._findings.add(Kind.NOT_UTF8, label, 1, "read as utf-16")
                yield from self._records(opened, label) if _holds_records(opened) else self._text(opened, label)
                if opened.wide and opened.wide.replaced:
                    detail = f"{opened.wide.replaced} broken characters replaced"
                    self._findings.add(Kind.BROKEN_ENCODING, label, 1, detail)
        except MissingLibrary as error:
            # The kind that such files had when none was read: where the library is missing, versions stay the same.
            self._findings.add(Kind.BINARY, label, 0, f"left out: {error}")
        except OSError as error:
            self._findings.add(Kind.UNREADABLE, label, 0, error.strerror or str(error))

    def _records(self, opened: RecordFile, label: str) -> Iterator[records.CorpusDocument]:
        for entry in opened.entries():
            for fault in entry.faults:
                detail = f"{fault.detail}; left out" if entry.value is LOST else fault.detail
                self._findings.add(Kind(fault.kind), label, entry.number, detail)
            if entry.value is not LOST:
                value = records.without_infinity(entry.value) if opened.is_table else entry.value
                if document := records.document_of(value, label, entry.number, self._findings):
                    yield document
        self.encodings.update(opened.encodings)

    def _text(self, opened: RecordFile, label: str) -> Iterator[records.CorpusDocument]:
        head = opened.head(_HEAD_BYTES)
        if records.looks_binary(head):
            self._findings.add(Kind.BINARY, label, 0, "data, not text; left out")
            return
        stage = next((part for part in label.split("/") if _STAGE_FOLDER.fullmatch(part)), None)
        for line, text in self._blocks(opened.stream, head, label):
            for offset, part in records.split_text(text, self._options.document_characters):
                yield records.CorpusDocument(part, label, line + offset, stage)

    def _blocks(self, file: BufferedReader, head: bytes, label: str) -> Iterator[tuple[int, str]]:
        """Yield the text of a file in pieces of about a megabyte, with the number of each first line."""
        line = 1
        declared = records.declared_encoding(head)
        try:
            if not file.peek(1):
                self._findings.add(Kind.EMPTY_TEXT, label, 0, "the file is empty; left out")
            while data := read_block(file, _BLOCK_BYTES):
                decoded = decode(data, declared)
                self.encodings[decoded.encoding] += 1
                for kind, detail in decoded.faults:
                    self._findings.add(Kind(kind), label, line, detail)
                yield line, decoded.text
                line += data.count(b"\n")
        except EOFError:
            self._findings.add(Kind.UNREADABLE, label, line, "damaged or cut off from here on")

    def _stdlib(self, folder: Path, max_bytes: int) -> Iterator[records.CorpusDocument]:
        budget = max_bytes
        for title, text in _reference_topics(folder / "pydoc_data" / "topics.py"):
            budget -= len(text)
            if budget < 0:
                return
            self.bytes_read += len(text)
            yield records.CorpusDocument(text, f"stdlib:topics/{title}", 1)
        modules = [
            (path, path.relative_to(folder).as_posix())
            for path in folder.rglob("*.py")
            if not _STDLIB_LEFT_OUT.intersection(path.relative_to(folder).parts)
        ]
        # Sorted by digest of the name, so that a cut at `max_bytes` is a fair sample, equal on all machines.
        modules.sort(key=lambda module: hashlib.sha256(module[1].encode()).digest())
        for path, name in modules:
            budget -= path.stat().st_size
            if budget < 0:
                return
            yield from self._file(path, f"stdlib:{name}")


def _reference_topics(path: Path) -> list[tuple[str, str]]:
    """Return the language reference of `help()`, by topic, from its module with one dictionary."""
    if not path.is_file():
        return []
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
            topics: dict[str, str] = ast.literal_eval(node.value)
            return sorted(topics.items())
    return []


def _holds_records(opened: RecordFile) -> bool:
    """Return whether a file has records: by its kind, a CSV by its columns, and `.json` by more than one object."""
    if opened.is_table or opened.kind in _RECORD_SUFFIXES:
        return True
    head = decode(opened.head(_HEAD_BYTES)).text.lstrip("\ufeff \t\r\n")
    if delimiter := DELIMITERS.get(opened.kind):
        names = next(csv.reader(head.splitlines(), delimiter=delimiter), [])
        return not records.COLUMNS.isdisjoint(names)
    if opened.kind != ".json" or head.startswith("["):
        return opened.kind == ".json"
    first_line, _, rest = head.partition("\n")
    return first_line.startswith("{") and first_line.rstrip().endswith("}") and rest.lstrip().startswith("{")


def _missing(path: Path) -> CorpusError:
    remedy = "Check the path, or use `stdlib` for the text that comes with Python"
    return CorpusError(f"corpus source {path} is neither a file nor a folder", remedy=remedy)
