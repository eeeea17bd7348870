"""The target ``vllm``: adapters of one base model, loaded side by side into a running server without downtime.

The name of an adapter contains its version, ``ufm@7``, because servers cache by name: no adapter is replaced in place.
The steps are: copy the files, load, probe, switch the router, point ``current`` at the new version, unload all other
versions except the previous one. That version stays loaded until the next deployment, so that a rollback needs no load.
An adapter with requests in progress is not unloaded.
"""

import http.client
import json
import math
import re
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from ipaddress import ip_address
from typing import Annotated, Any
from urllib.parse import urlsplit

from jobs.payload.bounds import INSTANT_MAX, digits, read_json
from jobs.payload.deadline import Deadline
from platforms.options import Written
from platforms.targets.base import (
    BadRelease,
    BadTargetOption,
    Deployed,
    DeployOutcome,
    Release,
    Served,
    TargetBusy,
    TargetContext,
    TargetError,
    TargetUnreachable,
    target_options,
)
from platforms.targets.folder import Commands, FolderTarget, RemoteOptions
from platforms.targets.reach import Here

NAME = "probe.json"
_PROMPT = "Write one atomic component that validates a file name."
_TOKENS = 16
_SAME = 1e-6  # repeated log-probabilities of one model and prompt differ by less if no other requests run
_TOLERANCE = 0.05
MAX_BYTES = 1 << 16
_ANSWER_MAX_BYTES = 1 << 20
_ABSOLUTE = re.compile(r"(?!(.*/)?\.\.(/|$))(/[A-Za-z0-9._+-]+)+")
_METRIC = re.compile(r"(vllm:\w+)(?:\{(.*)\})? (\d+(?:\.\d+)?(?:e[+-]?\d+)?)")
_ADAPTERS = re.compile(r'(?:running|waiting)_lora_adapters="([^"]*)"')
_PAUSE = threading.Event()  # never set: waiting on it is the pause between two polls


# The probe checks that the server applies an adapter. A server may list an adapter that fits no module and answer as
# the base model would. So adapter and base get the same prompt at temperature 0. The adapter's answer must differ from
# the base's in tokens or log-probabilities. If the release has a ``probe.json``, it must also match the answer recorded
# there when the version was accepted.
@dataclass(frozen=True, slots=True)
class ProbeAnswer:
    """The first tokens of an answer and their log-probabilities."""

    tokens: tuple[str, ...]
    worth: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Probe:
    """A prompt and the answer recorded at acceptance, or None; log-probabilities may differ by ``tolerance``."""

    prompt: str = _PROMPT
    expected: ProbeAnswer | None = None
    tolerance: float = _TOLERANCE


def probe_of(release: Release) -> Probe:
    """Return the probe of a release's ``probe.json``, or else the default. Raises BadRelease, OSError."""
    if NAME not in release.files:
        return Probe()
    try:
        document = read_json((release.folder / NAME).read_bytes()[:MAX_BYTES])
        expected = _answer_of(document["tokens"], document["logprobs"])
        prompt, tolerance = document["prompt"], float(document.get("tolerance", _TOLERANCE))
        if expected is None or not isinstance(prompt, str) or not 0 <= tolerance < 1:
            raise ValueError(NAME)
    except (ValueError, KeyError, TypeError, AttributeError):
        why = f"{NAME} has not prompt, tokens and logprobs of the same length"
        raise BadRelease("(none yet)", "probe it", why, "Export the version again") from None
    return Probe(prompt, expected, tolerance)


def fault(server: "Loopback", probe: Probe, adapter: str, base: str) -> str:
    """Return why ``adapter`` fails the probe, "" if it passes. Raises TargetUnreachable."""
    bare, tuned = (_ask(server, probe, name) for name in (base, adapter))
    if tuned is None or bare is None:
        return f"the server gives no tokens with log-probabilities for {adapter if tuned is None else base}"
    if tuned.tokens == bare.tokens and _near(tuned.worth, bare.worth, _SAME):
        return f"{adapter} is loaded but not applied: it answers as {base} does"
    expected = probe.expected
    if expected is not None:
        count = min(len(expected.tokens), len(tuned.tokens))
        same = expected.tokens[:count] == tuned.tokens[:count] and count == len(expected.tokens)
        if not (same and _near(tuned.worth[:count], expected.worth, probe.tolerance)):
            return f"{adapter} does not answer as it did when it was accepted"
    return ""


def _ask(server: "Loopback", probe: Probe, name: str) -> ProbeAnswer | None:
    wanted = len(probe.expected.tokens) if probe.expected else _TOKENS
    question = {"model": name, "prompt": probe.prompt, "max_tokens": wanted, "temperature": 0, "logprobs": 1}
    answer = server.call("POST", "/v1/completions", question)
    try:
        logprobs = answer.document["choices"][0]["logprobs"]
        return _answer_of(logprobs["tokens"], logprobs["token_logprobs"]) if answer.status == 200 else None
    except (KeyError, IndexError, TypeError):
        return None


def _answer_of(tokens: Any, worth: Any) -> ProbeAnswer | None:
    if not (isinstance(tokens, list) and isinstance(worth, list) and 0 < len(tokens) == len(worth) <= 1_000):
        return None
    if not all(isinstance(token, str) for token in tokens):
        return None
    numbers = tuple(float(one) for one in worth if isinstance(one, int | float) and math.isfinite(one))
    return ProbeAnswer(tuple(tokens), numbers) if len(numbers) == len(tokens) else None


def _near(these: tuple[float, ...], those: tuple[float, ...], within: float) -> bool:
    return len(these) == len(those) and all(abs(one - other) <= within for one, other in zip(these, those, strict=True))


# The server's admin API, only over loopback: anyone who can load an adapter controls what the server answers. A server
# on another machine is reached through an ssh tunnel (docs/deployment.md).
@dataclass(frozen=True, slots=True)
class ServerAnswer:
    """An HTTP answer: ``document`` is its JSON object, {} for anything else; ``text`` its first 300 characters."""

    status: int
    document: Mapping[str, Any]
    text: str


@dataclass(frozen=True, slots=True)
class Loopback:
    """An HTTP client of a server on this machine.

    ``target`` is the name for errors; ``bearer`` returns the token for each call, "" for none; ``seconds`` is the
    timeout of a call.
    """

    target: str
    port: int
    bearer: Callable[[], str]
    seconds: int

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> ServerAnswer:
        """Send a request and return the answer, also one with an error status. Raises TargetUnreachable."""
        status, text = self._ask(method, path, body)
        try:
            document = read_json(text)
        except ValueError:
            document = None
        return ServerAnswer(status, document if isinstance(document, dict) else {}, " ".join(text.split())[:300])

    def lines(self, path: str) -> list[str]:
        """Return the lines of a text page, none unless its status is 200. Raises TargetUnreachable."""
        status, text = self._ask("GET", path, None)
        return text.splitlines() if status == 200 else []

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None) -> tuple[int, str]:
        headers = {"Content-Type": "application/json"} | (
            {"Authorization": f"Bearer {token}"} if (token := self.bearer()) else {}
        )
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=self.seconds)
        try:
            with Deadline(self.seconds) as deadline:
                deadline.follow(connection).connect()
                connection.request(method, path, None if body is None else json.dumps(body), headers)
                answer = connection.getresponse()
                data = answer.read(_ANSWER_MAX_BYTES)
        except (OSError, http.client.HTTPException) as error:
            why = str(error) or type(error).__name__
            remedy = f"Check that the server, or the tunnel to it, listens on port {self.port}"
            raise TargetUnreachable(self.target, f"ask {path}", why, remedy) from error
        finally:
            connection.close()
        return answer.status, data.decode("utf-8", "replace")


def port_of(target: str, option: str, address: str) -> int:
    """Return the port of ``http://127.0.0.1:8000``. Raises BadTargetOption for another address."""
    try:
        parts = urlsplit(address)
        host, port = parts.hostname or "", parts.port
        here = host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        here, port, parts = False, None, urlsplit("")
    if not (here and port and parts.scheme == "http" and parts.path in {"", "/"}):
        why = f"{option} = {address!r} is no address of this machine such as http://127.0.0.1:8000"
        remedy = "Reach a server elsewhere by a tunnel: docs/deployment.md"
        raise BadTargetOption(target, "use its options", why, remedy)
    return port


@dataclass(frozen=True, kw_only=True)
class VllmOptions(RemoteOptions):
    """The options of a ``vllm`` target; with ``host``, the server's disk is on another machine."""

    url: str
    base: str
    path: Annotated[str, Written(form=_ABSOLUTE, remedy="Write it from / on, as the server sees it")]
    api_key: str = ""
    router: str = ""
    router_key: str = ""
    answer_seconds: Annotated[int, Written("answer_time", most=3_600)] = 60
    drain_seconds: Annotated[int, Written("drain_time", most=3_600)] = 30


def load(name: str, options: Mapping[str, str], context: TargetContext) -> "VllmTarget":
    """Return the target; ``url``, ``base`` and ``path`` are required. Raises TargetError."""
    read = target_options(name, VllmOptions, options)

    def server(option: str, address: str, credential: str) -> Loopback:
        bearer = (lambda: context.read_secret(credential)) if credential else str
        return Loopback(name, port_of(name, option, address), bearer, read.answer_seconds)

    there = read.reach(name, context) if read.host else Here(name)
    return VllmTarget(
        FolderTarget(name, there, read.path, Commands(), read.copy_seconds),
        server("url", read.url, read.api_key),
        read.base,
        server("router", read.router, read.router_key) if read.router else None,
        read.drain_seconds,
    )


@dataclass(frozen=True, slots=True)
class VllmTarget:
    """A server of the model ``base``, which loads adapters from ``folder``, with an optional router before it."""

    folder: FolderTarget
    server: Loopback
    base: str
    router: Loopback | None = None
    drain_seconds: int = 30

    def read(self, model: str, *, deep: bool = False) -> Served:
        """See Target.read. A version that the server has not loaded, e.g. after its restart, is not proven."""
        loaded, served = self._loaded(), self.folder.read(model, deep=deep)
        return replace(served, proven=served.proven and f"{model}@{served.version}" in loaded)

    def deploy(self, release: Release) -> Deployed:
        """See Target.deploy."""
        probe = probe_of(release)
        served = self.read(release.model)
        if served.proven and (served.version, served.digest) == (release.version, release.digest):
            self._point_router(release.model, release.version)
            return Deployed(DeployOutcome.SERVING, release.version)
        self.folder.place(release)
        why = self._load(release.model, release.version, probe)
        if why:
            self._unload(release.model, {release.version})
            return self._kept_version(served, release.version, why)
        self._point_router(release.model, release.version)
        self.folder.point(release.model, release.version, release.digest)
        kept = {release.version, served.version, *(served.before[:1] if served.version == release.version else ())}
        self._unload(release.model, {one for one in self._versions(release.model) if one not in kept})
        return Deployed(DeployOutcome.SERVING, release.version)

    def go_back(self, model: str, leaving: int) -> Deployed:
        """See Target.go_back. A version that was loaded but never activated is unloaded."""
        served = self.folder.read(model)
        if served.version == leaving:
            if not served.before:
                raise TargetError(self.folder.name, "go back", f"no version before {leaving} is kept", "Deploy another")
            if why := self._load(model, served.before[0], Probe()):
                return Deployed(DeployOutcome.DOWN, None, why)
            self._point_router(model, served.before[0])
        back = self.folder.go_back(model, leaving)
        if back.version != leaving:
            self._unload(model, {leaving})
        return back

    def _kept_version(self, served: Served, refused: int, why: str) -> Deployed:
        """Return the outcome after version ``refused`` failed its probe: the version before still serves, if proven."""
        if served.version is None or served.version == refused or not served.proven:
            return Deployed(DeployOutcome.DOWN, None, why)
        return Deployed(DeployOutcome.RETURNED, served.version, why)

    def _load(self, model: str, version: int, probe: Probe) -> str:
        """Load a version unless it is loaded, and probe it; return why it cannot serve, or ""."""
        name, place = f"{model}@{version}", f"{self.folder.path}/{model}/releases/{version}"
        loaded = self._loaded()
        if name in loaded and loaded[name] not in {"", place}:
            return f"{name} is loaded from {loaded[name]}, not from {place}; unload it there"
        if name not in loaded:
            answer = self.server.call("POST", "/v1/load_lora_adapter", {"lora_name": name, "lora_path": place})
            if answer.status == 404:
                return "the server loads no adapters; start it with VLLM_ALLOW_RUNTIME_LORA_UPDATING=True"
            if answer.status != 200:
                return f"the server refused {name} with {answer.status}: {answer.text}"
            if name not in self._loaded():
                return f"the server said that it loaded {name}, and does not list it"
        return fault(self.server, probe, name, self.base)

    def _unload(self, model: str, versions: set[int]) -> None:
        """Unload versions once they have no requests in progress; skip versions that the server does not know.

        A version still busy after ``drain_seconds`` stays loaded until the next deployment. Raises TargetUnreachable.
        """
        there = {f"{model}@{version}": version for version in versions & self._versions(model)}
        busy = self._drained(there) if there else set()
        for version in sorted(version for name, version in there.items() if name not in busy):
            answer = self.server.call("POST", "/v1/unload_lora_adapter", {"lora_name": f"{model}@{version}"})
            if answer.status not in {200, 404}:
                raise TargetUnreachable(self.folder.name, f"unload {model}@{version}", answer.text, "It is tried again")

    def _drained(self, names: Collection[str]) -> set[str]:
        """Wait until these adapters have no requests in progress; return those still busy after ``drain_seconds``."""
        busy = self._busy() & set(names)
        for _ in range(self.drain_seconds):
            if not busy:
                break
            _PAUSE.wait(1.0)
            busy = self._busy() & set(names)
        return busy

    def _busy(self) -> set[str]:
        """Return the adapters with running or waiting requests, from the server's metrics.

        The adapter metric is not updated after the last request, so it counts only if the request counts are above 0.
        """
        under_way, newest, adapters = 0.0, -1.0, ""
        for line in self.server.lines("/metrics"):
            match = _METRIC.fullmatch(line)
            if match is None:
                continue
            name, labels, value = match[1], match[2] or "", float(match[3])
            if name in {"vllm:num_requests_running", "vllm:num_requests_waiting"}:
                under_way += value
            elif name == "vllm:lora_requests_info" and value > newest:
                newest, adapters = value, ",".join(_ADAPTERS.findall(labels))
        return {one.strip() for one in adapters.split(",")} if under_way else set()

    def _versions(self, model: str) -> set[int]:
        parts = (name.rpartition("@") for name in self._loaded())
        numbers = {digits(number, INSTANT_MAX) for of, _, number in parts if of == model}
        return {number for number in numbers if number is not None}

    def _loaded(self) -> dict[str, str]:
        """Return the server's models: name -> the folder it was loaded from, or "". Raises TargetUnreachable."""
        answer = self.server.call("GET", "/v1/models")
        try:
            result = {str(one["id"]): str(one.get("root") or "") for one in answer.document["data"]}
        except (KeyError, TypeError, AttributeError):
            result = {}
        if answer.status != 200 or self.base not in result:
            why = f"the server does not list {self.base}: {answer.status} {answer.text}"
            raise TargetUnreachable(self.folder.name, "read what it serves", why, "Correct option base, or the server")
        return result

    def _point_router(self, model: str, version: int) -> None:
        """Route requests for ``model`` to a version. Raises TargetBusy if the router's table has changed."""
        if self.router is None:
            return
        generation = self.router.call("GET", "/admin/table").document.get("generation")
        if not isinstance(generation, int):
            raise TargetUnreachable(self.folder.name, "read the router's table", "it makes no sense", "Look at it")
        order = {"model": model, "to": f"{model}@{version}", "expected_generation": generation}
        answer = self.router.call("POST", "/admin/point", order)
        if answer.status == 409:
            raise TargetBusy(self.folder.name, "switch the router", "its table was changed meanwhile", "Try again")
        if answer.status != 200:
            raise TargetUnreachable(self.folder.name, "switch the router", answer.text, "Look at the router's log")
