"""What one job trains on: the full corpus, and for a manager an extra share of its own domain."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from jobs.corpus.errors import BadParameter
from jobs.corpus.manifest import FORMAT, CorpusManifest, content_version, read_json, verify_shards, write_json
from jobs.corpus.shards import Shard, ShardWriter
from jobs.corpus.staging import publish, staging

MIXTURE_NAME = "mixture.json"
_JOB_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True, slots=True)
class Mixture:
    """A finished mixture folder.

    `files` are the training files in reading order, corpus files and domain files taking turns. `held_out` is
    the corpus' own file, the same for every job; `held_out_domain` repeats the rows of it that concern the domain.
    `wanted_bytes` and `extra_bytes` are UTF-8 text bytes of domain data asked for and added; `domain_rows`
    distinct rows made up the latter, each used `passes` times or once less (0.0 when there were none).
    """

    folder: Path
    version: str
    corpus: str
    job: str
    domain: str | None
    extra_share: float
    seed: int
    files: tuple[Shard, ...]
    held_out: Shard
    held_out_domain: Shard | None
    corpus_bytes: int
    wanted_bytes: int
    extra_bytes: int
    domain_rows: int
    domain_bytes: int
    extra_rows: int
    passes: int


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a row of the domain lies in the corpus, and how much text it holds."""

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
) -> Mixture:
    """Make the training folder of one job in `out_dir/<job_name>-<version>`; `out_dir` defaults to `mixtures` in the corpus.

    Every mixture holds the full corpus by hard links (copies where links are impossible). With a `domain`, rows
    tagged with it are added until they make up `extra_share` of the corpus' text bytes, in seeded order, repeated
    in a new order when there are too few. The domain rows are spread over as many files as the corpus has, so
    reading `train-*.jsonl` by name meets both in turn. Making what exists changes nothing.

    Raises:
        BadParameter: a job name that is no file name, a share outside 0..1, a domain the corpus was not tagged with.
        CorpusDamaged: a file of the corpus is missing.
        OSError: nothing is left behind.
    """
    _check(corpus, job_name, domain, extra_share)
    parent = out_dir or corpus.folder / "mixtures"
    with staging(parent) as scratch:
        folder = scratch / "mixture"
        folder.mkdir()
        wanted = round(extra_share * corpus.train_text_bytes) if domain else 0
        places = [place for shard in corpus.train for place in _places(corpus.folder, shard, domain)]
        chosen, passes = _choose(places, wanted, f"{seed}:{job_name}:{corpus.version}")
        files: list[Shard] = []
        for index, shard in enumerate(corpus.train):
            _link(corpus.folder / shard.name, folder / shard.name)
            files.append(shard)
            part = chosen[
                index * len(chosen) // len(corpus.train) : (index + 1) * len(chosen) // len(corpus.train)
            ]
            if part:
                # Sorts right after the corpus file: in ASCII "_" comes after ".".
                files.append(_copy_rows(corpus.folder, folder, Path(shard.name).stem + "_domain", part))
        _link(corpus.folder / corpus.held_out.name, folder / corpus.held_out.name)
        kept_out = _places(corpus.folder, corpus.held_out, domain)
        fields: dict[str, Any] = {
            "format": FORMAT,
            "corpus": corpus.version,
            "job": job_name,
            "domain": domain,
            "extra_share": extra_share,
            "seed": seed,
            "files": [asdict(shard) for shard in files],
            "held_out": asdict(corpus.held_out),
            "held_out_domain": asdict(_copy_rows(corpus.folder, folder, "heldout_domain", kept_out))
            if domain
            else None,
            "corpus_bytes": corpus.train_text_bytes,
            "wanted_bytes": wanted,
            "extra_bytes": sum(place.text_bytes for place in chosen),
            "domain_rows": len(places),
            "domain_bytes": sum(place.text_bytes for place in places),
            "extra_rows": len(chosen),
            "passes": passes,
        }
        version = fields["version"] = content_version(fields)
        target = parent / f"{job_name}-{version}"
        if not (target / MIXTURE_NAME).exists():
            write_json(folder / MIXTURE_NAME, fields)
            publish(folder, target)
    return open_mixture(target)


def open_mixture(folder: Path, *, verify: bool = False) -> Mixture:
    """Open a made mixture; with `verify`, read every file and compare digests.

    Raises:
        CorpusDamaged: the manifest or (with `verify`) a file is not what was made.
    """
    fields = read_json(folder / MIXTURE_NAME)
    del fields["format"]
    fields["files"] = tuple(Shard(**shard) for shard in fields["files"])
    fields["held_out"] = Shard(**fields["held_out"])
    if fields["held_out_domain"]:
        fields["held_out_domain"] = Shard(**fields["held_out_domain"])
    made = Mixture(folder=folder, **fields)
    if verify:
        verify_shards(
            folder, tuple(shard for shard in (*made.files, made.held_out, made.held_out_domain) if shard)
        )
    return made


def _check(corpus: CorpusManifest, job_name: str, domain: str | None, extra_share: float) -> None:
    if not _JOB_NAME.fullmatch(job_name):
        raise BadParameter("job_name", job_name, "letters, digits, dots, dashes and underscores")
    if not 0 <= extra_share <= 1:
        raise BadParameter("extra_share", extra_share, "from 0 to 1")
    known = corpus.parameters["domains"]
    if domain is not None and domain not in known:
        raise BadParameter(
            "domain", domain, f"one the corpus was tagged with ({', '.join(known) or 'it has none'})"
        )


def _places(folder: Path, shard: Shard, domain: str | None) -> list[_Place]:
    """Rows of a shard that are tagged with the domain, without holding their text."""
    if domain is None:
        return []
    found: list[_Place] = []
    offset = 0
    with (folder / shard.name).open("rb") as file:
        for line in file:
            row = json.loads(line)
            if domain in row["domains"]:
                found.append(_Place(shard.name, offset, len(line), len(row["text"].encode())))
            offset += len(line)
    return found


def _choose(places: list[_Place], wanted: int, seed: str) -> tuple[list[_Place], int]:
    """Rows in seeded order up to about `wanted` bytes, and how many rounds through the rows that took."""
    chosen: list[_Place] = []
    taken = rounds = 0
    if not places or not wanted:
        return chosen, rounds
    for rounds, place in _rounds(places, seed):
        # Stop at the nearest size, above or below.
        if taken + place.text_bytes / 2 > wanted:
            break
        chosen.append(place)
        taken += place.text_bytes
    return chosen, rounds if chosen else 0


def _rounds(places: list[_Place], seed: str) -> Iterator[tuple[int, _Place]]:
    count = 0
    while True:
        count += 1
        yield from (
            (count, place) for place in sorted(places, key=lambda place: _rank(place, f"{seed}:{count}"))
        )


def _rank(place: _Place, seed: str) -> bytes:
    return hashlib.sha256(f"{seed}:{place.shard}:{place.offset}".encode()).digest()


def _copy_rows(corpus_folder: Path, folder: Path, stem: str, places: list[_Place]) -> Shard:
    handles = {name: (corpus_folder / name).open("rb") for name in {place.shard for place in places}}
    try:
        with ShardWriter(folder, stem, None) as writer:
            for place in places:
                handles[place.shard].seek(place.offset)
                writer.write(handles[place.shard].read(place.length - 1), place.text_bytes)
    finally:
        for handle in handles.values():
            handle.close()
    return writer.shards[0]


def _link(existing: Path, new: Path) -> None:
    try:
        os.link(existing, new)
    except OSError:
        # Another file system, or one without links: the same bytes, at the price of the space.
        shutil.copyfile(existing, new)
