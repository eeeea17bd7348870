"""JobSpec: what is trained, and what it needs. Knows no platform, quota or database."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

Role = Literal["job", "main", "manager", "evaluate"]
ROLES: tuple[Role, ...] = get_args(Role)
START_WORDS = ("newest", "done", "accepted")
# Whose list of files the artifact store has for an input; of everything else it has the files.
_LISTED = {"hf": "hub", "kaggle-model": "kaggle", "kaggle-dataset": "kaggle"}
RENEW_WORDS = ("restart", "update")
LONGEST_SECONDS = 1_800  # of an evaluation, unless it says another time
WITHIN_SECONDS = 172_800  # likewise, from when it is queued: long enough for hours that training leaves
HELD_OUT = "corpus:held-out"  # as a test set: what the model's own corpus keeps out of training
PROMOTE_WORDS = ("automatic", "person")
_ANY_CHECKPOINT = 1e-6  # of the parent's target: its first checkpoint, whose step is at least 1


@dataclass(frozen=True, slots=True)
class Gate:
    """The job may start once ``parent`` has checkpointed ``fraction`` (0 to 1) of its target steps, or ``step``."""

    parent: str
    fraction: float
    step: int | None = None

    def step_of(self, target_step: int) -> float:
        """Return the step that a parent with this target must have reached."""
        return self.fraction * target_step if self.step is None else self.step

    def words(self) -> str:
        """Return what the job waits for."""
        return f"{self.parent} at {f'{self.fraction:.0%}' if self.step is None else f'step {self.step:,}'}"


@dataclass(frozen=True, slots=True)
class Share:
    """Of the device hours that the job and those it shares with have together, ``percent`` are its own.

    ``partner`` keeps what all who share with it leave. Counted from when the last of them was added.
    """

    partner: str
    percent: float


@dataclass(frozen=True, slots=True)
class StartFrom:
    """The job begins with the weights of the job ``parent``, whose newest checkpoint counts when it is first launched.

    ``at`` says how far the parent must be by then: a fraction of its target above 0, ``newest`` (any checkpoint),
    ``done``, or ``accepted``: its newest accepted version, or any checkpoint where the parent has no gates.
    """

    parent: str
    at: float | str = "newest"

    @property
    def gate(self) -> Gate:
        """What the job waits for."""
        fractions = {"newest": _ANY_CHECKPOINT, "accepted": _ANY_CHECKPOINT, "done": 1.0}
        return Gate(self.parent, fractions[self.at] if isinstance(self.at, str) else self.at)


@dataclass(frozen=True, slots=True)
class Needs:
    """What a session must offer: devices (a range: the plan picks), memory per device, a number format."""

    devices_min: int = 1
    devices_max: int = 1
    vram_gib: float = 0.0
    dtype: str = "fp32"


@dataclass(frozen=True, slots=True)
class Mixture:
    """The full corpus; ``extra_share`` adds that share of ``domain`` data on top.

    ``corpus`` is the version that the job trains on, empty until its first launch. Its next generation takes up another
    when ``renew`` is ``restart``; when that is ``update``, only a person's update does.
    """

    domain: str | None = None
    extra_share: float = 0.0
    corpus: str = ""
    renew: str = "restart"


@dataclass(frozen=True, slots=True)
class Stall:
    """When a session of the job makes no progress. None: worked out from what is known; zero: never.

    ``first_progress_seconds`` pass from the command's start to its first report or checkpoint, ``no_progress_seconds``
    from one new step to the next. A session whose command ran ``checkpoint_seconds`` must have saved. ``loss_nan``
    reports in a row may not have a loss that is no number, nor ``same_error`` sessions in a row end in the same error.
    """

    first_progress_seconds: int | None = None
    no_progress_seconds: int | None = None
    checkpoint_seconds: int | None = None
    loss_nan: int = 3
    same_error: int = 2


@dataclass(frozen=True, slots=True)
class StopRule:
    """When the job has learned enough: it then ends as done at its best checkpoint, before its target step.

    ``metric`` is one that its checkpoints carry, and ``aim`` says where good is. Training ends when ``patience``
    checkpoints in a row did not improve it by at least ``least``, or when it reaches ``value``; 0 and None: never.
    """

    metric: str
    patience: int = 0
    least: float = 0.0
    value: float | None = None
    aim: Literal["high", "low"] = "low"


@dataclass(frozen=True, slots=True)
class Code:
    """The folder in which a job's command runs.

    ``source`` is a folder of this machine, of which git's commit ``revision`` is meant, or, if that is empty, what
    stands in it. The rest is known once it was taken: ``digest`` names its files in the artifact store, ``commit`` is
    the one it stood on (empty without git), from which a ``dirty`` one differs.
    """

    source: str
    revision: str = ""
    digest: str = ""
    commit: str = ""
    dirty: bool = False
    files: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Input:
    """What a job is given besides its code, in a folder that the variable ``SCHED_INPUT_<NAME>`` names.

    ``source`` is a folder of this machine, ``s3://`` and one of a bucket, ``hf:`` and a repository of the Hub, or
    ``kaggle-model:`` or ``kaggle-dataset:`` and what Kaggle calls it. The rest is known once it was taken: ``digest``
    names its files or their list, ``revision`` is the commit of a repository or the version at Kaggle, and what is
    ``at_home`` can only be fetched with the daemon's own token, so sessions get it from the artifact store.
    """

    name: str
    source: str
    digest: str = ""
    revision: str = ""
    files: int = 0
    bytes: int = 0
    at_home: bool = False

    @property
    def kind(self) -> str:
        """What its digest names: its files (``input``), or the list of those that ``hub`` or ``kaggle`` has."""
        return _LISTED.get(self.source.partition(":")[0], "input")


EVALUATE: Literal["evaluate"] = "evaluate"
"""The role of a job that scores a version; it trains nothing."""

TEST_SET = "set"
"""By this name an evaluation's session is given its test set, and people name it."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """How checkpoints of a model are scored: a command in a session of its own, which is run whole.

    It is queued by itself when so much of the target is saved as ``at`` names (1: all of it), takes ``longest_seconds``
    at most, and shall be over ``within_seconds`` after it was queued; with None it is planned as training is.
    ``test_set`` is where its items come from; what they are is pinned like an input, or with each evaluation where it
    is HELD_OUT. An accepted version is promoted by itself (``automatic``) or by a ``person``. ``votes``, if said, is a
    file of what users say of the promoted version, which is taken back when more than the ``usual`` share of them is
    shown to be worse.
    """

    command: tuple[str, ...]
    test_set: Input
    longest_seconds: int = LONGEST_SECONDS
    within_seconds: int | None = WITHIN_SECONDS
    needs: Needs = Needs()
    pools: tuple[str, ...] = ()
    promote: str = "automatic"
    at: tuple[float, ...] = (1.0,)
    votes: str = ""
    usual: float = 0.5


GateKind = Literal["threshold", "better", "no_harm", "not_worse"]
GATE_KINDS: tuple[GateKind, ...] = get_args(GateKind)


@dataclass(frozen=True, slots=True)
class QualityGate:
    """One gate on one metric.

    ``threshold`` asks the version alone for at least ``minimum`` or at most ``maximum``, of its mean (``point``) or of
    the cautious end of its interval (``lower``). The others compare it with the promoted version: ``better`` wants it
    shown to be better, ``no_harm`` not shown to be worse, ``not_worse`` shown to be worse by less than ``margin``. For
    ``better`` and ``no_harm`` a ``margin`` is the smallest difference worth knowing. ``aim`` says where good is.
    """

    metric: str
    kind: GateKind
    minimum: float | None = None
    maximum: float | None = None
    by: Literal["point", "lower"] = "point"
    margin: float = 0.0
    aim: Literal["high", "low"] = "high"

    @property
    def compares(self) -> bool:
        """Return whether it needs a promoted version."""
        return self.kind != "threshold"

    def document(self) -> dict[str, Any]:
        """Return it as a table says it, without what is as usual; ``read_gates`` reads it back."""
        result: dict[str, Any] = {"metric": self.metric, "kind": self.kind}
        for key, usual in (("minimum", None), ("maximum", None), ("by", "point"), ("margin", 0.0), ("aim", "high")):
            if getattr(self, key) != usual:
                result[key] = getattr(self, key)
        return result


@dataclass(frozen=True, slots=True)
class Requirements:
    """The packages that a job's command imports and that a platform's image may lack.

    ``source`` is the file that asks for them. The rest is known once they were locked: ``digest`` names the lock in
    the artifact store, ``targets`` the Pythons and platforms it is for, ``packages`` how many it has for the largest.
    Sessions fetch ``fetched_bytes`` at most, and ``image_bytes`` more where the image's own packages do not satisfy it,
    the largest of which is ``image_largest``; zero where the index or the tool tells no sizes.
    """

    source: str
    digest: str = ""
    targets: tuple[str, ...] = ()
    packages: int = 0
    fetched_bytes: int = field(default=0, compare=False)  # told, and no part of which packages these are
    image_bytes: int = field(default=0, compare=False)
    image_largest: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class JobSpec:
    """The definition of one job.

    ``weight`` is the worth of one useful hour relative to other jobs. ``steps_per_hour`` is the prior on the
    reference device, ``device_speedup`` the prior gain of n devices (index n - 1) over one; both are replaced by
    measurements. ``{python}`` and ``{payload}`` in ``command`` are filled in where the job runs.
    """

    name: str
    role: Role
    command: tuple[str, ...]
    target_step: int
    steps_per_hour: float
    weight: float = 1.0
    needs: Needs = Needs()
    mixture: Mixture | None = None  # None: no corpus at all
    gate: Gate | None = None
    start_from: StartFrom | None = None  # then the gate is its gate
    share: Share | None = None  # of the hours that it has together with another job
    pools: tuple[str, ...] = ()  # empty: any pool
    seed: int = 0
    setup_seconds: int = 600
    checkpoint_seconds: int = 60
    device_speedup: tuple[float, ...] = (1.0,)
    environment: Mapping[str, str] = field(default_factory=dict)
    not_before: int | None = None  # UTC seconds
    deadline: int | None = None  # UTC seconds
    stall: Stall = Stall()
    stop: StopRule | None = None  # None: it trains to its target step
    code: Code | None = None  # None: the command starts in an empty folder
    inputs: tuple[Input, ...] = ()
    requirements: Requirements | None = None  # None: the image's own packages
    image: str = ""  # where the platform runs containers that a launch can choose (SageMaker); empty: the pool's
    image_python: str = ""  # such as 3.12; empty: what the image's name tells
    secrets: tuple[str, ...] = ()  # names of variables; the values are the daemon's or the platform's to give
    sweep: str = ""  # what it has in common with jobs that differ in a few values; a list shows them as one
    expects: str = ""  # when the next generation comes: "thursday 09:00", "12d"; empty: learned from the queue
    whole: bool = False  # it knows nothing of checkpoints: its one step is the whole run, in one session
    evaluation: Evaluation | None = None  # None: it is not evaluated
    gates: tuple[QualityGate, ...] = ()  # with an evaluation at least one
