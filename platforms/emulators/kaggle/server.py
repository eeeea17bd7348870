"""The emulator's HTTP server, on the loopback interface. Real clients call it directly or as their HTTP proxy."""

import base64
import binascii
import json
import re
import secrets
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self, TypeVar
from urllib.parse import parse_qs, quote, unquote, urlsplit

from platforms.emulators.kaggle.place import EmulatedSession, KaggleAccount, Kernel, instant_text
from platforms.emulators.kaggle.storage import KaggleRefusal, denied

Body = dict[str, Any]

_JSON = "application/json"
_PIECE_BYTES = 1 << 16
_REQUESTS_KEPT = 5_000
_RANGE = re.compile(r"bytes (?:(\d+)-(\d+)|\*)/(\d+)")
_Thing = TypeVar("_Thing")
_DATASETS_PAGE = 20  # the client cannot choose another size
# These calls wait until sessions end. An ending session needs the account's lock, so these calls must not hold it.
_ENDS_SESSIONS = frozenset({"CancelKernelSession", "DeleteKernel"})


class KaggleServer(ThreadingHTTPServer):
    """An account on a port of the loopback interface. Use as a context manager, or call ``close``."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 64
    page_max = 200  # entries per page of a list

    def __init__(
        self, place: KaggleAccount, port: int = 0, handler: type[BaseHTTPRequestHandler] | None = None
    ) -> None:
        super().__init__(("127.0.0.1", port), handler or Handler)
        self.place = place
        place.address = self.address
        self.links: dict[str, tuple[str, str, float]] = {}  # by token: kernel and version, file name, expiry
        self.closing = threading.Event()
        self.calls_received = 0
        self.requests: deque[tuple[str, Any]] = deque(maxlen=_REQUESTS_KEPT)  # the latest calls: name and body
        self.table: dict[str, Callable[[Body], Body]] = {
            "security.OAuthService/IntrospectToken": self._introspect,
            "kernels.KernelsApiService/SaveKernel": place.push,
            "kernels.KernelsApiService/GetKernel": self._get_kernel,
            "kernels.KernelsApiService/GetKernelSessionStatus": self._status,
            "kernels.KernelsApiService/ListKernels": self._list_kernels,
            "kernels.KernelsApiService/ListKernelSessionOutput": self._output,
            "kernels.KernelsApiService/CancelKernelSession": lambda body: place.cancel(body.get("kernelSessionId")),
            "kernels.KernelsApiService/DeleteKernel": lambda body: place.delete(*_name(body)),
            "kernels.KernelsApiService/GetAcceleratorQuotaStatistics": lambda _body: place.quota(),
            "blobs.BlobApiService/StartBlobUpload": self._start_upload,
            "datasets.DatasetApiService/CreateDataset": self._create_dataset,
            "datasets.DatasetApiService/CreateDatasetVersion": place.storage.create_version,
            "datasets.DatasetApiService/GetDatasetStatus": self._dataset_status,
            "datasets.DatasetApiService/GetDataset": lambda body: place.storage.describe(*_dataset(body)),
            "datasets.DatasetApiService/ListDatasets": self._list_datasets,
            "datasets.DatasetApiService/DeleteDataset": lambda body: place.storage.delete(*_dataset(body)),
        }
        self._thread = threading.Thread(target=self.serve_forever, args=(0.05,), name="kaggle emulator", daemon=True)

    @property
    def address(self) -> str:
        """The proxy address for clients."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End every session, then stop serving."""
        self.closing.set()
        self.place.close()
        self.shutdown()
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that close their connection."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)

    def file(self, version: str, name: str) -> Path:
        """Return the path of an output file of a kernel's version (``slug/number``). Raises KaggleRefusal."""
        kernel, _, number = version.rpartition("/")
        with self.place.lock:
            _, content = self.place.version(self.place.owner, kernel, f"v{number}")
        if content.session is None:
            raise KaggleRefusal(404, "Not found")
        return content.session.terms.folder / "kaggle" / "working" / name

    def link(self, version: str, name: str) -> str:
        """Return an address of an output file that expires."""
        token = secrets.token_hex(8)
        expires_at = self.place.clock.wall_seconds(self.place.clock.now()) + self.place.rules.link_wall_seconds
        self.links[token] = (version, name, expires_at)
        return f"{self.address}/output/{token}/{quote(name)}"

    # The API calls: JSON in, JSON out. Refused calls raise KaggleRefusal.
    def _introspect(self, body: Body) -> Body:
        if body.get("token") != self.place.key:
            return {"active": False}
        return {"active": True, "username": self.place.owner}

    def _get_kernel(self, body: Body) -> Body:
        kernel, version = self.place.version(*_name(body), body.get("versionLabel"))
        blob = {"source": version.body.get("text", ""), "language": "python", "kernelType": "script"}
        return {"metadata": self._metadata(kernel), "blob": blob}

    def _status(self, body: Body) -> Body:
        session = self.place.version(*_name(body), body.get("versionLabel"))[1].session
        if session is None:
            return {"status": "NEW_SCRIPT"}
        with session.changed:
            failure = {"failureMessage": session.failure} if session.failure else {}
            return {"status": session.status, **failure}

    def _list_kernels(self, body: Body) -> Body:
        if body.get("group") == "EVERYONE":
            return {"kernels": [{"ref": "somebody/a-public-kernel", "isPrivate": False}]}
        search = str(body.get("search") or "").lower()
        kernels = [
            kernel for kernel in self.place.kernels.values() if search in f"{kernel.slug} {kernel.title}".lower()
        ]
        kernels.sort(key=self.place.last_run_at, reverse=True)
        page, following = self.paged(kernels, body, int(body.get("pageSize") or 20))
        return {"kernels": [self._metadata(kernel) for kernel in page], **following}

    def paged(self, things: Sequence[_Thing], body: Body, size: int) -> tuple[Sequence[_Thing], Body]:
        """Return a page of a list by the number of the page."""
        size = min(size, self.page_max)
        first = (max(1, int(body.get("page") or 1)) - 1) * size
        return things[first : first + size], {}

    def page(self, things: Sequence[_Thing], body: Body) -> tuple[Sequence[_Thing], Body]:
        """Return a page of a list by a page token, with the token of the next page."""
        first, size = int(body.get("pageToken") or 0), min(int(body.get("pageSize") or 20), self.page_max)
        return things[first : first + size], {"nextPageToken": str(first + size)} if first + size < len(things) else {}

    def _metadata(self, kernel: Kernel) -> Body:
        newest = kernel.versions[-1]
        return {
            "id": kernel.id,
            "ref": f"{self.place.owner}/{kernel.slug}",
            "title": kernel.title,
            "slug": kernel.slug,
            "author": self.place.owner,
            "lastRunTime": instant_text(self.place.last_run_at(kernel)),
            "isPrivate": bool(newest.body.get("isPrivate", True)),
            "currentVersionNumber": len(kernel.versions),
            "machineShape": newest.body.get("machineShape"),
        }

    def _output(self, body: Body) -> Body:
        kernel, version = self.place.version(*_name(body), body.get("versionLabel"))
        session = version.session
        if session is None or session.live:
            return {"files": [], "log": ""}
        page_of_files, following = self.page(session.output_files(), body)
        label = f"{kernel.slug}/{version.number}"
        files = [{"fileName": name, "url": self.link(label, name)} for name in page_of_files]
        return {"files": files, "log": json.dumps(session.lines), **following}

    def _start_upload(self, body: Body) -> Body:
        token = secrets.token_hex(16)
        self.place.storage.start_upload(str(body.get("name", "")), int(body.get("contentLength") or 0), token)
        return {"token": token, "createUrl": f"{self.address}/upload/{token}"}

    def _create_dataset(self, body: Body) -> Body:
        if body.get("ownerSlug") != self.place.owner:
            raise denied("datasets.create")
        return self.place.storage.create(body)

    def _dataset_status(self, body: Body) -> Body:
        storage, (owner, slug) = self.place.storage, _dataset(body)
        dataset = storage.datasets.get(slug)
        if owner != self.place.owner or dataset is None or not storage.visible(dataset):
            raise denied("datasets.get")
        return {"status": storage.status(dataset)}

    def _list_datasets(self, body: Body) -> Body:
        if str(body.get("group")).removeprefix("DATASET_SELECTION_GROUP_") not in {"MY", "MY_PRIVATE"}:
            return {"datasets": [{"ref": "somebody/a-public-dataset", "isPrivate": False}]}
        slugs = sorted(slug for slug, dataset in self.place.storage.datasets.items() if not dataset.deleted)
        page, following = self.paged(slugs, body, _DATASETS_PAGE)
        return {"datasets": [{"ref": f"{self.place.owner}/{slug}", "isPrivate": True} for slug in page], **following}


class Handler(BaseHTTPRequestHandler):
    """One connection. Tests inject faults by overriding ``begins`` and ``conclude``."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: KaggleServer

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
        """Write nothing to stderr."""

    def do_POST(self) -> None:
        """Answer an API call."""
        data = self._body()
        name = urlsplit(self.path).path.removeprefix("/api/v1/").removeprefix("/v1/")
        call = name.rpartition("/")[2]
        if not self.begins(call):
            return
        try:
            body = json.loads(data or b"{}")
            self.server.calls_received += 1
            self.server.requests.append((call, body))
            handler = self.server.table.get(name)
            if handler is None:
                raise KaggleRefusal(404, f"There is no call {name}")
            if call != "IntrospectToken":
                self._authenticate(reads_only=call.startswith("Get"))
            with nullcontext() if call in _ENDS_SESSIONS else self.server.place.lock:
                answer = handler(body)
            if not call.startswith(("Get", "List", "Introspect")):
                self.server.place.note()
        except KaggleRefusal as refusal:
            self.conclude(call, refusal.status, {"code": refusal.status, "message": refusal.message}, refusal.headers)
        else:
            self.conclude(call, 200, answer)

    def begins(self, call: str) -> bool:
        """Return whether to process a call that has just arrived."""
        del call
        return True

    def conclude(
        self, call: str, status: int, body: Mapping[str, Any], headers: Mapping[str, str] | None = None
    ) -> None:
        """Answer a call that was carried out or refused."""
        del call
        self.answer(status, body, headers)

    def do_PUT(self) -> None:
        """Receive a blob, or report how much of it has arrived."""
        token = urlsplit(self.path).path.removeprefix("/upload/")
        if self.begins("PUT"):
            self.receive(token)
            self.server.place.note()

    def do_GET(self) -> None:
        """Stream a log or send an output file."""
        parts = urlsplit(self.path)
        path = parts.path.removeprefix("/api")
        try:
            if path.startswith("/v1/kernels/logs/stream/"):
                if self.begins("LogStream"):
                    self._authenticate()
                    owner, _, slug = path.removeprefix("/v1/kernels/logs/stream/").partition("/")
                    label = parse_qs(parts.query).get("versionLabel", [None])[0]
                    with self.server.place.lock:
                        _, version = self.server.place.version(owner, slug, label)
                    self._stream(version.session)
            elif path.startswith("/output/"):
                if self.begins("Output"):
                    self.send_output(path)
            else:
                raise KaggleRefusal(404, "Not found")
        except KaggleRefusal as refusal:
            self.answer(refusal.status, {"code": refusal.status, "message": refusal.message})

    def do_CONNECT(self) -> None:
        """Refuse tunnels: no request for the real Kaggle may leave this machine through the emulator."""
        self.answer(502, {"code": 502, "message": "the emulator opens no tunnels"})

    def _authenticate(self, *, reads_only: bool = False) -> None:
        """Accept the owner, and for read-only calls also kernels. Raises KaggleRefusal."""
        kind, _, credentials = self.headers.get("Authorization", "").partition(" ")
        place = self.server.place
        if kind == "Bearer" and (credentials == place.key or (reads_only and place.is_token(credentials))):
            return
        with suppress(binascii.Error, UnicodeDecodeError):
            if kind == "Basic" and base64.b64decode(credentials).decode() == f"{place.owner}:{place.key}":
                return
        raise KaggleRefusal(401, "Unauthenticated")

    def _stream(self, session: EmulatedSession | None) -> None:
        if session is None:
            raise KaggleRefusal(404, "Not found")
        if not session.live:
            self.send(200, json.dumps(session.lines).encode(), _JSON)
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.close_connection = True
        sent = 0  # a reconnected client gets everything again
        while True:
            lines, ended = session.new_lines(sent, self.server.place.rules.stream_idle_wall_seconds)
            if not lines and not ended:
                return  # the balancer closes idle streams
            sent += len(lines)
            self._send_chunk("".join(f"data: {json.dumps(line)}\n\n" for line in lines))
            if ended and sent == len(session.lines):
                self._send_chunk("data: END_OF_LOG\n\n")
                self._send_chunk("")
                return

    def _send_chunk(self, text: str) -> None:
        data = text.encode()
        if data or not text:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def send_output(self, path: str, *, interrupt: bool = False) -> None:
        """Send an output file, or the part from the requested byte on; with ``interrupt`` only half of that."""
        token, _, name = path.removeprefix("/output/").partition("/")
        version, linked_name, expires_at = self.server.links.get(token, ("", "", 0.0))
        clock = self.server.place.clock
        if unquote(name) != linked_name or clock.wall_seconds(clock.now()) > expires_at:
            raise KaggleRefusal(403, "The link has expired")
        file = self.server.file(version, linked_name)
        size = file.stat().st_size
        match = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        first = min(int(match[1]), size) if match else 0
        self.send_response(206 if match else 200)
        self.send_header("Content-Type", "application/octet-stream")
        self.send_header("Content-Length", str(size - first))
        if match:
            self.send_header("Content-Range", f"bytes {first}-{size - 1}/{size}")
        self.end_headers()
        if interrupt:
            size = (first + size) // 2
            self.close_connection = True
        with file.open("rb") as stream:
            stream.seek(first)
            while piece := stream.read(min(_PIECE_BYTES, size - stream.tell())):
                self.wfile.write(piece)

    def answer(self, status: int, body: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> None:
        """Send ``body`` as a JSON document."""
        self.send(status, json.dumps(body).encode(), _JSON, headers)

    def send(self, status: int, data: bytes, kind: str, headers: Mapping[str, str] | None = None) -> None:
        """Send a body of the content type ``kind``."""
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        for name, text in (headers or {}).items():
            self.send_header(name, text)
        self.end_headers()
        self.wfile.write(data)

    def receive(self, token: str, *, interrupt: bool = False) -> None:
        """Receive a PUT for the blob ``token``. With ``interrupt``, keep half of it and answer 503."""
        data, place = self._body(), self.server.place
        with place.lock:
            blob = place.storage.blobs.get(token)
            if blob is None:
                self.send(404, b"", _JSON)
                return
            match = _RANGE.fullmatch(self.headers.get("Content-Range", ""))
            if match is None or match[1] is not None:
                with blob.path.open("r+b") as stream:
                    stream.seek(int(match[1]) if match else 0)
                    stream.write(data[: len(data) // 2] if interrupt else data)
                    stream.truncate()
                blob.done = blob.path.stat().st_size == blob.size
                if interrupt:
                    self.send(503, b"", _JSON)
                    return
            have = blob.path.stat().st_size
            reached = {"Range": f"bytes=0-{have - 1}"} if have and not blob.done else {}
            self.send(200 if blob.done else 308, b"", _JSON, reached)

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        pieces = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            pieces.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(pieces)


def _dataset(body: Body) -> tuple[str, str]:
    return str(body.get("ownerSlug", "")), str(body.get("datasetSlug", ""))


def _name(body: Body) -> tuple[str, str]:
    owner, slug = str(body.get("userName", "")), str(body.get("kernelSlug", ""))
    if not owner or not slug:
        raise KaggleRefusal(400, "userName and kernelSlug are required")
    return owner, slug
