"""The training folder of one job: the full corpus, and for a manager an extra share of its domain."""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from jobs.corpus.errors import BadParameter
from jobs.corpus.manifest import CorpusManifest, Shard, ShardFile, publish_by_content, read_json, staging, verify_shards
from jobs.corpus.options import SourceWeight, weight_of

MIXTURE_NAME = "mixture.json"
_FORMAT = 1
_JOB_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True, slots=True)
class MixtureFolder:
    """A finished mixture folder.

    `files` are the training files in reading order. Each corpus file is followed by a file of repeated rows of heavier
    sources (`_again`) and one of extra rows of the domain (`_domain`). `held_out` is the corpus' file, the same for all
    jobs; `held_out_domain` repeats its rows of the domain. `wanted_bytes` and `extra_bytes` are UTF-8 bytes of domain
    text requested and added: `extra_rows` rows, in `passes` rounds over `domain_rows` rows.
    """

    folder: Path
    version: str
    corpus: str
    job: str
    domain: str | None
    extra_share: float
    max_passes: int
    seed: int
    files: tuple[Shard, ...]
    held_out: Shard
    held_out_domain: Shard | None
    corpus_bytes: int
    wanted_bytes: int
    extra_bytes: int
    extra_rows: int
    domain_rows: int
    domain_bytes: int
    passes: int


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a row is in the corpus (offset and length in bytes), and the UTF-8 bytes of its text."""

    shard: str
    offset: int
    length: int
    text_bytes: int


def mixture(
    corpus: CorpusManifest,
    job_name: str,
    domain: str | None,
    extra_share: float,
    out_dir: Path | None = None,
    seed: int = 0,
    max_passes: int = 8,
) -> MixtureFolder:
    """Create the training folder of a job: `<job_name>-<version>` in `out_dir` (default: in the corpus).

    Every mixture has the full corpus as hard links (or copies). With a `domain`, rows with this tag are added up to
    `extra_share` of the corpus' text bytes: in seeded order, repeated in a new order if there are too few, each at most
    `max_passes` times, because text seen more often is only memorised. Rows of sources with a weight above one are
    repeated accordingly. Added rows are spread over as many files as the corpus has, so that `train-*.jsonl`
    alternates. An existing mixture is not changed. Raises BadParameter for an invalid name, share or domain,
    CorpusDamaged for a missing file, and OSError; then nothing is left behind.
    """
    _check(corpus, job_name, domain, extra_share, max_passes)
    parent = out_dir or corpus.folder / "mixtures"
    wanted = round(extra_share * corpus.train_text_bytes) if domain else 0
    order = f"{seed}:{job_name}:{corpus.version}"
    in_domain = (lambda row: int(domain in row["domains"])) if domain else None
    places = [place for shard in corpus.train for place in _places(corpus.folder, shard, in_domain)]
    chosen, passes = _choose(places, wanted, max_passes, order)
    added = {"again": _repeated(corpus, order), "domain": chosen}
    with staging(parent) as scratch:
        folder = scratch / "mixture"
        folder.mkdir()
        files: list[Shard] = []
        for index, shard in enumerate(corpus.train):
            _link(corpus.folder / shard.name, folder / shard.name)
            files.append(shard)
            for kind, rows in added.items():
                first, last = (len(rows) * end // len(corpus.train) for end in (index, index + 1))
                if part := rows[first:last]:
                    # "_" sorts after ".", so that each of these files follows its corpus file.
                    files.append(_copy_rows(corpus.folder, folder, f"{Path(shard.name).stem}_{kind}.jsonl", part))
        _link(corpus.folder / corpus.held_out.name, folder / corpus.held_out.name)
        held_out_domain = None
        if domain:
            kept_out = _places(corpus.folder, corpus.held_out, in_domain)
            held_out_domain = _copy_rows(corpus.folder, folder, "heldout_domain.jsonl", kept_out)
        result = MixtureFolder(
            folder=folder,
            version="",
            corpus=corpus.version,
            job=job_name,
            domain=domain,
            extra_share=extra_share,
            max_passes=max_passes,
            seed=seed,
            files=tuple(files),
            held_out=corpus.held_out,
            held_out_domain=held_out_domain,
            corpus_bytes=corpus.train_text_bytes,
            wanted_bytes=wanted,
            extra_bytes=sum(place.text_bytes for place in chosen),
            extra_rows=len(chosen),
            domain_rows=len(places),
            domain_bytes=sum(place.text_bytes for place in places),
            passes=passes,
        )
        target = publish_by_content(result, _FORMAT, folder, MIXTURE_NAME, parent, f"{job_name}-")
    return open_mixture(target)


def open_mixture(folder: Path, *, verify: bool = False) -> MixtureFolder:
    """Open a mixture; ``verify`` reads every file. Raises CorpusDamaged if manifest or file were changed."""
    fields = read_json(folder / MIXTURE_NAME)
    del fields["format"]
    fields["files"] = tuple(Shard(**shard) for shard in fields["files"])
    for name in ("held_out", "held_out_domain"):
        fields[name] = fields[name] and Shard(**fields[name])
    opened = MixtureFolder(folder=folder, **fields)
    if verify:
        shards = (*opened.files, opened.held_out, opened.held_out_domain)
        verify_shards(folder, (shard for shard in shards if shard))
    return opened


def _check(corpus: CorpusManifest, job_name: str, domain: str | None, extra_share: float, max_passes: int) -> None:
    if not _JOB_NAME.fullmatch(job_name):
        raise BadParameter("job_name", job_name, "a name of A-Z, a-z, 0-9, dots, dashes and underscores")
    if not 0 <= extra_share <= 1:
        raise BadParameter("extra_share", extra_share, "from 0 to 1")
    if max_passes < 1:
        raise BadParameter("max_passes", max_passes, "at least 1")
    domains = corpus.parameters["domains"]
    if domain is not None and domain not in domains:
        raise BadParameter("domain", domain, f"one the corpus has tags for ({', '.join(domains) or 'it has none'})")


def _repeats(weights: Sequence[SourceWeight], row: Mapping[str, Any]) -> int:
    """Return how many extra times a row is read. Its ID decides about a fraction, so other rows have no influence."""
    weight = weight_of(row["source"], weights)
    return int(max(0.0, weight.weight - 1 + int(row["id"][-8:], 16) / (1 << 32))) if weight else 0


def _repeated(corpus: CorpusManifest, seed: str) -> list[_Place]:
    """Return the extra rows of sources with a weight above one, each as often as it is repeated, in seeded order."""
    weights = [SourceWeight(**weight) for weight in corpus.parameters.get("weights", ())]
    times = partial(_repeats, weights) if any(weight.weight > 1 for weight in weights) else None
    places = enumerate(place for shard in corpus.train for place in _places(corpus.folder, shard, times))
    return [place for _, place in sorted(places, key=lambda pair: _rank(pair[1], f"{seed}:again:{pair[0]}"))]


def _places(folder: Path, shard: Shard, times: Callable[[Mapping[str, Any]], int] | None) -> list[_Place]:
    """Return where the rows of a shard are, each row ``times(row)`` times. Return no rows if ``times`` is None."""
    result: list[_Place] = []
    offset = 0
    if times is None:
        return result
    with (folder / shard.name).open("rb") as file:
        for line in file:
            row = json.loads(line)
            if count := times(row):
                result += [_Place(shard.name, offset, len(line), len(row["text"].encode()))] * count
            offset += len(line)
    return result


def _choose(places: Sequence[_Place], wanted: int, max_passes: int, seed: str) -> tuple[list[_Place], int]:
    """Return rows in seeded order, about `wanted` bytes of text in sum, and the number of rounds begun."""
    chosen: list[_Place] = []
    size = 0
    for round_number in range(max_passes if places else 0):
        for place in sorted(places, key=lambda place: _rank(place, f"{seed}:{round_number}")):
            # Stop at the size nearest to the target, above or below.
            if size + place.text_bytes / 2 > wanted:
                return chosen, -(-len(chosen) // len(places))
            chosen.append(place)
            size += place.text_bytes
    return chosen, max_passes if places else 0


def _rank(place: _Place, seed: str) -> bytes:
    return hashlib.sha256(f"{seed}:{place.shard}:{place.offset}".encode()).digest()


def _copy_rows(corpus_folder: Path, folder: Path, name: str, places: Sequence[_Place]) -> Shard:
    with ExitStack() as stack:
        writer = stack.enter_context(closing(ShardFile(folder, name)))
        shards = {place.shard for place in places}
        files = {shard: stack.enter_context((corpus_folder / shard).open("rb")) for shard in sorted(shards)}
        for place in places:
            files[place.shard].seek(place.offset)
            writer.write(files[place.shard].read(place.length - 1), place.text_bytes)
        return writer.finish()


def _link(existing: Path, new: Path) -> None:
    try:
        os.link(existing, new)
    except OSError:
        # The folders are on different file systems, or theirs has no hard links.
        shutil.copyfile(existing, new)
