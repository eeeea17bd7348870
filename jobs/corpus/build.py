"""Sources to a corpus: read, deduplicate, tag, cluster, split, write."""

from __future__ import annotations

import hashlib
import json
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, Literal

from jobs.corpus.decode import clean
from jobs.corpus.document import Document
from jobs.corpus.domains import DomainTagger
from jobs.corpus.duplicates import (
    SHINGLE_WORDS,
    SIGNATURE_SIZE,
    SIMILARITY,
    clusters,
    identity,
    normalised,
    signature,
)
from jobs.corpus.errors import BadParameter, NothingToTrainOn
from jobs.corpus.findings import Findings, Kind
from jobs.corpus.manifest import (
    FINDINGS_NAME,
    MANIFEST_NAME,
    CorpusManifest,
    content_version,
    corpus_fields,
    open_corpus,
    write_json,
)
from jobs.corpus.shards import ShardWriter
from jobs.corpus.sources import Loader, Source
from jobs.corpus.split import held_out_clusters
from jobs.corpus.staging import publish, staging

_REPORT_EVERY = 256


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a build is: documents done in this phase, of `total` when that is known."""

    phase: Literal["reading", "clustering", "writing"]
    documents: int
    total: int | None
    bytes_read: int


@dataclass(slots=True)
class _Entry:
    """A kept document: where its row is in the spool, and what later phases need to know."""

    offset: int
    length: int
    text_bytes: int
    source: str
    signature: bytes
    stage: str | None
    domains: tuple[str, ...]


def build(
    sources: Sequence[Source],
    out_dir: Path,
    domains: Mapping[str, Sequence[str]],
    *,
    held_out_fraction: float = 0.02,
    shard_bytes: int = 8 << 20,
    seed: int = 0,
    relevance: float = 0.5,
    document_characters: int = 16_384,
    max_record_bytes: int = 4 << 20,
    progress: Callable[[Progress], None] | None = None,
) -> CorpusManifest:
    """Build the corpus of `sources` in `out_dir/<version>` and return its manifest.

    The version names the content: the same documents and parameters give the same version whatever the order
    of sources, files and records. Building what exists changes nothing. A kill leaves no half corpus.

    Args:
        domains: keywords per manager; texts with at least the share `relevance` of them get the tag.
        held_out_fraction: share of text bytes kept from training, in whole duplicate clusters.
        shard_bytes: size at which a training file is closed.
        document_characters: longest document made from plain text; longer texts are cut at a pause.
        max_record_bytes: longest JSON record read; longer ones are findings.

    Raises:
        SourceMissing, NothingToTrainOn, BadParameter: nothing is written.
        OSError: the disk is full or not writable; nothing is left behind.
    """
    _check(held_out_fraction, shard_bytes, relevance, document_characters, max_record_bytes)
    notify = progress or (lambda _progress: None)
    findings = Findings()
    loader = Loader(findings, document_characters, max_record_bytes)
    with staging(out_dir) as scratch:
        folder = scratch / "corpus"
        folder.mkdir()
        with (scratch / "spool").open("w+b") as spool:
            spooler = _Spooler(spool, findings, DomainTagger(domains, relevance))
            for document in _read(sources, loader):
                if spooler.add(document) % _REPORT_EVERY == 0:
                    notify(Progress("reading", spooler.seen, None, loader.bytes_read))
            if not spooler.entries:
                raise NothingToTrainOn(tuple(source.label for source in sources), dict(findings.counts))
            ids = sorted(spooler.entries)
            entries = [spooler.entries[name] for name in ids]
            notify(Progress("clustering", 0, len(ids), loader.bytes_read))
            roots = clusters([entry.signature for entry in entries])
            held_out = held_out_clusters(
                [ids[root] for root in roots],
                [entry.text_bytes for entry in entries],
                held_out_fraction,
                seed,
            )
            with (
                ShardWriter(folder, "train", shard_bytes) as train,
                ShardWriter(folder, "heldout", None) as kept_out,
            ):
                for index, entry in enumerate(entries):
                    cluster = ids[roots[index]]
                    spool.seek(entry.offset)
                    row = spool.read(entry.length)[:-1] + b',"cluster":"%s"}' % cluster.encode()
                    (kept_out if cluster in held_out else train).write(row, entry.text_bytes)
                    if index % _REPORT_EVERY == 0:
                        notify(Progress("writing", index, len(ids), loader.bytes_read))
        findings.write(folder / FINDINGS_NAME)
        manifest = CorpusManifest(
            folder=out_dir,
            version="",
            train=tuple(train.shards),
            held_out=kept_out.shards[0],
            parameters={
                "domains": {name: sorted(set(words)) for name, words in sorted(domains.items())},
                "relevance": relevance,
                "held_out_fraction": held_out_fraction,
                "shard_bytes": shard_bytes,
                "seed": seed,
                "document_characters": document_characters,
                "max_record_bytes": max_record_bytes,
                "shingle_words": SHINGLE_WORDS,
                "signature_size": SIGNATURE_SIZE,
                "similarity": SIMILARITY,
            },
            documents_read=spooler.seen,
            duplicates=findings.counts[Kind.DUPLICATE],
            clusters=len(set(roots)),
            near_duplicates=len(roots) - len(set(roots)),
            stages=dict(Counter(entry.stage or "none" for entry in entries)),
            domains={name: sum(name in entry.domains for entry in entries) for name in sorted(domains)},
            findings=dict(findings.counts),
            encodings=dict(loader.encodings),
        )
        version = content_version(corpus_fields(manifest))
        target = out_dir / version
        if not (target / MANIFEST_NAME).exists():
            write_json(folder / MANIFEST_NAME, corpus_fields(replace(manifest, version=version)))
            publish(folder, target)
    return open_corpus(target)


def _check(
    held_out_fraction: float,
    shard_bytes: int,
    relevance: float,
    document_characters: int,
    max_record_bytes: int,
) -> None:
    if not 0 <= held_out_fraction <= 0.5:
        raise BadParameter("held_out_fraction", held_out_fraction, "from 0 to 0.5")
    if not 0 < relevance <= 1:
        raise BadParameter("relevance", relevance, "above 0 and at most 1")
    for name, value in (
        ("shard_bytes", shard_bytes),
        ("document_characters", document_characters),
        ("max_record_bytes", max_record_bytes),
    ):
        if value < 256:
            raise BadParameter(name, value, "at least 256")


def _read(sources: Sequence[Source], loader: Loader) -> Iterator[Document]:
    # Sorted, so that findings are listed in the same order whatever the order of the arguments.
    for source in sorted(sources, key=lambda source: (source.label, repr(source))):
        yield from loader.load(source)


class _Spooler:
    """Cleans, tags and deduplicates documents; keeps rows in a scratch file and only signatures in memory."""

    def __init__(self, spool: BinaryIO, findings: Findings, tagger: DomainTagger) -> None:
        self.entries: dict[str, _Entry] = {}
        self.seen = 0
        self._spool = spool
        self._end = 0
        self._findings = findings
        self._tagger = tagger

    def add(self, document: Document) -> int:
        """Take one document; returns how many were offered so far."""
        self.seen += 1
        text, controls, surrogates = clean(document.text)
        if controls:
            self._note(Kind.CONTROL_CHARACTERS, document, f"{controls} removed")
        if surrogates:
            self._note(Kind.LONE_SURROGATE, document, f"{surrogates} replaced")
        words = normalised(text)
        if not words:
            self._note(Kind.EMPTY_TEXT, document, "white space only; left out")
            return self.seen
        name = identity(words)
        tags = self._tagger.tags(text, document.manager)
        row = self._row(name, text, tags, document)
        known = self.entries.get(name)
        if known:
            self._note(Kind.DUPLICATE, document, f"same text as in {known.source}; left out")
            # Copies may differ in tags and metadata. Which one stays must not depend on who came first.
            self._spool.seek(known.offset)
            if self._spool.read(known.length) <= row:
                return self.seen
        self._spool.seek(self._end)
        self._spool.write(row)
        self.entries[name] = _Entry(
            offset=self._end,
            length=len(row),
            text_bytes=len(text.encode()),
            source=document.source,
            signature=known.signature if known else signature(words),
            stage=document.stage,
            domains=tags,
        )
        self._end += len(row)
        return self.seen

    def _row(self, name: str, text: str, tags: tuple[str, ...], document: Document) -> bytes:
        row = {
            "id": name,
            "text": text,
            "stage": document.stage,
            "domains": tags,
            "source": document.source,
        }
        if document.metadata:
            row["metadata"] = document.metadata
        # ASCII, because metadata may hold lone surrogates, which JSON can carry and UTF-8 cannot.
        return json.dumps(row, separators=(",", ":")).encode("ascii")

    def _note(self, kind: Kind, document: Document, detail: str) -> None:
        self._findings.add(kind, document.source, document.line, detail)
