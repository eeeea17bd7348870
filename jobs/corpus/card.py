"""Descriptions beside a corpus version: a dataset card for people and the Hub, and a Croissant file for programs."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from jobs.corpus.manifest import CorpusManifest, Shard
from jobs.payload.whole_file import create_below

CARD, CROISSANT = "README.md", "croissant.json"
Licences = Mapping[str, Mapping[str, int]]  # by source: texts with each licence
_HEAD_CHARACTERS = 4_096  # the beginning of a text, which is searched for an SPDX line
_SPDX = re.compile(r"SPDX-License-Identifier:[ \t]*([A-Za-z0-9][\w.+ ()-]{0,79})")
_LICENCE_FILE = re.compile(r"(UN)?LICEN[CS]E|COPYING", re.IGNORECASE)
_LICENCE_CHARACTERS = 80  # a longer name of a licence is cut
FIELDS = ("id", "text", "stage", "domains", "source", "cluster")
_CONTEXT = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "sc": "https://schema.org/",
    "cr": "http://mlcommons.org/croissant/",
    "dct": "http://purl.org/dc/terms/",
    "conformsTo": "dct:conformsTo",
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    **{
        name: f"cr:{name}"
        for name in ("column", "extract", "field", "fileObject", "fileSet", "includes", "key", "recordSet", "repeated")
    },
    "source": "cr:source",
}


def licence_of(text: str, source: str, metadata: Mapping[str, Any]) -> str:
    """Return a text's licence: from its record, an SPDX line, or the title of a licence file; "" if unknown."""
    for key in ("license", "licence"):
        if isinstance(value := metadata.get(key), str) and value.strip():
            return value.strip()[:_LICENCE_CHARACTERS]
    if line := _SPDX.search(text, 0, _HEAD_CHARACTERS):
        return line[1].strip()
    if _LICENCE_FILE.match(PurePosixPath(source).name):
        return text.strip().partition("\n")[0].strip()[:_LICENCE_CHARACTERS]
    return ""


def describe(manifest: CorpusManifest, licences: Licences) -> None:
    """Write the dataset card and the Croissant file into a version's folder, unless they exist. Raises OSError."""
    names = sorted({name for counts in licences.values() for name in counts} - {""})
    document = croissant(manifest.version, manifest.train, manifest.held_out, names, "application/jsonlines")
    create_below(manifest.folder, CARD, card(manifest, licences).encode())
    create_below(manifest.folder, CROISSANT, document.encode())


def card(manifest: CorpusManifest, licences: Licences) -> str:
    """Return the dataset card as Markdown with the Hub's header."""
    splits = [("train", "train-*"), ("heldout", "heldout.*")]
    files = [{"split": split, "path": path} for split, path in splits]
    head = {"tags": ["uff-scheduler"], "configs": [{"config_name": "default", "data_files": files}]}
    # The header is YAML. Every JSON value is valid YAML.
    front = "".join(f"{key}: {json.dumps(value)}\n" for key, value in head.items())
    facts = [
        ("texts", f"{manifest.rows:,}, of which {manifest.held_out.rows:,} held out"),
        ("text bytes", f"{manifest.train_text_bytes + manifest.held_out.text_bytes:,}"),
        ("read, exact copies left out", f"{manifest.documents_read:,}, {manifest.duplicates:,}"),
        ("groups of near duplicates and single texts", f"{manifest.clusters:,}"),
        *((f"without items of {name}", digest) for digest, name in manifest.parameters.get("test_sets", {}).items()),
        *((f"weight of {weight['path']}", _weight(weight)) for weight in manifest.parameters.get("weights", ())),
    ]
    sources = [
        (name, *(f"{share[key]:,}" for key in ("texts", "bytes", "held_out")), _licences(licences.get(name, {})))
        for name, share in sorted(manifest.shares.get("source", {}).items())
    ]
    return "\n".join(
        [
            f"---\n{front}---\n\n# Corpus {manifest.version}\n",
            *_table(("what", "value"), facts),
            "## Sources\n",
            "Licences are those that records, SPDX lines and the titles of licence files name.\n",
            *_table(("source", "texts", "bytes", "held out", "licences (texts)"), sources),
            *(
                line
                for kind, counts in (("stage", manifest.stages), ("domain", manifest.domains))
                for line in (f"## By {kind}\n", *_table((kind, "texts"), sorted(counts.items())))
            ),
            "## Data issues\n",
            *_table(("kind", "times"), sorted(manifest.findings.items())),
        ]
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    cells = [[str(cell).replace("|", "\\|") for cell in row] for row in rows]
    return [*(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *cells)), ""]


def _weight(weight: Mapping[str, Any]) -> str:
    limit = "" if weight["max_bytes"] is None else f", at most {weight['max_bytes']:,} bytes"
    return f"{weight['weight']:g}{limit}"


def _licences(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name or 'none named'} ({count:,})" for name, count in sorted(counts.items()))


def croissant(version: str, train: Sequence[Shard], held_out: Shard, licences: Sequence[str], form: str) -> str:
    """Return the Croissant 1.0 description of a version's files as JSON; ``form`` is their media type."""
    objects = [
        {
            **_node("cr:FileObject", shard.name),
            "contentUrl": shard.name,
            "contentSize": f"{shard.bytes} B",
            "encodingFormat": form,
            "sha256": shard.sha256,
        }
        for shard in (*train, held_out)
    ]
    pattern = f"train-*{PurePosixPath(held_out.name).suffix}"
    train_files = {**_node("cr:FileSet", "train-files"), "encodingFormat": form, "includes": pattern}
    sources = {"train": {"fileSet": {"@id": "train-files"}}, "heldout": {"fileObject": {"@id": held_out.name}}}
    document = {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "name": f"corpus-{version}",
        "description": f"Training texts of corpus version {version}, and texts that are held out to measure models.",
        "conformsTo": "http://mlcommons.org/croissant/1.0",
        **({"license": list(licences)} if licences else {}),
        "distribution": [*objects, train_files],
        "recordSet": [_records(name, source) for name, source in sources.items()],
    }
    return json.dumps(document, indent=1) + "\n"


def _records(name: str, source: Mapping[str, Any]) -> dict[str, Any]:
    fields = [
        {
            **_node("cr:Field", f"{name}/{field}"),
            "dataType": "sc:Text",
            **({"repeated": True} if field == "domains" else {}),
            "source": {**source, "extract": {"column": field}},
        }
        for field in FIELDS
    ]
    return {**_node("cr:RecordSet", name), "key": {"@id": f"{name}/id"}, "field": fields}


def _node(kind: str, name: str) -> dict[str, Any]:
    return {"@type": kind, "@id": name, "name": name}
