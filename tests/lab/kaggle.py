"""The emulated Kaggle for tests: with models and datasets of others, and with faults on demand."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

from platforms.emulators.kaggle.place import KaggleAccount
from platforms.emulators.kaggle.server import Body, Handler, KaggleServer, receive
from platforms.emulators.kaggle.storage import KaggleRefusal, denied
from tests.lab.faults import Fault, Faults

_JSON = "application/json"
_PAGE = b"<html><body><h1>Too many requests</h1></body></html>"
_HANG_WALL_SECONDS = 30.0
_LINKED = "published:"  # before the version that a link to one of its files is for


class Elsewhere(KaggleRefusal):
    """An answer that sends whoever asks on to another address."""

    def __init__(self, address: str) -> None:
        super().__init__(302, "Found", {"Location": address})


class Published:
    """Versions by name: ``owner/name`` for datasets, ``owner/model/framework/variation`` for models.

    ``root`` holds them as folders named by their version numbers, so that a place that starts again has them.
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
        """Return the files of a version, or of the newest (0), by path. Raises KaggleRefusal."""
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


class PublishingPlace(KaggleAccount):
    """An account that sees what others have published, with which things go wrong on demand."""

    def __init__(self, root: Path, *arguments: Any, **options: Any) -> None:
        super().__init__(root, *arguments, **options)
        self.published = Published(root / "published")
        self.faults = Faults()

    def attach(self, source: str, target: Path) -> bool:
        """See KaggleAccount.attach."""
        owner, slug, *version = source.split("/")
        name = f"{owner}/{slug}"
        number = int(version[0]) if version else self.published.newest(name)
        return super().attach(source, target) or self.published.attach(name, number, target)

    def attach_model(self, source: str, target: Path) -> bool:
        """See KaggleAccount.attach_model."""
        name, _, version = source.rpartition("/")
        return version.isdigit() and self.published.attach(name, int(version), target)


class FaultyHandler(Handler):
    """Lets ordered faults come between a call and its answer."""

    fault: Fault | None = None

    @property
    def faults(self) -> Faults:
        """The faults of the place."""
        return cast("PublishingPlace", self.server.place).faults

    def begins(self, call: str) -> bool:
        """See Handler.begins."""
        fault = self.fault = self.faults.take(call)
        path = urlsplit(self.path).path
        if call == "PUT" and fault is Fault.SERVER_ERROR:
            receive(self, self.server.place, path.removeprefix("/upload/"), interrupt=True)
        elif call == "Output" and fault is Fault.DROP_AFTER_COMMIT:
            self.send_output(path.removeprefix("/api"), interrupt=True)
        else:
            return not self._happens(fault)
        return False

    def conclude(
        self, call: str, status: int, body: Mapping[str, Any], headers: Mapping[str, str] | None = None
    ) -> None:
        """See Handler.conclude."""
        if status == 200 and self.fault is Fault.DROP_AFTER_COMMIT:
            self.close_connection = True
        elif status == 200 and self.fault is Fault.ERROR_AFTER_COMMIT:
            self.answer(500, {"code": 500, "message": "Internal error"})
        elif (twisted := self.faults.twist(call, body)) is not None:
            self.send(200, twisted, _JSON)
        else:
            super().conclude(call, status, body, headers)

    def _happens(self, fault: Fault | None) -> bool:
        """Let a fault happen that keeps the call from being looked at; return whether one did."""
        match fault:
            case Fault.THROTTLED:
                self.answer(429, {"code": 429, "message": "Too many requests"})
            case Fault.THROTTLED_LATER:
                self.answer(429, {"code": 429, "message": "Too many requests"}, {"Retry-After": "1"})
            case Fault.THROTTLED_PAGE:
                self.send(429, _PAGE, _JSON)
            case Fault.SERVER_ERROR:
                self.answer(500, {"code": 500, "message": "Internal error"})
            case Fault.FORBIDDEN:
                self.answer(403, {"code": 403, "message": "Permission 'kernels.get' was denied"})
            case Fault.PAGE:
                self.send(200, _PAGE, "text/html")
            case Fault.EMPTY:
                self.answer(200, {})
            case Fault.HANG:
                self.server.closing.wait(_HANG_WALL_SECONDS)
                self.close_connection = True
            case Fault.DROP:
                self.close_connection = True
            case _:
                return False
        return True


class PublishingServer(KaggleServer):
    """Serves a PublishingPlace, with the calls about what others have published."""

    def __init__(self, place: PublishingPlace, port: int = 0) -> None:
        super().__init__(place, port, FaultyHandler)
        self._published = place
        own = self.calls.table["datasets.DatasetApiService/GetDataset"]

        def get_dataset(body: Body) -> Body:
            name, _ = name_of_dataset(body)
            newest = place.published.newest(name)
            return {"ref": name, "isPrivate": False, "currentVersionNumber": newest} if newest else own(body)

        self.calls.table = {
            **self.calls.table,
            "datasets.DatasetApiService/GetDataset": get_dataset,
            "datasets.DatasetApiService/ListDatasetFiles": self._list_dataset_files,
            "datasets.DatasetApiService/DownloadDataset": self._download_dataset,
            "models.ModelApiService/ListModelInstanceVersionFiles": self._list_model_files,
            "models.ModelApiService/DownloadModelInstanceVersion": self._download_model,
        }

    def file(self, version: str, name: str) -> Path:
        """See Server.file."""
        if not version.startswith(_LINKED):
            return super().file(version, name)
        thing, _, number = version.removeprefix(_LINKED).rpartition("/")
        return self._published.published.files(thing, int(number))[name]

    def _list_dataset_files(self, body: Body) -> Body:
        files, following = self._files(name_of_dataset(body), body)
        return {"datasetFiles": [{"name": name, "totalBytes": size} for name, size in files], **following}

    def _list_model_files(self, body: Body) -> Body:
        files, following = self._files(name_of_model(body), body)
        return {"files": [{"name": name, "size": size} for name, size in files], **following}

    def _files(self, version: tuple[str, int], body: Body) -> tuple[Sequence[tuple[str, int]], Body]:
        """Return a page of what a version has, and how to ask for the next."""
        found = [(path, place.stat().st_size) for path, place in self._published.published.files(*version).items()]
        return self.calls.page(found, body)

    def _download_dataset(self, body: Body) -> Body:
        raise self._sent_to(name_of_dataset(body), str(body.get("fileName", "")))

    def _download_model(self, body: Body) -> Body:
        raise self._sent_to(name_of_model(body), str(body.get("path", "")))

    def _sent_to(self, version: tuple[str, int], path: str) -> KaggleRefusal:
        """Return the address of a file, which it is handed out from."""
        if path not in self._published.published.files(*version):
            return KaggleRefusal(404, "Not found")
        return Elsewhere(self.link(f"{_LINKED}{version[0]}/{version[1]}", path))
