"""Parse launch.json: the lanes of this session and everything that they need."""

import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

from ..bounds import read_json
from ..clock import Clock
from ..store.transport import DirectoryTransport, Transport
from .ending import StallLimits
from .meter import CLOSING
from .secret_values import SecretStore

FORMAT = 1
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class BadLaunch(Exception):
    """launch.json cannot be read or lacks a required field."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"{path}: {why}; the daemon that wrote it and this payload must both use format {FORMAT}")


class Packages(NamedTuple):
    """Packages of a lane: folders of the lock and of the wheels ("": from an index), and the platform ``target``."""

    lock: str
    target: str
    wheels: str


class LaneOrder(NamedTuple):
    """The lane of one job in the session. Seconds are scheduled; ``restore`` has keys of manifests, newest first.

    ``checkpoint_seconds`` is the expected duration of a checkpoint. ``closing_seconds`` is reserved for the last one.
    ``data`` is the folder of the training data.
    """

    lane: int
    job: str
    attempt: int
    devices: tuple[int, ...]
    seed: int
    target_step: int
    command: tuple[str, ...]
    environment: Mapping[str, str]
    data: str
    setup_seconds: float
    checkpoint_seconds: float
    closing_seconds: float
    restore: tuple[str, ...]
    limits: StallLimits
    code: str = ""  # folder of the job's code in the store; empty: none
    trees: Mapping[str, str] = {}  # other folders of the store that the job needs, by purpose
    whole: bool = False  # a job without checkpoints: its output becomes the checkpoint of its only step
    parent: str = ""  # manifest of another job, to initialise from if nothing is restored; empty: none
    packages: Packages | None = None
    secrets: tuple[str, ...] = ()  # names of secrets, which become variables
    nodes: "Nodes | None" = None  # None: the command runs on the agent's node


class Chain(NamedTuple):
    """How an ended lane waits for the next job: longest wait, and least time left for a job, in scheduled seconds."""

    wait_seconds: float
    least_seconds: float
    free: tuple[tuple[int, tuple[int, ...]], ...] = ()  # (number of a future lane, its unused devices)


class Devices(NamedTuple):
    """The accelerators that the session must have."""

    number: int
    name: str


class Launch(NamedTuple):
    """One session. Instants are scheduled seconds UTC, spans are scheduled seconds."""

    run: str
    clock: Clock
    started_at: float
    deadline: float
    stop_margin_seconds: float
    heartbeat_seconds: float
    grace_seconds: float
    mtbf_seconds: float
    folder: Path  # of launch.json
    work_dir: Path
    cache: Path  # files that several sessions need
    mounts: tuple[Path, ...]  # where the platform mounts its own inputs
    store: Mapping[str, Any]
    expected_devices: Devices | None
    lanes: tuple[LaneOrder, ...]
    secret_store: SecretStore | None = None  # None: the secrets are passed to the session
    secrets: Mapping[str, str] = {}  # values passed to the session, for all lanes; never in the document
    chain: Chain | None = None  # None: the session ends with its lanes
    document: Mapping[str, Any] = {}  # the parsed document

    @property
    def closing_at(self) -> float:
        """The instant by which the last checkpoint must be published."""
        return self.deadline - self.stop_margin_seconds

    def lane_dir(self, lane: LaneOrder) -> Path:
        """Return the lane's scratch folder."""
        return self.work_dir / f"lane-{lane.lane}"

    @property
    def free_lanes(self) -> list[LaneOrder]:
        """Placeholder lanes without a job for unused devices; other jobs may continue after them."""
        free = self.chain.free if self.chain else ()
        return [self.lanes[0]._replace(lane=lane, job="", devices=devices) for lane, devices in free]

    def transport(self) -> Transport:
        """Open the store. Raises KeyError, TypeError and ValueError for an invalid address."""
        match self.store["kind"]:
            case "directory":
                path = self.store.get("given")
                return DirectoryTransport(self.folder / self.store["root"], self.folder / path if path else None)
            case "presigned":
                # Imported here because it loads the HTTP client, which sessions with a folder as store do not need.
                from ..store.presigned import PresignedTransport

                return PresignedTransport(self.store, self.work_dir / "data")
            case kind:
                raise ValueError(f"store kind {kind!r} is unknown")


def read_launch(path: Path) -> Launch:
    """Return the session that launch.json describes. Raises BadLaunch with the reason."""
    try:
        document = json.loads(path.read_bytes())
        if document["format"] != FORMAT:
            raise BadLaunch(path, f"format {document['format']!r}")
        return _launch(document, path.resolve().parent)
    except OSError as error:
        raise BadLaunch(path, f"cannot be read: {error.strerror}") from None
    except KeyError as error:
        raise BadLaunch(path, f"field {error} is missing") from None
    except (ValueError, TypeError, AttributeError) as error:
        raise BadLaunch(path, f"not a launch document: {error}") from None


def read_order(data: bytes, launch: Launch, before: LaneOrder) -> Launch | None:
    """Return the launch document of the lane that continues after ``before``, None if none does. Raises as ``_fit``."""
    order = read_json(data)
    if (order["format"], order["run"], order["after"]) != (FORMAT, launch.run, before.lane):
        raise ValueError("it is an order of another lane or format")
    if order["lane"] is None:
        return None
    entry = {**order["lane"], "devices": before.devices[: len(order["lane"]["devices"])]}
    session = {**launch.document, "lanes": [entry], "store": order["store"], "started_at": None}
    following = _launch(session, launch.folder)
    if following.lanes[0].lane <= before.lane:
        raise ValueError(f"lane {following.lanes[0].lane} cannot continue lane {before.lane}")
    return following._replace(secrets=launch.secrets)


def _launch(document: Mapping[str, Any], folder: Path) -> Launch:
    clock = Clock(**{name: float(document["clock"][name]) for name in ("epoch", "origin", "scale")})
    if clock.scale <= 0:
        raise ValueError("clock.scale must be above 0")
    devices, started_at = document.get("expected_devices"), document.get("started_at")
    lanes = tuple(_lane(entry) for entry in document["lanes"])
    if min(float(document[name]) for name in ("mtbf_seconds", "grace_seconds", "stop_margin_seconds")) <= 0:
        raise ValueError("mtbf_seconds, grace_seconds and stop_margin_seconds must be above 0")
    if not lanes or len({lane.lane for lane in lanes}) != len(lanes):
        raise ValueError("lanes must be a list that is not empty, with distinct indexes")
    values = {
        **document,
        "run": _name(document["run"]),
        "started_at": clock.now() if started_at is None else started_at,
        "folder": folder,
        "work_dir": folder / document["work_dir"],
        "cache": folder / (document.get("cache") or f"{document['work_dir']}/cache"),
        "mounts": document.get("mounts") or (),
        "expected_devices": devices and {**devices, "number": devices["count"]},
        "lanes": (),
        "secrets": None,
        "document": document,
    }
    launch: Launch = _fit(Launch, values)._replace(lanes=lanes)
    store = launch.secret_store
    if store is not None and store.kind not in {"ssm", "secretsmanager"}:
        raise ValueError(f"the kind {store.kind!r} of the secret store is unknown")
    launch.transport()  # an invalid store address fails here, once, instead of in every lane
    return launch


def _lane(entry: dict[str, Any]) -> LaneOrder:
    closing_seconds = entry.get("closing_seconds", CLOSING * float(entry["checkpoint_seconds"]))
    renamed = {"lane": entry["index"], "job": _name(entry["job"]), "closing_seconds": closing_seconds}
    nodes, limits = read_nodes(entry.get("nodes")), entry.get("stall") or {}
    lane: LaneOrder = _fit(LaneOrder, {**entry, **renamed, "limits": limits, "nodes": None})._replace(nodes=nodes)
    if not lane.command:
        raise ValueError("command is empty")
    return lane


def _fit(kind: Any, value: Any) -> Any:
    """Convert a JSON value to ``kind``, recursively; null means the default. Raises KeyError, TypeError, ValueError."""
    origin, parts = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    if origin is UnionType:
        return None if value is None else _fit(parts[0], value)
    if origin is tuple and parts[-1] is ...:
        return tuple(_fit(parts[0], each) for each in value)
    if origin is tuple:
        return tuple(_fit(part, each) for part, each in zip(parts, value, strict=True))
    if origin is not None:
        return {_fit(parts[0], name): _fit(parts[1], each) for name, each in value.items()}
    if not hasattr(kind, "_fields"):
        return kind(value)
    hints = get_type_hints(kind)
    absent = {name for name in kind._field_defaults if value.get(name) is None}
    return kind(**{name: _fit(hints[name], value[name]) for name in kind._fields if name not in absent})


def _name(value: Any) -> str:
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise ValueError(f"{value!r} is not a name")
    return value


# Lanes on several nodes: the platform's launcher starts the command once on each node.
_STARTER = Path(__file__).resolve().parents[1] / "trainers" / "nodes.py"


class Nodes(NamedTuple):
    """The nodes on which a lane's command runs.

    ``launcher`` is the command line that starts a program once per node; ``variable`` holds the node's number there.
    ``devices`` has the lane's devices by node, as indexes into the session's devices. The processes meet at ``address``
    and ``port``, on the first node; ``near`` says that the agent runs on the first node.
    """

    launcher: tuple[str, ...]
    variable: str
    devices: tuple[tuple[int, ...], ...]
    address: str
    port: int
    near: bool


def read_nodes(entry: Any) -> Nodes | None:
    """Return the nodes of a lane; None if it runs on the agent's node. Raises KeyError, TypeError and ValueError."""
    if not entry:
        return None
    nodes: Nodes = _fit(Nodes, entry)
    if not nodes.devices or not all(nodes.devices) or not nodes.launcher:
        raise ValueError("nodes must have a launcher, and at least one device each")
    return nodes


def spread(words: Sequence[str], nodes: Nodes) -> tuple[list[str], Mapping[str, str]]:
    """Return the command line that starts a command on all its nodes, and the variables that it needs."""
    data = {
        "SCHED_NODES": str(len(nodes.devices)),
        "SCHED_NODE_VARIABLE": nodes.variable,
        "SCHED_NODE_DEVICES": ";".join(",".join(map(str, each)) for each in nodes.devices),
        "SCHED_RENDEZVOUS": f"{nodes.address}:{nodes.port}",
        "SCHED_NODES_NEAR": "1" if nodes.near else "",
    }
    return [sys.executable, str(_STARTER), "all", *nodes.launcher, "--", *words], data
