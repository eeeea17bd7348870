"""One address for all services: training jobs are emulated here, all other calls go to moto. Loopback only.

Moto's own training jobs complete at once, so its SageMaker is not used. A bucket can outlive the emulator: the content
of moto's memory is also written to a folder.
"""

import json
import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Self

from jobs.payload.whole_file import TEMPORARY, write_whole
from platforms.emulators.sagemaker.place import ACCOUNT, MotoCloud, SageMakerAccount, SageMakerRefusal

_LOOPBACK = "127.0.0.1"
_SERVICES = {"SageMaker", "ServiceQuotasV20190624"}  # operations that moto does not get; it cannot list quotas
_PATHS = 64  # locks for the paths of calls to moto, so that calls for the same path run one after the other
CREDENTIALS = "/container/credentials"
# Moto accepts any keys; all keys that it did not issue belong to one account.
_ROLE_KEYS = {"AccessKeyId": "ASIAROLEROLEROLEROLE", "SecretAccessKey": "of-the-role", "Token": "of-the-session"}
_STATUS = {400: "400 Bad Request", 403: "403 Forbidden", 500: "500 Internal Server Error"}


class SageMakerServer:
    """A context manager that serves an account. ``address`` is the value for AWS_ENDPOINT_URL."""

    def __init__(self, place: SageMakerAccount, port: int = 0) -> None:
        self.place = place
        self._port = port
        self._thread: threading.Thread | None = None
        self._server: Any = None
        self.address = ""
        self.calls_received = 0
        # Moto closes the file of an object that is overwritten, even while another call reads it.
        self._paths = [threading.Lock() for _ in range(_PATHS)]
        self.operations: Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
            "CreateTrainingJob": place.create,
            "DescribeTrainingJob": place.describe,
            "StopTrainingJob": place.stop,
            "DeleteTrainingJob": place.delete,
            "ListTrainingJobs": place.list,
            "ListServiceQuotas": place.quotas,
        }

    def __enter__(self) -> Self:
        """Start serving. Raises OSError if the port is in use."""
        from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
        from werkzeug.serving import make_server

        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self._moto = DomainDispatcherApplication(create_backend_app)
        self._server = make_server(_LOOPBACK, self._port, self.answer, threaded=True)
        self.address = f"http://{_LOOPBACK}:{self._server.server_port}"
        self._cloud = self.place.cloud = MotoCloud(self.place.region, f"{self.address}{CREDENTIALS}")
        self._thread = threading.Thread(target=self._server.serve_forever, name="sagemaker emulator", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End all jobs, then stop serving."""
        self.place.close()
        self._cloud.forget_logs()
        self._server.shutdown()
        if self._thread is not None:
            self._thread.join()
        self._server.server_close()

    def make_bucket(self, bucket: str, folder: Path | None = None) -> None:
        """Create a bucket unless it exists. With a ``folder``, load its objects from there and store changes there."""
        self._cloud.make_bucket(bucket)
        if folder is not None:
            KeptBucket(bucket, folder).attach()

    def make_role(self, name: str) -> None:
        """Create an execution role for jobs."""
        self._cloud.make_role(name)

    def answer(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        """Answer one call, as a WSGI application."""
        operation = operation_of(environ)
        self.calls_received += 1
        if environ["PATH_INFO"] == CREDENTIALS:
            return respond(start, 200, {**_ROLE_KEYS, "Expiration": "2100-01-01T00:00:00Z"})
        if operation not in self.operations:
            with self._paths[hash(environ["PATH_INFO"]) % _PATHS]:
                answer: Iterable[bytes] = self._moto(environ, start)
            return answer
        body = json.loads(environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0)) or b"{}")
        try:
            _, _, scope = str(environ.get("HTTP_AUTHORIZATION", "")).partition("Credential=")
            create = partial(self.place.create, region=[*scope.split("/"), "", ""][2])  # empty without a signature
            document = (create if operation == "CreateTrainingJob" else self.operations[operation])(body)
            status = 200
        except SageMakerRefusal as refusal:
            document, status = {"__type": refusal.code, "message": refusal.message}, 400
        return respond(start, status, document)


def operation_of(environ: Mapping[str, Any]) -> str:
    """Return the emulated operation that a call names; "" for calls to moto."""
    service, _, operation = str(environ.get("HTTP_X_AMZ_TARGET", "")).partition(".")
    return operation if service in _SERVICES else ""


def respond(
    start: Callable[..., Any], status: int, document: Mapping[str, Any], body: bytes | None = None
) -> Iterable[bytes]:
    """Return the WSGI response with ``document`` as JSON, or with ``body`` instead."""
    body = json.dumps(document).encode() if body is None else body
    headers = [("Content-Type", "application/x-amz-json-1.1"), ("Content-Length", str(len(body)))]
    start(_STATUS.get(status, "200 OK"), headers)
    return [body]


class KeptBucket:
    """The objects of ``bucket``, in moto's memory and below ``folder``; both change before a request is answered."""

    def __init__(self, bucket: str, folder: Path) -> None:
        self._bucket = bucket
        self._folder = folder
        self._lock = threading.Lock()

    def attach(self) -> None:
        """Load the objects that an earlier emulator left in the folder, and store all further changes. Call once."""
        from moto.s3.models import s3_backends

        backend: Any = s3_backends[ACCOUNT]["aws"]
        put, delete = backend.put_object, backend.delete_object
        self._folder.mkdir(parents=True, exist_ok=True)
        for path in sorted(self._folder.rglob("*")):
            if path.name.startswith(TEMPORARY):
                path.unlink(missing_ok=True)
            elif path.is_file():
                put(self._bucket, path.relative_to(self._folder).as_posix(), path.read_bytes())

        def put_object(bucket_name: str, key_name: str, value: bytes, *arguments: Any, **options: Any) -> Any:
            if bucket_name != self._bucket:
                return put(bucket_name, key_name, value, *arguments, **options)
            with self._lock:
                self._write(key_name, value)
                return put(bucket_name, key_name, value, *arguments, **options)

        def delete_object(bucket_name: str, key_name: str, *arguments: Any, **options: Any) -> Any:
            if bucket_name != self._bucket:
                return delete(bucket_name, key_name, *arguments, **options)
            with self._lock:
                self._path(key_name).unlink(missing_ok=True)
                return delete(bucket_name, key_name, *arguments, **options)

        # Every creation or removal of an object ends in one of these two: PUT, signed forms, multipart, copies.
        backend.put_object, backend.delete_object = put_object, delete_object

    def _write(self, key: str, value: bytes) -> None:
        path = self._path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, value)

    def _path(self, key: str) -> Path:
        parts = key.split("/")
        if not all(parts) or not {".", ".."}.isdisjoint(parts):
            raise ValueError(f"the key {key!r} cannot be a path")
        return self._folder.joinpath(*parts)
