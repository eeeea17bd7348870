"""Drives every call against the recorded bodies, with whatever kagglesdk the interpreter finds; prints the outcome."""

import json
import os
import sys
import tempfile
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

from jobs.payload.store.tree import Entry
from platforms.base import PlatformError
from platforms.kaggle.api.client import KaggleClient, Push
from platforms.kaggle.api.wire import Wire, import_library
from platforms.kaggle.settings import Credentials

CONTENT = bytes(300_000)
EVENTS = [{"stream_name": "stdout", "time": number / 2, "data": f"line {number}\n"} for number in range(3)]


class Replay(BaseHTTPRequestHandler):
    """Answers the call ``case`` as recorded and notes what was asked."""

    protocol_version = "HTTP/1.1"
    case: ClassVar[dict[str, Any]] = {}
    sent: ClassVar[list[Any]] = []
    address: ClassVar[str] = ""
    put_answers: ClassVar[list[tuple[int, str]]] = []

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
        """Say nothing."""

    def do_POST(self) -> None:
        """A remote call."""
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.sent.append([urlsplit(self.path).path, json.loads(body or b"{}"), self.headers.get("Authorization")])
        text = self.case.get("text") or json.dumps(self.case["response"]).replace("{address}", self.address)
        location = (
            {"Location": self.case["location"].replace("{address}", self.address)} if "location" in self.case else {}
        )
        self._answer(self.case.get("status", 200), text.encode(), "application/json", location)

    def do_PUT(self) -> None:
        """A blob that breaks off half-way, is asked for, and goes on."""
        size = len(self.rfile.read(int(self.headers.get("Content-Length") or 0)))
        self.sent.append(["PUT", size, self.headers.get("Content-Range")])
        status, reached = self.put_answers.pop(0)
        self._answer(status, b"", "text/plain", {"Range": reached} if reached else {})

    def do_GET(self) -> None:
        """A log stream of either kind, or an output file."""
        path = urlsplit(self.path).path
        self.sent.append([self.path, self.headers.get("Range"), self.headers.get("Authorization")])
        if path.endswith("/job-live"):
            text = "".join(f"data: {json.dumps(event)}\n\n" for event in EVENTS) + "data: END_OF_LOG\n\n"
            self._answer(200, text.encode(), "text/event-stream")
        elif "/logs/stream/" in path:
            self._answer(200, json.dumps(EVENTS).encode(), "application/json")
        else:
            self._answer(200, CONTENT, "application/octet-stream")

    def _answer(self, status: int, data: bytes, kind: str, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        for name, text in (headers or {}).items():
            self.send_header(name, text)
        self.end_headers()
        self.wfile.write(data)


def calls(client: KaggleClient, token_client: KaggleClient, folder: Path) -> dict[str, Callable[[], Any]]:
    """What the adapter asks, by the first word of a recorded case."""
    push = Push(
        "job-0001",
        "job 0001",
        "print('hello')",
        ("alice/uff-code-0",),
        "NvidiaTeslaT4",
        36_000,
        internet=True,
        models=("org/tiny/pyTorch/base/3",),
    )
    blob = folder / "code.bin"
    blob.write_bytes(CONTENT)
    os.utime(blob, (1_795_222_165, 1_795_222_165))

    def pushed() -> Any:
        found = client.push(push, 5)
        return found.slug, found.version, found.error, found.invalid

    def output() -> Any:
        found = client.output("job-0001", "")
        return found and (found.files, found.log, found.next_page)

    def fetched(source: str, path: str) -> int:
        client.published.fetch(source, Entry(path, "file", "", len(CONTENT)), folder / "file")
        return (folder / "file").stat().st_size

    def week() -> Any:
        found = client.week()
        return found.end, found.limit_seconds, found.used_seconds, found.reserved_seconds

    return {
        "IntrospectToken": token_client.owner,
        "SaveKernel": pushed,
        "GetKernelSessionStatus": lambda: client.status("job-0001"),
        "GetKernel": lambda: client.source("job-0001"),
        "ListKernels": lambda: list(client.kernels()),
        "ListKernelSessionOutput": output,
        "CancelKernelSession": lambda: client.cancel(355_193_088),
        "DeleteKernel": lambda: client.delete("job-0001"),
        "GetAcceleratorQuotaStatistics": week,
        "StartBlobUpload": lambda: client.datasets.upload(blob, blob.name, 5),
        "CreateDataset": lambda: client.datasets.create("uff-code-0", "uff-code-0", ["the-token"]),
        "GetDatasetStatus": lambda: client.datasets.status("uff-code-0"),
        "ListDatasets": lambda: list(client.datasets.own()),
        "GetDataset": lambda: client.published.pin("kaggle-dataset:org/set"),
        "ListDatasetFiles": lambda: client.published.pin("kaggle-dataset:org/set/6"),
        "DownloadDataset": lambda: fetched("kaggle-dataset:org/set/6", "b/a.csv"),
        "ListModelInstanceVersionFiles": lambda: client.published.pin("kaggle-model:org/tiny/pyTorch/base/3"),
        "DownloadModelInstanceVersion": lambda: fetched("kaggle-model:org/tiny/pyTorch/base/3", "config.json"),
        "DeleteDataset": lambda: client.datasets.delete("uff-code-0"),
    }


def main() -> None:
    """Drive all cases of the file named on the command line."""
    cases = json.loads(Path(sys.argv[1]).read_bytes())
    import_library()
    told: dict[str, Any] = {"version": version("kagglesdk")}
    server = ThreadingHTTPServer(("127.0.0.1", 0), Replay)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    Replay.address = f"http://127.0.0.1:{server.server_address[1]}"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)

        def client(username: str, token: str) -> KaggleClient:
            credentials = Credentials("a test", token=token, username=username, key="" if token else "the-key")
            wire = Wire(credentials, Replay.address, 5)
            return KaggleClient(wire, tries=1, pause_seconds=0)

        known = calls(client("alice", ""), client("", "an-access-token"), folder)
        for case, recorded in cases.items():
            Replay.case, Replay.sent = recorded, []
            Replay.put_answers = [(503, ""), (308, "bytes=0-99999"), (200, "")]
            try:
                result = known[case.split(" ", 1)[0]]()
            except PlatformError as error:
                result = type(error).__name__
            told[case] = {"sent": Replay.sent, "result": result}
        for slug in ("job-live", "job-over"):
            Replay.sent = []
            pieces = list(client("alice", "").stream_log(slug, 5.0, 1 << 20))
            told[slug] = {
                "sent": Replay.sent,
                "kinds": sorted({kind for kind, _ in pieces}),
                "text": b"".join(piece for _, piece in pieces).decode(),
            }
        Replay.sent = []
        client("alice", "").wire.download(f"{Replay.address}/output/1/a.bin", folder / "a.bin", 1 << 20, 5.0)
        told["download"] = {"sent": Replay.sent, "bytes": (folder / "a.bin").stat().st_size}
    server.shutdown()
    server.server_close()
    sys.stdout.write(json.dumps(told))


if __name__ == "__main__":
    main()
