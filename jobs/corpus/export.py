"""Export of a corpus version for others: its texts as JSON lines or Parquet, its card, and its Croissant file."""

import json
import shutil
from collections.abc import Sequence
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

from jobs.corpus.card import CARD, CROISSANT, FIELDS, card, croissant
from jobs.corpus.manifest import CorpusManifest, Shard, rows_of, verify_shards
from jobs.payload.store.manifest import sha256_file
from jobs.problem import Refusal

_ROWS_AT_ONCE = 10_000


def export_corpus(corpus: CorpusManifest, folder: Path, *, parquet: bool) -> list[str]:
    """Write a version into an empty folder and return the names of its files.

    A Parquet file has one column per key of the rows; values other than texts and ``domains`` become JSON text. Raises
    Refusal if pyarrow is missing, CorpusDamaged and OSError.
    """
    shards = [*corpus.train, corpus.held_out]
    verify_shards(corpus.folder, shards)
    if parquet:
        columns = _columns(corpus, shards)
        shards = [_parquet(corpus.folder, shard, folder, columns) for shard in shards]
    else:
        for shard in shards:
            shutil.copyfile(corpus.folder / shard.name, folder / shard.name)
    has_card = (corpus.folder / CROISSANT).is_file()  # older releases wrote no card and no Croissant file
    licences = json.loads((corpus.folder / CROISSANT).read_text()).get("license", []) if has_card else []
    text = (corpus.folder / CARD).read_text(encoding="utf-8") if has_card else card(corpus, {})
    (folder / CARD).write_text(text, encoding="utf-8")
    form = "application/x-parquet" if parquet else "application/jsonlines"
    (folder / CROISSANT).write_text(croissant(corpus.version, shards[:-1], shards[-1], licences, form))
    return [*(shard.name for shard in shards), CARD, CROISSANT]


def _columns(corpus: CorpusManifest, files: Sequence[Shard]) -> list[str]:
    names = {name for shard in files for row in rows_of(corpus.folder, shard) for name in row}
    return [*FIELDS, *sorted(names - set(FIELDS))]


def _parquet(source: Path, shard: Shard, folder: Path, columns: Sequence[str]) -> Shard:
    """Write the rows of a shard as a Parquet file and return its description."""
    try:
        arrow, tables = import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError:
        raise Refusal("Parquet cannot be written", "pyarrow is not installed here", "pip install pyarrow") from None
    target = folder / f"{Path(shard.name).stem}.parquet"
    types = {"domains": arrow.list_(arrow.string())}
    schema = arrow.schema([(name, types.get(name, arrow.string())) for name in columns])
    rows = rows_of(source, shard)
    with tables.ParquetWriter(target, schema, compression="zstd") as writer:
        while batch := [_cells(row) for row in islice(rows, _ROWS_AT_ONCE)]:
            writer.write_table(arrow.Table.from_pylist(batch, schema))
    return Shard(target.name, sha256_file(target), shard.rows, target.stat().st_size, shard.text_bytes)


def _cells(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row for Parquet: values other than texts, None and ``domains`` as JSON text."""
    return {
        name: value if name == "domains" or value is None or isinstance(value, str) else json.dumps(value)
        for name, value in row.items()
    }
