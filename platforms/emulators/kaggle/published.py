"""What others have published at the place: versions of models and datasets, as files of a folder."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

from platforms.emulators.kaggle.rules import denied

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


class Published:
    """Versions by name: ``owner/name`` for datasets, ``owner/model/framework/variation`` for models.

    ``root`` holds them as folders named by their version numbers, so that a place that is started anew has them.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    def add(self, name: str, files: Mapping[str, bytes]) -> int:
        """Publish the next version; return its number."""
        number = self.newest(name) + 1
        for path, data in files.items():
            place = self._folder(name, number) / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(data)
        return number

    def newest(self, name: str) -> int:
        """Return the number of the newest version; 0: there is none."""
        numbers = self._folder(name, 0).parent.glob("*")
        return max((int(folder.name) for folder in numbers if folder.name.isdigit()), default=0)

    def files(self, name: str, number: int) -> dict[str, Path]:
        """Return the files of a version, or of the newest (0), by path. Raises Refusal."""
        folder = self._folder(name, number or self.newest(name))
        if not folder.is_dir():
            raise denied("models.get" if name.count("/") == 3 else "datasets.get")
        return {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}

    def attach(self, name: str, number: int, target: Path) -> bool:
        """Copy a version to where kernels see it; return whether there is one."""
        folder = self._folder(name, number)
        if not folder.is_dir():
            return False
        *above, last = name.split("/")
        if len(above) == 1:
            place = target / "datasets" / above[0] / last
        else:
            place = target.joinpath("models", above[0], above[1], above[2].lower(), last, str(number))
        shutil.copytree(folder, place)
        return True

    def _folder(self, name: str, number: int) -> Path:
        return self._root / name.lower().replace("/", "_") / str(number)


def name_of_model(body: Mapping[str, Any]) -> tuple[str, int]:
    """Return which version of a model a call means."""
    framework = str(body.get("framework", "")).removeprefix("MODEL_FRAMEWORK_").replace("_", "")
    parts = (str(body.get("ownerSlug", "")), str(body.get("modelSlug", "")), framework, str(body.get("instanceSlug")))
    return "/".join(parts), int(body.get("versionNumber") or 0)


def name_of_dataset(body: Mapping[str, Any]) -> tuple[str, int]:
    """Return which version of a dataset a call means; 0: none in particular."""
    name = f"{body.get('ownerSlug', '')}/{body.get('datasetSlug', '')}"
    return name, int(body.get("datasetVersionNumber") or 0)
