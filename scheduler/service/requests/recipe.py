"""Recipe: what a checkpoint says of how it was made, against the options of a command that would go on from it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jobs.payload.bounds import read_json
from jobs.payload.store.manifest import blob_key

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jobs.payload.store.manifest import Manifest
    from platforms.artifacts.base import BlobStore

RECIPE = "recipe.json"
_BYTES_MAX = 1 << 20


def contradictions(artifacts: BlobStore, manifest: Manifest, before: Sequence[str], after: Sequence[str]) -> list[str]:
    """Return how the options of a command would differ from the recipe of a checkpoint that ``before`` made.

    A recipe is an object of values by the names of options. One that is no such thing tells nothing. Raises StoreError.
    """
    written = next((component for component in manifest.components if component.name == RECIPE), None)
    if written is None or written.bytes > _BYTES_MAX:
        return []
    try:
        recipe = read_json(artifacts.read(blob_key(manifest.job, written.sha256), _BYTES_MAX))
    except ValueError:
        return []
    found = []
    for name, was in sorted(recipe.items()) if isinstance(recipe, dict) else ():
        old, new = _option(before, name), _option(after, name)
        if new is None and old is not None:
            found.append(f"{name} was {was} and is left out")
        elif new is not None and new != old and not _same(was, new):
            found.append(f"{name} was {was} and would be {new}")
    return found


def _option(words: Sequence[str], name: str) -> str | None:
    """Return the value of an option of a command, the last where it is named twice; a flag's is empty."""
    flag, found = f"--{name.replace('_', '-')}", None
    for place, word in enumerate(words):
        spelt, equals, value = word.replace("_", "-").partition("=")[0], *word.partition("=")[1:]
        if spelt == flag:
            following = words[place + 1] if place + 1 < len(words) else ""
            found = value if equals else "" if following.startswith("--") else following
    return found


def _same(was: Any, word: str) -> bool:
    try:
        return float(word) == float(was)
    except (TypeError, ValueError):
        return word == str(was) or (word == "" and was is True)
