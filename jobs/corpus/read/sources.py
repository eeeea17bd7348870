"""Sources of text: files and folders, and the standard library of the running interpreter."""

import ast
import hashlib
import re
import sysconfig
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import ClassVar

from jobs.corpus.errors import CorpusError, Findings, Kind
from jobs.corpus.options import CorpusOptions
from jobs.corpus.read import records
from jobs.payload.bounded_file import open_regular
from jobs.payload.trainers.tuning.data import contents, parts
from jobs.payload.trainers.tuning.errors import MissingLibrary

_BLOCK_BYTES = 1 << 20
_HEAD_BYTES = 4096
# A text file of columns is read as records if its first line names one of these columns, else as plain text.
_COLUMNS = {"text", "component_code", *records.PARTS}
_NOT_SOURCE_TEXT = {"__pycache__", "node_modules"}
_DAMAGED = "the compressed file is damaged or cut off, and is not read from here on"
_STAGE_FOLDER = re.compile("stage_[1-4]")
# Folders without library code: installed packages, tests, tools with data, tables of character codes.
_STDLIB_LEFT_OUT = {
    "__pycache__", "site-packages", "dist-packages", "test", "tests", "idlelib", "idle_test", "lib2to3", "ensurepip",
    "encodings", "pydoc_data", "turtledemo", "lib-dynload",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Files:
    """A file, or all files below a folder. Name and content of a file decide whether it is records or plain text."""

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
    """Return the label of the source that a text comes from; ``source`` is the text's file, as in its row."""
    return Stdlib.label if source.startswith(f"{Stdlib.label}:") else source.partition("/")[0]


class Loader:
    """Reads sources as documents, counts bytes and encodings, and adds findings. Skips ``own_folder``, the corpora."""

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
                if path.name.lower().endswith(parts.TABLES):
                    yield from self._records(self._reader(file, path, label).parts(), label)
                    return
                opened = contents.decompressed(file, path.name)
                if not contents.is_utf16(opened):
                    yield from self._content(path, opened, label)
                    return
                self.encodings["utf-16"] += 1
                self._findings.add(Kind.NOT_UTF8, label, 1, "read as utf-16")
                wide = contents.Utf16AsUtf8(opened)
                yield from self._content(path, BufferedReader(wide), label)
                if wide.replaced:
                    self._findings.add(Kind.BROKEN_ENCODING, label, 1, f"{wide.replaced} broken characters replaced")
        except OSError as error:
            self._findings.add(Kind.UNREADABLE, label, 0, error.strerror or str(error))
        except MissingLibrary as error:
            if "/" not in label:  # the source is this file
                raise CorpusError(str(error)) from None
            self._findings.add(Kind.UNREADABLE, label, 0, str(error))
        except EOFError:
            self._findings.add(Kind.UNREADABLE, label, 1, _DAMAGED)

    def _reader(self, file: BufferedReader, path: Path, label: str) -> parts.RecordReader:
        decoding = records.Decoding(label, self._findings, self.encodings)
        rules = parts.ReadingRules(self._options.max_record_bytes, decoding.decoded, records.DECODER)
        return parts.RecordReader(file, path.name, rules)

    def _records(self, record_parts: Iterable[parts.RecordPart], label: str) -> Iterator[records.CorpusDocument]:
        for part in record_parts:
            if part.fault is not None:
                self._findings.add(Kind(part.fault), label, part.number, part.detail)
            if part.has_value and (document := records.document_of(part.value, label, part.number, self._findings)):
                yield document

    def _content(self, path: Path, file: BufferedReader, label: str) -> Iterator[records.CorpusDocument]:
        head = file.peek(_HEAD_BYTES)[:_HEAD_BYTES]
        if _holds_records(path, head):
            yield from self._records(self._reader(file, path, label).parts(file), label)
        elif records.looks_binary(head):
            self._findings.add(Kind.BINARY, label, 0, "data, not text; left out")
        else:
            stage = next((part for part in label.split("/") if _STAGE_FOLDER.fullmatch(part)), None)
            for line, text in self._blocks(file, head, label):
                for offset, part in records.split_text(text, self._options.document_characters):
                    yield records.CorpusDocument(part, label, line + offset, stage)

    def _blocks(self, file: BufferedReader, head: bytes, label: str) -> Iterator[tuple[int, str]]:
        """Yield the text of a file in pieces of about a megabyte, with the number of each first line."""
        line = 1
        declared = records.declared_encoding(head)
        decoding = records.Decoding(label, self._findings, self.encodings)
        if not head:
            self._findings.add(Kind.EMPTY_TEXT, label, 0, "the file is empty; left out")
        try:
            while data := contents.read_block(file, _BLOCK_BYTES):
                yield line, decoding.decoded(data, line, declared)
                line += data.count(b"\n")
        except EOFError:
            self._findings.add(Kind.UNREADABLE, label, line, f"{_DAMAGED} as text")

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
    """Return the language reference of `help()` as (topic, text), sorted; empty if the file does not exist."""
    if not path.is_file():
        return []
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
            topics: dict[str, str] = ast.literal_eval(node.value)
            return sorted(topics.items())
    return []


def _holds_records(path: Path, head: bytes) -> bool:
    """Return whether a file has records, by its name and, for `.json`, `.csv` and `.tsv`, also by its beginning."""
    kind = parts.kind_of(path.name)
    text = records.decode(head).text.lstrip("\ufeff \t\r\n")
    if kind == ".json":
        return text.startswith("[") or parts.has_object_lines(text)
    if delimiter := parts.DELIMITERS.get(kind):
        columns = (text.splitlines() or [""])[0].split(delimiter)
        return not _COLUMNS.isdisjoint(column.strip().strip('"') for column in columns)
    return kind in parts.JSON_KINDS


def _missing(path: Path) -> CorpusError:
    remedy = "Check the path, or use `stdlib` for the text that comes with Python"
    return CorpusError(f"corpus source {path} is neither a file nor a folder", remedy=remedy)
