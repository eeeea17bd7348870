"""Build a corpus from sources: read, deduplicate, tag, cluster, split, write."""

from __future__ import annotations

import hashlib
import json
import math
import re
from array import array
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, BinaryIO, Literal
from zlib import crc32

from jobs.corpus import manifest as manifests
from jobs.corpus.build.rules import Rules, Tags
from jobs.corpus.card import describe, licence_of
from jobs.corpus.errors import BadParameter, CorpusError, Findings, Kind
from jobs.corpus.leaks import text_of, texts_with_items
from jobs.corpus.options import SHINGLE_WORDS, CorpusOptions, SourceWeight, weight_of
from jobs.corpus.read.records import CorpusDocument, clean
from jobs.corpus.read.sources import Loader, Source, label_of
from jobs.payload.scorers.items import BadItems, items_at

_REPORT_EVERY = 256
# A domain with fewer clusters cannot spare one for measuring.
_CLUSTERS_TO_SPARE = 10
# Limits for `held_out_wanted`, as shares of all, so that most texts of a small corpus are for training.
_MOST_CLUSTERS = 0.1
_MOST_BYTES = 0.15


@dataclass(frozen=True, slots=True)
class BuildProgress:
    """Progress of a build: the documents done in this phase, `total` if known, and all bytes read."""

    phase: Literal["reading", "tagging", "clustering", "writing"]
    documents: int
    total: int | None
    bytes_read: int


def build(  # noqa: PLR0913 - one keyword per number of the recipe
    sources: Sequence[Source],
    out_dir: Path,
    domains: Mapping[str, Sequence[str]],
    *,
    held_out_fraction: float = 0.02,
    held_out_wanted: int = 0,
    shard_bytes: int = 8 << 20,
    seed: int = 0,
    options: CorpusOptions = CorpusOptions(),  # noqa: B008 - frozen
    test_sets: Sequence[Path] = (),
    find_leaks: Callable[[Path, Mapping[str, str]], Mapping[str, str]] = texts_with_items,
    progress: Callable[[BuildProgress], None] = lambda _progress: None,
) -> manifests.CorpusManifest:
    """Build the corpus of `sources` in `out_dir/<version>` and return its manifest. Raises CorpusError, OSError.

    The version names the content: the same documents and parameters give the same version, whatever the order of
    sources, files and records. An existing corpus is not changed, and nothing incomplete remains after an error or a
    kill. `domains` are the keywords of each manager. `held_out_fraction` is the share of text bytes kept from training
    in whole duplicate clusters, `held_out_wanted` a number of clusters to reach if enough text remains. A training file
    is closed at `shard_bytes`. The texts in which `find_leaks` finds an item of `test_sets` are left out.
    """
    if not 0 <= held_out_fraction <= 0.5:
        raise BadParameter("held_out_fraction", held_out_fraction, "from 0 to 0.5")
    if shard_bytes < 256:
        raise BadParameter("shard_bytes", shard_bytes, "at least 256")
    if held_out_wanted < 0:
        raise BadParameter("held_out_wanted", held_out_wanted, "at least 0")
    findings = Findings()
    keywords, rules = Keywords(domains), Rules(options.rules, domains, findings)
    loader = Loader(findings, options, own_folder=out_dir)
    with manifests.staging(out_dir) as scratch, (scratch / "spool").open("w+b") as spool_file:
        spool = Spool(spool_file, findings, keywords, rules)
        # Sorted, so that findings are listed in the same order for any order of the arguments.
        for source in sorted(sources, key=lambda source: (source.label, repr(source))):
            for document in loader.load(source):
                spool.add(document)
                if spool.documents_read % _REPORT_EVERY == 0:
                    progress(BuildProgress("reading", spool.documents_read, None, loader.bytes_read))
        compared_sets = _decontaminate(spool, test_sets, find_leaks, findings)
        _sample(spool.entries, options.weights, findings)
        if not spool.entries:
            findings_text = ", ".join(f"{kind} {count}" for kind, count in sorted(findings.counts.items()))
            raise CorpusError(
                f"no usable text in {', '.join(source.label for source in sources) or 'an empty list of sources'} "
                f"(found: {findings_text or 'no files'})",
                remedy="Add a source with text, code or episodes",
            )
        ids = sorted(spool.entries)
        entries = [spool.entries[name] for name in ids]
        for rule in rules.commands:
            progress(BuildProgress("tagging", 0, len(ids), loader.bytes_read))
            rows = (json.loads(spool.row(spool.entries[name])) for name in ids)
            rules.run(rule, rows, {name: spool.entries[name].tags for name in ids}, scratch)
        tagger = DomainTagger(keywords, (entry.keywords for entry in entries), options.relevance, options.rarity)
        stages = [entry.tags.stage or entry.stage for entry in entries]
        domains_of = [_domains(entry, tagger, keywords) for entry in entries]
        progress(BuildProgress("clustering", 0, len(ids), loader.bytes_read))
        cluster_of = [ids[root] for root in clusters([entry.signature for entry in entries])]
        held_out = held_out_clusters(
            cluster_of, [entry.text_bytes for entry in entries], domains_of, held_out_fraction, seed, held_out_wanted
        )
        is_held_out = [cluster in held_out for cluster in cluster_of]  # by text
        folder = scratch / "corpus"
        folder.mkdir()
        with closing(_Writer(folder, shard_bytes)) as writer:
            for index, (entry, cluster) in enumerate(zip(entries, cluster_of, strict=True)):
                tags = {"cluster": cluster, "domains": domains_of[index], "stage": stages[index]}
                row = spool.row(entry)[:-1] + b"," + json.dumps(tags, separators=(",", ":")).encode("ascii")[1:]
                writer.write(row, entry.text_bytes, held_out=is_held_out[index])
                if index % _REPORT_EVERY == 0:
                    progress(BuildProgress("writing", index, len(ids), loader.bytes_read))
            train, held_out_file = writer.finish()
        findings.write(folder / manifests.FINDINGS_NAME)
        manifest = manifests.CorpusManifest(
            folder=out_dir,
            version="",
            train=train,
            held_out=held_out_file,
            parameters={
                "domains": {name: sorted(set(words)) for name, words in domains.items()},
                "held_out_fraction": held_out_fraction,
                "held_out_wanted": held_out_wanted,
                "shard_bytes": shard_bytes,
                "seed": seed,
                # Empty values are omitted, so that corpora built by older releases keep their version.
                **{key: value for key, value in asdict(options).items() if key != "weights" or value},
                **({"test_sets": compared_sets} if compared_sets else {}),
                **METHOD,
            },
            documents_read=spool.documents_read,
            duplicates=findings.counts[Kind.DUPLICATE],
            clusters=len(set(cluster_of)),
            near_duplicates=len(cluster_of) - len(set(cluster_of)),
            stages=dict(Counter(stage or "none" for stage in stages)),
            domains={name: sum(name in tagged for tagged in domains_of) for name in domains},
            findings=dict(findings.counts),
            encodings=dict(loader.encodings),
            held_out_clusters=len(held_out),
            shares={
                "source": _shares(entries, is_held_out, [(label_of(entry.source),) for entry in entries]),
                "stage": _shares(entries, is_held_out, [(stage or "none",) for stage in stages]),
                "domain": _shares(entries, is_held_out, [tagged or ("none",) for tagged in domains_of]),
            },
            overlap=_overlap(domains_of),
            keywords=tagger.counts(),
        )
        target = manifests.publish_by_content(manifest, manifests.FORMAT, folder, manifests.MANIFEST_NAME, out_dir)
    built = manifests.open_corpus(target)
    licences: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for entry in entries:
        licences[label_of(entry.source)][entry.licence] += 1
    describe(built, licences)
    return built


def _decontaminate(
    spool: Spool,
    test_sets: Sequence[Path],
    find_leaks: Callable[[Path, Mapping[str, str]], Mapping[str, str]],
    findings: Findings,
) -> dict[str, str]:
    """Remove the texts that hold an item of a test set; return the names of the compared sets by digest."""
    compared_sets: dict[str, str] = {}
    items: dict[str, str] = {}
    for path in sorted(test_sets):
        try:
            test_set = items_at(path)
        except (BadItems, OSError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            findings.add(Kind.UNREADABLE, path.name, 0, f"a test set that no text was compared with: {why}")
            continue
        compared_sets[test_set.digest] = path.name
        # The key has the digest, because sets of several models may have the same file name and item IDs.
        items |= {f"{test_set.digest} {item.id}": text_of(item.task) for item in test_set.items.values()}
    for name, key in sorted(find_leaks(spool.written(), items).items()) if items else ():
        entry = spool.entries.pop(name)
        digest, _, item = key.partition(" ")
        detail = f"holds the test item {item} of {compared_sets[digest]}; left out"
        findings.add(Kind.TEST_ITEM, entry.source, entry.line, detail)
    return compared_sets


def _sample(entries: dict[str, BuildEntry], weights: Sequence[SourceWeight], findings: Findings) -> None:
    """Remove texts that a weight below one or a maximum of bytes excludes. Their order has no influence."""
    sizes: Counter[SourceWeight] = Counter()
    for name in sorted(entries) if weights else ():
        entry = entries[name]
        if (weight := weight_of(entry.source, weights)) is None:
            continue
        full = weight.max_bytes is not None and sizes[weight] + entry.text_bytes > weight.max_bytes
        # Use the last digits of the ID: the first ones set the order, which decides about the maximum of bytes.
        if full or int(name[-8:], 16) >= weight.weight * (1 << 32):
            limit = f"max_bytes {weight.max_bytes}" if full else f"weight {weight.weight:g}"
            findings.add(Kind.SAMPLED_OUT, entry.source, entry.line, f"{limit} of {weight.path}; left out")
            del entries[name]
        else:
            sizes[weight] += entry.text_bytes


def _domains(entry: BuildEntry, tagger: DomainTagger, keywords: Keywords) -> tuple[str, ...]:
    """Return a text's domains: those set by rules or else by its keywords, and the manager that its record names."""
    domains = entry.tags.domains
    manager = (entry.manager or "").lower()
    tagged = set(tagger.tags(entry.keywords) if domains is None else domains)
    return tuple(name for name in keywords.domains if name in tagged or name.lower() == manager)


def _shares(
    entries: Sequence[BuildEntry], is_held_out: Sequence[bool], names_of: Sequence[Sequence[str]]
) -> dict[str, dict[str, int]]:
    """Return by name (of a source, stage or domain) the numbers of texts, text bytes and held-out texts."""
    counters: dict[str, Counter[str]] = {}
    for entry, held_out, names in zip(entries, is_held_out, names_of, strict=True):
        for name in names:
            counts = counters.setdefault(name, Counter({"texts": 0, "bytes": 0, "held_out": 0}))
            counts.update(texts=1, bytes=entry.text_bytes, held_out=int(held_out))
    return {name: dict(counts) for name, counts in counters.items()}


def _overlap(domains_of: Sequence[Sequence[str]]) -> dict[str, dict[str, int]]:
    """Return the number of texts that belong to two domains, by the first and then the second name."""
    pairs = Counter(pair for domains in domains_of for pair in combinations(domains, 2))
    result: dict[str, dict[str, int]] = {}
    for (one, other), count in pairs.items():
        result.setdefault(one, {})[other] = count
    return result


class _Writer:
    """Writes rows to `train-00000.jsonl` and so on, each about `shard_bytes` long, and to `heldout.jsonl`."""

    def __init__(self, folder: Path, shard_bytes: int) -> None:
        self._folder = folder
        self._shard_bytes = shard_bytes
        self._held_out = manifests.ShardFile(folder, "heldout.jsonl")
        self._train = manifests.ShardFile(folder, "train-00000.jsonl")
        self._finished: list[manifests.Shard] = []

    def write(self, row: bytes, text_bytes: int, *, held_out: bool) -> None:
        if held_out:
            self._held_out.write(row, text_bytes)
            return
        if self._train.bytes and self._train.bytes + len(row) > self._shard_bytes:
            self._finished.append(self._train.finish())
            self._train = manifests.ShardFile(self._folder, f"train-{len(self._finished):05d}.jsonl")
        self._train.write(row, text_bytes)

    def finish(self) -> tuple[tuple[manifests.Shard, ...], manifests.Shard]:
        return (*self._finished, self._train.finish()), self._held_out.finish()

    def close(self) -> None:
        self._train.close()
        self._held_out.close()


def held_out_clusters(
    cluster_of: Sequence[str],
    text_bytes: Sequence[int],
    domains_of: Sequence[Sequence[str]],
    fraction: float,
    seed: int,
    wanted: int = 0,
) -> frozenset[str]:
    """Return the clusters to hold out: about `fraction` of the bytes, and at least `wanted` clusters.

    The first three arguments have one value per text. Each domain with ten clusters or more gets one, if one fits the
    target. Others follow in the order of the digests of seed and cluster name; other texts do not change that order, so
    a growing corpus keeps nearly all of its held-out texts. Clusters that would exceed the target by more than a tenth
    are skipped, but at least one of two or more clusters is held out (if `fraction` is above 0). To reach `wanted`
    clusters, more is held out: up to a tenth of all clusters and 0.15 of all bytes.
    """
    sizes: Counter[str] = Counter()
    members: defaultdict[str, set[str]] = defaultdict(set)
    for cluster, size, domains in zip(cluster_of, text_bytes, domains_of, strict=True):
        sizes[cluster] += size
        for domain in domains:
            members[domain].add(cluster)
    if fraction == 0 or len(sizes) < 2:
        return frozenset()
    order = sorted(sizes, key=lambda name: hashlib.sha256(f"{seed}:{name}".encode()).digest())
    limit = 1.1 * fraction * sizes.total()
    chosen: set[str] = set()
    held_bytes = 0
    large_domains = [members[name] for name in sorted(members) if len(members[name]) >= _CLUSTERS_TO_SPARE]
    for domain_clusters in large_domains:
        if chosen.isdisjoint(domain_clusters):
            candidates = (name for name in order if name in domain_clusters)
            fitting = next((name for name in candidates if held_bytes + sizes[name] <= limit), None)
            if fitting:
                chosen.add(fitting)
                held_bytes += sizes[fitting]
    enough_clusters = min(wanted, int(_MOST_CLUSTERS * len(sizes)))
    for most_bytes, by_bytes in ((limit, True), (_MOST_BYTES * sizes.total(), False)):
        for name in order:
            # `limit` is eleven tenths of the target; nine tenths are enough.
            if held_bytes >= limit * 0.9 / 1.1 if by_bytes else len(chosen) >= enough_clusters:
                break
            if name not in chosen and held_bytes + sizes[name] <= most_bytes:
                chosen.add(name)
                held_bytes += sizes[name]
    return frozenset(chosen or {min(sizes, key=lambda name: (sizes[name], name))})


# Documents are cleaned and deduplicated on the way to disk; only signatures and tags stay in memory.
@dataclass(frozen=True, slots=True)
class BuildEntry:
    """A kept document: the position of its row in the spool, and the facts for clustering and the manifest."""

    offset: int
    length: int
    text_bytes: int
    source: str
    line: int
    signature: bytes
    stage: str | None
    manager: str | None
    keywords: int  # as bits, see Keywords.in_text
    tags: Tags  # set by rules
    licence: str


class Spool:
    """Collects documents: their rows in `file`, all other facts in `entries`, by the ID of the text."""

    def __init__(self, file: BinaryIO, findings: Findings, keywords: Keywords, rules: Rules) -> None:
        self.entries: dict[str, BuildEntry] = {}
        self.documents_read = 0
        self._file = file
        self._end = 0
        self._findings = findings
        self._keywords = keywords
        self._rules = rules

    def add(self, document: CorpusDocument) -> None:
        """Add a document; empty texts and exact duplicates become findings."""
        self.documents_read += 1
        text, controls, surrogates = clean(document.text)
        if controls:
            self._add_finding(Kind.CONTROL_CHARACTERS, document, f"{controls} removed")
        if surrogates:
            self._add_finding(Kind.LONE_SURROGATE, document, f"{surrogates} replaced")
        words = normalised(text)
        if not words:
            self._add_finding(Kind.EMPTY_TEXT, document, "white space only; left out")
            return
        name = identity(words)
        tags = self._rules.of(document)  # for copies too, so that the order of copies does not change the findings
        try:
            row = _row(name, text, document)
        except RecursionError:
            self._add_finding(Kind.TOO_DEEP, document, "metadata nested too deeply to write; left out")
            return
        present = self.entries.get(name)
        if present:
            self._add_finding(Kind.DUPLICATE, document, f"same text as in {present.source}; left out")
            # Copies may differ in tags and metadata. Which one is kept must not depend on their order.
            if self.row(present) <= row:
                return
            self._file.seek(present.offset)
            self._file.write(b" " * present.length)
        self._file.seek(self._end)
        self._file.write(row + b"\n")
        self.entries[name] = BuildEntry(
            offset=self._end,
            length=len(row),
            text_bytes=len(text.encode()),
            source=document.source,
            line=document.line,
            signature=present.signature if present else signature(words),
            stage=document.stage,
            manager=document.manager,
            keywords=self._keywords.in_text(text),
            tags=tags,
            licence=licence_of(text, document.source, document.metadata),
        )
        self._end += len(row) + 1

    def written(self) -> Path:
        """Return the path of the file of rows, one per line; replaced rows are blank lines."""
        self._file.flush()
        return Path(self._file.name)

    def row(self, entry: BuildEntry) -> bytes:
        """Return the row of an entry, without its tags."""
        self._file.seek(entry.offset)
        return self._file.read(entry.length)

    def _add_finding(self, kind: Kind, document: CorpusDocument, detail: str) -> None:
        self._findings.add(kind, document.source, document.line, detail)


def _row(name: str, text: str, document: CorpusDocument) -> bytes:
    row: dict[str, Any] = {"id": name, "text": text, "source": document.source, **_cleaned(document.fields)}
    if document.metadata:
        row["metadata"] = document.metadata
    # ASCII, because metadata may have lone surrogates, which UTF-8 cannot encode. Keys are sorted, so that copies of a
    # record are equal for any order of their fields.
    return json.dumps(row, sort_keys=True, separators=(",", ":")).encode("ascii")


def _cleaned(value: Any) -> Any:
    """Return a JSON value with all of its texts cleaned."""
    if isinstance(value, str):
        return clean(value)[0]
    if isinstance(value, Mapping):
        return {name: _cleaned(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_cleaned(part) for part in value]
    return value


_ROUNDING = 1e-9  # tolerance for sums of equal weights in another order


class Keywords:
    """The keywords of all domains.

    A keyword matches the beginning of a word, or of a part of a snake_case name, in any case: `optimize` matches
    `optimized` and `gpu` matches `max_gpu`, but `api` does not match `capital`.
    """

    def __init__(self, domains: Mapping[str, Sequence[str]]) -> None:
        self.domains = {
            name: sorted({word.strip().lower() for word in words} - {""}) for name, words in sorted(domains.items())
        }
        self.words = sorted({word for words in self.domains.values() for word in words})
        self._patterns = [(word, re.compile(rf"(?<![^\W_]){re.escape(word)}")) for word in self.words]

    def in_text(self, text: str) -> int:
        """Return the keywords of a text as bits: bit n is set for word n of `words`."""
        lowered = text.lower()
        bits = 0
        for number, (word, at_start) in enumerate(self._patterns):
            # The plain search is many times faster and decides most cases.
            if word in lowered and at_start.search(lowered):
                bits |= 1 << number
        return bits


class DomainTagger:
    """Tags texts by domain once all texts are known, because the weight of a keyword depends on its rarity.

    A keyword in m of n texts weighs log((n + 1) / (m + 0.5)), or 0 if m is 0. A text belongs to a domain if its
    keywords weigh at least `relevance` of the sum for the domain, or log(`rarity`): the weight of independent keywords
    that one text in `rarity` has together.
    """

    def __init__(self, keywords: Keywords, texts: Iterable[int], relevance: float, rarity: float) -> None:
        self._texts = 0
        counts = [0] * len(keywords.words)
        for bits in texts:
            self._texts += 1
            for number in range(len(counts)):
                counts[number] += bits >> number & 1
        self._counts = dict(zip(keywords.words, counts, strict=True))
        numbers = {word: number for number, word in enumerate(keywords.words)}
        weights = {word: math.log((self._texts + 1) / (count + 0.5)) for word, count in self._counts.items() if count}
        self._domains = {
            name: [(1 << numbers[word], weights[word]) for word in words if word in weights]
            for name, words in keywords.domains.items()
        }
        self._needed = {
            name: min(math.log(rarity), relevance * sum(weight for _, weight in weighted)) - _ROUNDING
            for name, weighted in self._domains.items()
        }
        self._keywords = keywords
        self._tags_by_words: dict[int, tuple[str, ...]] = {}

    def tags(self, bits: int) -> tuple[str, ...]:
        """Return the domains, sorted, of a text with these keywords."""
        if bits not in self._tags_by_words:
            weight_of_domain = {
                name: sum(weight for bit, weight in weighted if bits & bit) for name, weighted in self._domains.items()
            }
            self._tags_by_words[bits] = tuple(
                name for name, weight in weight_of_domain.items() if weight and weight >= self._needed[name]
            )
        return self._tags_by_words[bits]

    def counts(self) -> dict[str, dict[str, int]]:
        """Return the number of texts with each keyword, by domain."""
        return {name: {word: self._counts[word] for word in words} for name, words in self._keywords.domains.items()}


# Exact and near duplicates: digests of normalised text, MinHash signatures, clusters by LSH banding.
SIGNATURE_SIZE = 64
BAND_ROWS = 4
SIMILARITY = 0.7
_POINTS = tuple(range(0, 1 << 32, (1 << 32) // SIGNATURE_SIZE))
METHOD = {"shingle_words": SHINGLE_WORDS, "signature_size": SIGNATURE_SIZE, "similarity": SIMILARITY}
# Members of a bucket that are compared with a new text. Without a limit, boilerplate makes the time quadratic.
_COMPARED = 32


def normalised(text: str) -> bytes:
    """Return a text in UTF-8 with every run of white space as one space."""
    return " ".join(text.split()).encode("utf-8")


def identity(words: bytes) -> str:
    """Return the ID of a normalised text: the first 32 hex digits of its SHA-256."""
    return hashlib.sha256(words).hexdigest()[:32]


def signature(words: bytes) -> bytes:
    """Return the MinHash signature of a normalised text: 64 numbers of 32 bits.

    Every shingle of five words is hashed once onto a circle; entry i is the first hash at or after the i-th of 64 fixed
    points. Two texts agree in an entry if the first hash of their union is shared, so that the expected share of equal
    entries is their Jaccard similarity, as with 64 separate hash functions.
    """
    tokens = words.split(b" ")
    windows = zip(*(tokens[start:] for start in range(min(SHINGLE_WORDS, len(tokens)))), strict=False)
    hashes = sorted(set(map(crc32, map(b" ".join, windows))))
    count = len(hashes)
    return array("I", (hashes[bisect_left(hashes, point) % count] for point in _POINTS)).tobytes()


def clusters(signatures: Sequence[bytes]) -> list[int]:
    """Return the smallest index in the cluster of each text; texts with a similarity of 0.7 share a cluster.

    Clusters are transitive. Two texts are compared if four consecutive signature entries at a fixed position agree,
    which finds 98 of 100 pairs of similarity 0.7. Time grows linearly with the texts.
    """
    parent = list(range(len(signatures)))

    def root(index: int) -> int:
        while parent[index] != index:
            parent[index] = parent[parent[index]]
            index = parent[index]
        return index

    band_bytes = BAND_ROWS * 4
    for start in range(0, SIGNATURE_SIZE * 4, band_bytes):
        buckets: dict[bytes, list[int]] = {}
        for index, value in enumerate(signatures):
            bucket = buckets.setdefault(value[start : start + band_bytes], [])
            unrelated = True
            for other in bucket[:_COMPARED]:
                mine, theirs = root(index), root(other)
                if mine == theirs:
                    unrelated = False
                elif _similarity(value, signatures[other]) >= SIMILARITY:
                    # The smaller index is the root, for any order of merges.
                    parent[max(mine, theirs)] = min(mine, theirs)
                    unrelated = False
            # One member represents all that are already in its cluster.
            if unrelated:
                bucket.append(index)
    return [root(index) for index in range(len(signatures))]


def _similarity(one: bytes, other: bytes) -> float:
    mine, theirs = memoryview(one).cast("I"), memoryview(other).cast("I")
    return sum(map(int.__eq__, mine, theirs)) / SIGNATURE_SIZE
