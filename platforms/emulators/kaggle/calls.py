"""Remote calls by name: a JSON body in, a JSON body out. What is refused raises Refusal."""

from __future__ import annotations

import json
import secrets
from typing import TYPE_CHECKING, Any, TypeVar

from platforms.emulators.kaggle.place import instant_text
from platforms.emulators.kaggle.published import name_of_dataset, name_of_model
from platforms.emulators.kaggle.rules import Elsewhere, Refusal, denied

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from platforms.emulators.kaggle.place import Kernel, Place

    Body = dict[str, Any]

_Thing = TypeVar("_Thing")
PUBLISHED = "published:"  # before the version that a link to one of its files is for
_DATASETS_PAGE = 20  # the place asks nobody how many are wanted


class Calls:
    """The remote calls of a place. ``link`` signs the address of an output file, ``upload`` that of a blob."""

    def __init__(self, place: Place, link: Callable[[str, str], str], upload: Callable[[str], str]) -> None:
        self._place = place
        self._link = link
        self._upload = upload
        self.table: Mapping[str, Callable[[Body], Body]] = {
            "security.OAuthService/IntrospectToken": self._introspect,
            "kernels.KernelsApiService/SaveKernel": self._save_kernel,
            "kernels.KernelsApiService/GetKernel": self._get_kernel,
            "kernels.KernelsApiService/GetKernelSessionStatus": self._status,
            "kernels.KernelsApiService/ListKernels": self._list_kernels,
            "kernels.KernelsApiService/ListKernelSessionOutput": self._output,
            "kernels.KernelsApiService/CancelKernelSession": self._cancel,
            "kernels.KernelsApiService/DeleteKernel": self._delete_kernel,
            "kernels.KernelsApiService/GetAcceleratorQuotaStatistics": self._quota,
            "blobs.BlobApiService/StartBlobUpload": self._start_upload,
            "datasets.DatasetApiService/CreateDataset": self._create_dataset,
            "datasets.DatasetApiService/CreateDatasetVersion": self._create_version,
            "datasets.DatasetApiService/GetDatasetStatus": self._dataset_status,
            "datasets.DatasetApiService/GetDataset": self._get_dataset,
            "datasets.DatasetApiService/ListDatasetFiles": self._list_dataset_files,
            "datasets.DatasetApiService/DownloadDataset": self._download_dataset,
            "models.ModelApiService/ListModelInstanceVersionFiles": self._list_model_files,
            "models.ModelApiService/DownloadModelInstanceVersion": self._download_model,
            "datasets.DatasetApiService/ListDatasets": self._list_datasets,
            "datasets.DatasetApiService/DeleteDataset": self._delete_dataset,
        }

    def _introspect(self, body: Body) -> Body:
        if body.get("token") != self._place.key:
            return {"active": False}
        return {"active": True, "username": self._place.owner}

    def _save_kernel(self, body: Body) -> Body:
        with self._place.lock:
            return self._place.push(body)

    def _get_kernel(self, body: Body) -> Body:
        with self._place.lock:
            kernel, version = self._place.version(*_name(body), body.get("versionLabel"))
            blob = {"source": version.body.get("text", ""), "language": "python", "kernelType": "script"}
            return {"metadata": self._metadata(kernel), "blob": blob}

    def _status(self, body: Body) -> Body:
        with self._place.lock:
            _, version = self._place.version(*_name(body), body.get("versionLabel"))
        session = version.session
        if session is None:
            return {"status": "NEW_SCRIPT"}
        with session.changed:
            failure = {"failureMessage": session.failure} if session.failure else {}
            return {"status": session.status, **failure}

    def _list_kernels(self, body: Body) -> Body:
        search = str(body.get("search") or "").lower()
        with self._place.lock:
            found = [
                kernel
                for kernel in self._place.kernels.values()
                if search in f"{kernel.slug} {kernel.title}".lower() and self._place.shows(kernel)
            ]
            found.sort(key=self._place.last_run_at, reverse=True)
            shown, following = self._paged(found, body, int(body.get("pageSize") or 20))
            return {"kernels": [self._metadata(kernel) for kernel in shown], **following}

    def _paged(self, found: Sequence[_Thing], body: Body, size: int) -> tuple[Sequence[_Thing], Body]:
        """Return a page of a list and how to ask for the next, which a number or a token names."""
        size = min(size, self._place.rules.page_max)
        if not self._place.rules.pages_by_token:
            first = (max(1, int(body.get("page") or 1)) - 1) * size
            return found[first : first + size], {}
        first = int(body.get("pageToken") or 0)
        return found[first : first + size], {"nextPageToken": str(first + size) if first + size < len(found) else ""}

    def _metadata(self, kernel: Kernel) -> Body:
        newest = kernel.versions[-1]
        return {
            "id": kernel.id,
            "ref": f"{self._place.owner}/{kernel.slug}",
            "title": kernel.title,
            "slug": kernel.slug,
            "author": self._place.owner,
            "lastRunTime": instant_text(self._place.last_run_at(kernel)),
            "isPrivate": bool(newest.body.get("isPrivate", True)),
            "currentVersionNumber": len(kernel.versions),
            "machineShape": newest.body.get("machineShape"),
        }

    def _output(self, body: Body) -> Body:
        with self._place.lock:
            kernel, version = self._place.version(*_name(body), body.get("versionLabel"))
        session = version.session
        if session is None or session.live:
            return {"files": [], "log": ""}
        names = session.output_files()
        size = min(int(body.get("pageSize") or 20), self._place.rules.page_max)
        first = int(body.get("pageToken") or 0)
        shown = names[first : first + size]
        label = f"{kernel.slug}/{version.number}"
        following = {"nextPageToken": str(first + size)} if first + size < len(names) else {}
        files = [{"fileName": name, "url": self._link(label, name)} for name in shown]
        return {"files": files, "log": json.dumps(session.lines), **following}

    def _cancel(self, body: Body) -> Body:
        return self._place.cancel(int(body.get("kernelSessionId") or 0))

    def _delete_kernel(self, body: Body) -> Body:
        return self._place.delete(*_name(body))

    def _quota(self, body: Body) -> Body:
        del body
        return self._place.quota()

    def _start_upload(self, body: Body) -> Body:
        token = secrets.token_hex(16)
        with self._place.lock:
            self._place.storage.start_upload(str(body.get("name", "")), int(body.get("contentLength") or 0), token)
        return {"token": token, "createUrl": self._upload(token)}

    def _create_dataset(self, body: Body) -> Body:
        with self._place.lock:
            if body.get("ownerSlug") != self._place.owner:
                raise denied("datasets.create")
            return self._place.storage.create(body)

    def _create_version(self, body: Body) -> Body:
        with self._place.lock:
            return self._place.storage.create_version(body)

    def _dataset_status(self, body: Body) -> Body:
        with self._place.lock:
            storage = self._place.storage
            dataset = storage.datasets.get(str(body.get("datasetSlug", "")))
            if body.get("ownerSlug") != self._place.owner or dataset is None or not storage.visible(dataset):
                raise denied("datasets.get")
            if dataset.deleted and not self._place.rules.tells_deleted:
                raise denied("datasets.get")
            return {"status": storage.status(dataset)}

    def _get_dataset(self, body: Body) -> Body:
        name, _ = name_of_dataset(body)
        if newest := self._place.published.newest(name):
            return {"ref": name, "isPrivate": False, "currentVersionNumber": newest}
        with self._place.lock:
            return self._place.storage.describe(str(body.get("ownerSlug", "")), str(body.get("datasetSlug", "")))

    def _list_dataset_files(self, body: Body) -> Body:
        files, following = self._files(name_of_dataset(body), body)
        return {"datasetFiles": [{"name": name, "totalBytes": size} for name, size in files], **following}

    def _list_model_files(self, body: Body) -> Body:
        files, following = self._files(name_of_model(body), body)
        return {"files": [{"name": name, "size": size} for name, size in files], **following}

    def _files(self, version: tuple[str, int], body: Body) -> tuple[Sequence[tuple[str, int]], Body]:
        """Return a page of what a version has, and how to ask for the next."""
        found = [(path, place.stat().st_size) for path, place in self._place.published.files(*version).items()]
        first, size = int(body.get("pageToken") or 0), min(int(body.get("pageSize") or 20), self._place.rules.page_max)
        following = {"nextPageToken": str(first + size)} if first + size < len(found) else {}
        return found[first : first + size], following

    def _download_dataset(self, body: Body) -> Body:
        raise self._sent_to(name_of_dataset(body), str(body.get("fileName", "")))

    def _download_model(self, body: Body) -> Body:
        raise self._sent_to(name_of_model(body), str(body.get("path", "")))

    def _sent_to(self, version: tuple[str, int], path: str) -> Refusal:
        """Return the address of a file, which it is handed out from."""
        if path not in self._place.published.files(*version):
            return Refusal(404, "Not found")
        return Elsewhere(self._link(f"{PUBLISHED}{version[0]}/{version[1]}", path))

    def _list_datasets(self, body: Body) -> Body:
        if str(body.get("group")).removeprefix("DATASET_SELECTION_GROUP_") not in {"MY", "MY_PRIVATE"}:
            return {"datasets": []}  # nobody else lives here
        with self._place.lock:
            found = sorted(slug for slug, dataset in self._place.storage.datasets.items() if not dataset.deleted)
        shown, following = self._paged(found, body, _DATASETS_PAGE)
        return {"datasets": [{"ref": f"{self._place.owner}/{slug}", "isPrivate": True} for slug in shown], **following}

    def _delete_dataset(self, body: Body) -> Body:
        with self._place.lock:
            self._place.storage.delete(str(body.get("ownerSlug", "")), str(body.get("datasetSlug", "")))
        return {}


def _name(body: Body) -> tuple[str, str]:
    owner, slug = str(body.get("userName", "")), str(body.get("kernelSlug", ""))
    if not owner or not slug:
        raise Refusal(400, "userName and kernelSlug are required")
    return owner, slug
