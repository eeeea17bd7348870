"""A stand-in for vLLM's adapter calls on loopback, written from its documentation, with the faults that were reported.

It "computes" tokens from the bytes of an adapter as they were when a name was first loaded: like the real one it keeps
caches by name, so that a name that is loaded anew with other bytes still answers from the old ones.
"""

from __future__ import annotations

import hashlib
import json
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

BASE = "base-model"
_WEIGHTS = "adapter_model.safetensors"
_TOKENS = ("def", " check", "(", "name", ")", ":", " return", " name", ".", "strip", "(", ")", "#", "ok", "\n", "end")


@dataclass
class Vllm:
    """What a server knows, and which of its faults it shows."""

    port: int = 0
    loaded: dict[str, str] = field(default_factory=dict)  # name -> folder
    cached: dict[str, bytes] = field(default_factory=dict)  # by name, and never given up
    in_place: list[str] = field(default_factory=list)  # names that were loaded while they were loaded
    fits_no_module: bool = False  # what is loaded answers as the base
    updates: bool = True  # VLLM_ALLOW_RUNTIME_LORA_UPDATING
    refuses: bool = False
    answers_nonsense: bool = False
    busy: list[str] = field(default_factory=list)  # adapters of requests under way
    stale: str = ""  # an adapter that metrics still name after its last request
    hurt: list[str] = field(default_factory=list)  # adapters that were unloaded under a request

    def restart(self) -> None:
        """Forget everything, as a server that was started anew."""
        self.loaded.clear()
        self.cached.clear()

    def answer(self, method: str, path: str, body: Mapping[str, Any]) -> tuple[int, Any]:
        """Return status and document."""
        if path == "/v1/models":
            cards = [{"id": BASE, "root": BASE, "parent": None}]
            cards += [{"id": name, "root": root, "parent": BASE} for name, root in self.loaded.items()]
            return 200, {"object": "list", "data": cards}
        if path == "/v1/completions":
            return self._complete(body)
        if not self.updates or path not in {"/v1/load_lora_adapter", "/v1/unload_lora_adapter"}:
            return 404, {"detail": "Not Found"}
        name = str(body["lora_name"])
        if path == "/v1/unload_lora_adapter":
            self.hurt += [name] if name in self.busy else []
            known = self.loaded.pop(name, None)  # the weights stay
            return (200, "unloaded") if known else (404, {"error": {"message": f"{name} cannot be found"}})
        if self.refuses:
            return 500, {"error": {"message": "no memory is left for this adapter"}}
        if name in self.loaded:
            self.in_place.append(name)
            if not body.get("load_inplace"):
                return 400, {"error": {"message": f"{name} has already been loaded"}}
        weights = (Path(body["lora_path"]) / _WEIGHTS).read_bytes()
        self.cached.setdefault(name, b"" if self.fits_no_module else weights)
        self.loaded[name] = str(body["lora_path"])
        return 200, f"Success: LoRA adapter '{name}' added successfully."

    def metrics(self) -> str:
        """Return the page for Prometheus: of adapters one series for each state there was, worth when it was."""
        names = ",".join([*self.busy, *([self.stale] if self.stale else [])])
        info = 'vllm:lora_requests_info{max_lora="8",running_lora_adapters='
        return (
            f'# TYPE vllm:lora_requests_info gauge\n{info}"ufm@1,ufm@2",waiting_lora_adapters=""}} 1.7e+09\n'
            f'{info}"{names}",waiting_lora_adapters=""}} 1.7900000001e+09\n'
            f'vllm:num_requests_running{{model_name="{BASE}"}} {len(self.busy)}.0\n'
            f'vllm:num_requests_waiting{{model_name="{BASE}"}} 0.0\n'
        )

    def _complete(self, body: Mapping[str, Any]) -> tuple[int, Any]:
        name = body["model"]
        if name != BASE and name not in self.loaded:
            return 404, {"error": {"message": f"The model `{name}` does not exist."}}
        if self.answers_nonsense:
            return 200, {"choices": [{"text": "words alone"}]}
        shift = hashlib.sha256(self.cached.get(name, b"")).digest()
        count = min(int(body.get("max_tokens", 16)), len(_TOKENS))
        worth = [-0.1 - (shift[at] / 1_000 if self.cached.get(name) else 0.0) for at in range(count)]
        logprobs = {"tokens": list(_TOKENS[:count]), "token_logprobs": worth}
        return 200, {"model": name, "choices": [{"text": "".join(_TOKENS[:count]), "logprobs": logprobs}]}


@contextmanager
def vllm_server() -> Iterator[Vllm]:
    """Serve until the body ends."""
    told = Vllm()

    class Handler(BaseHTTPRequestHandler):
        def _serve(self) -> None:
            data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if self.path == "/metrics":
                status, answer = 200, told.metrics().encode()
            else:
                status, document = told.answer(self.command, self.path, json.loads(data or b"{}"))
                answer = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        do_GET = do_POST = _serve  # noqa: N815 - the library finds them by these names

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's own name
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    told.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield told
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
