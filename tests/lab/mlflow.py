"""A stand-in for an MLflow server, with registry and artifact proxy, written from the documentation of its calls."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_API, _FILES = "/api/2.0/mlflow/", "/api/2.0/mlflow-artifacts/artifacts/"


@dataclass
class Mlflow:
    """What it has: experiments, runs with their metrics, artifacts by path, and versions of registered models."""

    port: int = 0
    experiments: dict[str, str] = field(default_factory=dict)
    runs: dict[str, dict[str, Any]] = field(default_factory=dict)
    artifacts: dict[str, bytes] = field(default_factory=dict)
    versions: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    full: bool = False  # its artifact store takes no more

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    def answer(self, call: str, told: Mapping[str, Any]) -> tuple[int, Any]:
        """Return status and document of a call."""
        match call:
            case "registered-models/create":
                if told["name"] in self.versions:
                    return _no("RESOURCE_ALREADY_EXISTS", f"Registered Model (name={told['name']}) already exists.")
                self.versions[told["name"]] = []
                return 200, {"registered_model": {"name": told["name"]}}
            case "model-versions/search":
                name = str(told["filter"]).split("'")[1]
                return 200, {"model_versions": self.versions.get(name, [])}
            case "experiments/get-by-name":
                if told["experiment_name"] not in self.experiments:
                    return _no("RESOURCE_DOES_NOT_EXIST", "Could not find experiment", 404)
                return 200, {"experiment": {"experiment_id": self.experiments[told["experiment_name"]]}}
            case "experiments/create":
                self.experiments[told["name"]] = str(len(self.experiments) + 1)
                return 200, {"experiment_id": self.experiments[told["name"]]}
            case "model-versions/create":
                mine = self.versions[told["name"]]
                made = {**told, "version": str(len(mine) + 1), "status": "READY", "tags": told.get("tags", [])}
                mine.append(made)
                return 200, {"model_version": made}
            case _:
                return self._of_runs(call, told)

    def _of_runs(self, call: str, told: Mapping[str, Any]) -> tuple[int, Any]:
        match call:
            case "runs/search":
                found = [run for run in self.runs.values() if run["info"]["experiment_id"] in told["experiment_ids"]]
                first = int(told.get("page_token") or 0)  # a page of two, whatever is asked for
                more = {"next_page_token": str(first + 2)} if len(found) > first + 2 else {}
                return 200, {"runs": found[first : first + 2], **more}
            case "runs/log-batch":
                return self._log_batch(told)
            case "runs/create":
                key = f"{len(self.runs) + 1:032x}"
                uri = f"mlflow-artifacts:/{told['experiment_id']}/{key}/artifacts"
                info = {"run_id": key, "run_uuid": key, "status": "RUNNING", "artifact_uri": uri, "start_time": 1}
                info |= {"experiment_id": told["experiment_id"], "lifecycle_stage": "active", "user_id": "u"}
                self.runs[key] = {"info": info, "data": {"metrics": [], "tags": list(told.get("tags", ()))}}
                return 200, {"run": self.runs[key]}
            case "runs/get":
                return 200, {"run": self.runs[told["run_id"]]}
            case "runs/log-metric":
                self.runs[told["run_id"]]["data"]["metrics"].append(told)
                return 200, {}
            case "runs/update":
                self.runs[told["run_id"]]["info"]["status"] = told["status"]
                return 200, {"run_info": self.runs[told["run_id"]]["info"]}
            case _:
                return _no("ENDPOINT_NOT_FOUND", f"{call} is not known here", 404)

    def _log_batch(self, told: Mapping[str, Any]) -> tuple[int, Any]:
        run = self.runs.get(told["run_id"])
        if run is None:
            return _no("RESOURCE_DOES_NOT_EXIST", f"Run with id={told['run_id']} not found", 404)
        if len(told["metrics"]) > 1_000 or len(told.get("tags", ())) > 100:
            return _no("INVALID_PARAMETER_VALUE", "A batch logging request can contain at most 1000 metrics")
        if bad := [one for one in told["metrics"] if not isinstance(one["value"], int | float)]:
            return _no("INVALID_PARAMETER_VALUE", f"Invalid value {bad[0]['value']!r} for parameter 'value'")
        known = run["data"]["metrics"]
        known.extend(one for one in told["metrics"] if one not in known)  # as the server's database keeps one of each
        tags = {tag["key"]: tag for tag in [*run["data"]["tags"], *told.get("tags", ())]}
        run["data"]["tags"] = list(tags.values())
        return 200, {}


def _no(code: str, words: str, status: int = 400) -> tuple[int, Any]:
    return status, {"error_code": code, "message": words}


@contextmanager
def mlflow_server() -> Iterator[Mlflow]:
    """Serve until the body ends."""
    found = Mlflow()

    class Handler(BaseHTTPRequestHandler):
        def _serve(self) -> None:
            parts = urlsplit(self.path)
            data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if parts.path.startswith(_FILES):
                found.artifacts[unquote(parts.path.removeprefix(_FILES))] = data
                status, document = (500, {"message": "No space left"}) if found.full else (200, {})
            elif parts.path.startswith(_API):
                asked = {key: values[-1] for key, values in parse_qs(parts.query).items()}
                status, document = found.answer(parts.path.removeprefix(_API), json.loads(data) if data else asked)
            else:
                status, document = 404, {}
            answer = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        do_GET = do_POST = do_PUT = do_PATCH = _serve  # noqa: N815 - the library finds them by these names

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's own name
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
