"""JobSpec: what is trained, and what the training needs. This module knows no platform, quota or database.

A key of a job is a field with a rule (:mod:`jobs.nouns.keys`). Files, the command line and the database derive from
these fields.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, get_args

from jobs.nouns import keys
from jobs.nouns.keys import Key, Option, Rule, Wrong, matching, number, one_of, or_off, span
from jobs.nouns.pool import Pool

Role = Literal["job", "main", "manager", "evaluate"]
ROLES: tuple[Role, ...] = get_args(Role)
# Inputs for which the artifact store has only a listing of files: the kind of listing by scheme.
_LISTED = {"hf": "hub", "kaggle-model": "kaggle", "kaggle-dataset": "kaggle"}
LONGEST_SECONDS = 1_800  # default for the longest time of an evaluation
WITHIN_SECONDS = 172_800  # default time from queueing to the end, so long that it may use hours that training leaves
HELD_OUT = "corpus:held-out"  # a test set: the held-out texts of the model's own corpus
_WEEK = 604_800
_ANY_CHECKPOINT = 1e-6  # fraction of the parent's target that its first checkpoint reaches


@dataclass(frozen=True, slots=True)
class Gate:
    """The job may start when ``parent`` has a checkpoint of ``step``, or of ``fraction`` (0 to 1) of its target."""

    parent: Annotated[str, keys.TEXT, Key("job", old="parent")]
    fraction: Annotated[float, keys.FRACTION] = 0.0
    step: Annotated[int | None, number(1, 10**12 - 1, "steps of the parent", whole=True)] = None

    def step_of(self, target_step: int) -> float:
        """Return the step that a parent with this target must have reached."""
        return self.fraction * target_step if self.step is None else self.step

    def words(self) -> str:
        """Return what the job waits for, as text such as ``uff at 50%``."""
        return f"{self.parent} at {f'{self.fraction:.0%}' if self.step is None else f'step {self.step:,}'}"


@dataclass(frozen=True, slots=True)
class Share:
    """The job gets ``percent`` of the device hours of all jobs that share with ``partner``, which gets the rest."""

    partner: Annotated[str, keys.NAME, Key("with")]
    percent: Annotated[float, number(1, 99, "% of the hours of both")]


@dataclass(frozen=True, slots=True)
class StartFrom:
    """The job is initialised from the newest checkpoint of ``parent`` at its first launch.

    ``at`` is how far the parent must be: a fraction of its target above 0, ``newest`` (any checkpoint), ``done``, or
    ``accepted`` (its newest accepted version; any checkpoint if the parent has no gates).
    """

    parent: Annotated[str, keys.TEXT, Key("job")]
    at: Annotated[float | str, keys.START] = "newest"

    @property
    def gate(self) -> Gate:
        """The gate that the job waits for."""
        fractions = {"newest": _ANY_CHECKPOINT, "accepted": _ANY_CHECKPOINT, "done": 1.0}
        return Gate(self.parent, fractions[self.at] if isinstance(self.at, str) else self.at)


@dataclass(frozen=True, slots=True)
class Needs:
    """What a session must have: devices (a range, from which the plan chooses), memory per device, number format.

    ``accelerator`` says which devices the command can use: TPUs only, all devices except TPUs (``gpu``), or all.
    """

    devices_min: Annotated[int, keys.DEVICES, Key("devices"), Option("The number of GPUs it needs.", "--gpus", "N")] = 1
    devices_max: int = 1
    vram_gib: Annotated[
        float, number(0, 10**5, "GiB"), Option("Memory that it needs on each GPU, in GiB.", "--vram-gib")
    ] = 0.0
    dtype: Annotated[str, one_of("there is no such number format", "fp32", "fp16", "bf16", "int8")] = "fp32"
    accelerator: Annotated[
        str,
        one_of("a job runs on devices other than TPUs, on TPUs, or on both", "gpu", "tpu", "any"),
        Option("tpu or any: its command uses JAX or torch_xla, and can run on a TPU. Default: gpu."),
    ] = "gpu"

    def fits(self, pool: Pool) -> bool:
        """Return whether the devices of a pool have the right kind, enough memory, and the number format."""
        of_kind = self.accelerator in {"any", pool.kind}
        return of_kind and self.vram_gib <= pool.vram_gib and self.dtype in pool.dtypes


@dataclass(frozen=True, slots=True)
class Mixture:
    """The training data: the full corpus, plus ``extra_share`` of the data of the ``domain``.

    ``corpus`` is the version, empty until the first launch. The next generation uses a newer version if ``renew`` is
    ``restart``; with ``update``, only after a person updates the job.
    """

    domain: Annotated[str | None, keys.TEXT] = None
    extra_share: Annotated[float, number(0, 1, "of the domain's data")] = 0.0
    corpus: Annotated[
        str, matching("[0-9a-f]{16}", "this is no version of a corpus", "write its 16 characters: schedctl corpus show")
    ] = ""
    renew: Annotated[
        str, one_of("a job takes up another corpus when it is restarted or updated", "restart", "update")
    ] = "restart"


_SPAN = span(60, 30 * 86_400)
_SPAN_OR_OFF = or_off(_SPAN)


@dataclass(frozen=True, slots=True)
class Stall:
    """When a session counts as stalled. None: the daemon derives the limit; 0: the rule is off.

    ``first_progress_seconds``: from the command's start to its first report or checkpoint. ``no_progress_seconds``:
    from one new step to the next. A command that ran ``checkpoint_seconds`` must have saved. ``loss_nan`` limits the
    reports in a row with a loss that is not finite, ``same_error`` the sessions in a row that end with the same error.
    GPUs must not be less busy than the share ``idle_below`` for ``idle_seconds``.
    """

    first_progress_seconds: Annotated[int | None, _SPAN_OR_OFF] = None
    no_progress_seconds: Annotated[int | None, _SPAN_OR_OFF] = None
    checkpoint_seconds: Annotated[int | None, _SPAN_OR_OFF] = None
    loss_nan: Annotated[int, or_off(number(1, 1_000_000, "reports", whole=True))] = 3
    same_error: Annotated[int, or_off(number(2, 1_000, "sessions", whole=True))] = 2
    idle_seconds: Annotated[int, _SPAN_OR_OFF] = 0
    idle_below: Annotated[float, number(0.001, 1, "of the GPUs' time")] = 0.05


_AIM = one_of("this says whether a lower or a higher metric is better", "low", "high")


@dataclass(frozen=True, slots=True)
class StopRule:
    """When the job has learned enough and ends as done at its best checkpoint, before its target step.

    ``metric`` is a metric of its checkpoints; ``aim`` says which direction is better. Training ends when ``patience``
    checkpoints in a row did not improve it by ``least``, or when it reaches ``value`` (0 and None: never), or when
    three forecasts in a row say with the certainty ``forecast`` that the target step will not reach ``value``.
    """

    metric: Annotated[
        str,
        keys.TEXT,
        Option("Stop early when this metric of its checkpoints improves no more.", "--stop-on", "METRIC"),
    ]
    patience: Annotated[
        int, keys.PATIENCE, Option("After so many checkpoints without an improvement. Default: 3.", "--patience", "N")
    ] = 0
    least: Annotated[float, number(0, 10**9)] = 0.0
    value: Annotated[float | None, number(-(10**9), 10**9)] = None
    aim: Annotated[Literal["high", "low"], _AIM] = "low"
    forecast: Annotated[float | None, number(0.5, 0.999)] = None


@dataclass(frozen=True, slots=True)
class Halving:
    """Successive halving of a sweep: ``candidates`` jobs train to the first of ``rungs``, which are steps.

    Of every ``factor`` jobs the best, by ``metric``, trains on to the next rung, and so on. The sweep uses at most
    ``budget_seconds`` of device time (the largest value of its jobs). ``left_at`` is the rung, from 0, at which the job
    left the comparison: others were better, or a person lets it train to the end.
    """

    metric: Annotated[str, keys.TEXT]
    budget_seconds: Annotated[int, span(60, 10 * 365 * 86_400)]
    candidates: Annotated[int, number(2, 1_000, "jobs", whole=True)]
    rungs: Annotated[tuple[int, ...], keys.RUNGS]
    factor: Annotated[int, number(2, 100, whole=True)] = 3
    aim: Annotated[Literal["high", "low"], _AIM] = "low"
    left_at: int | None = None


@dataclass(frozen=True, slots=True)
class Code:
    """The folder in which a job's command runs.

    ``source`` is a folder of this machine; ``revision`` is a git commit, or empty for the present content. The other
    fields are set when the folder is packed: ``digest`` names its files in the artifact store, ``commit`` is the
    checked-out commit (empty without git), ``dirty`` says that the content differs from that commit.
    """

    source: Annotated[str, keys.PATH, Key("repository")]
    revision: Annotated[str, keys.TEXT, Key("commit")] = ""
    digest: str = ""
    commit: str = ""
    dirty: bool = False
    files: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Input:
    """An input of a job; in a session the variable ``SCHED_INPUT_<NAME>`` has its folder.

    ``source`` is a folder of this machine or of a bucket (``s3://``), a repository of the Hub (``hf:``), or
    ``kaggle-model:`` or ``kaggle-dataset:``. The other fields are set when the input is pinned: ``digest`` names its
    files or their listing, ``revision`` is the commit or version. ``at_home``: only the daemon's token may download it,
    so that sessions get it from the artifact store.
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
        """What its digest names: its files (``input``), or a listing of files at ``hub`` or ``kaggle``."""
        return _LISTED.get(self.source.partition(":")[0], "input")


EVALUATE: Literal["evaluate"] = "evaluate"
"""The role of a job that scores a version and does not train."""

TEST_SET = "set"
"""The input name of an evaluation's test set, and its key in a job's definition."""


def _test_set(value: Any) -> Input:
    if not isinstance(value, str) or not value.strip():
        raise Wrong("this must be a file of items, or a folder with one", 'write it like set = "tests/held-out.jsonl"')
    return Input(TEST_SET, value if value == HELD_OUT else keys.inputs({TEST_SET: value})[TEST_SET])


_TEST_SET = Rule(_test_set, lambda test_set: test_set.source, place=True)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """How checkpoints of a model are scored: a command in a single session.

    It is queued when the shares ``at`` of the target are saved (1: all), takes at most ``longest_seconds``, and should
    end ``within_seconds`` after it was queued (None: planned like training). ``test_set`` is pinned like an input, but
    HELD_OUT at each evaluation. An accepted version is promoted automatically or by a ``person``. ``votes`` is a file
    of users' votes on the promoted version: it is rolled back if more than the ``usual`` share is shown to be worse.
    """

    command: Annotated[tuple[str, ...], keys.COMMAND]
    test_set: Annotated[Input, _TEST_SET, Key("set")]
    longest_seconds: Annotated[int, keys.SESSION] = LONGEST_SECONDS
    within_seconds: Annotated[int | None, or_off(_SPAN, None)] = WITHIN_SECONDS
    needs: Needs = Needs()
    pools: Annotated[tuple[str, ...], keys.STRINGS] = ()
    promote: Annotated[
        str, one_of("an accepted version is promoted by itself or by a person", "automatic", "person")
    ] = "automatic"
    at: Annotated[tuple[float, ...], keys.PARTS] = (1.0,)
    votes: Annotated[str, keys.VOTES] = ""
    usual: Annotated[float, keys.SHARE_OF_VOTES] = 0.5


GateKind = Literal["threshold", "better", "no_harm", "not_worse"]
GATE_KINDS: tuple[GateKind, ...] = get_args(GateKind)
_MARGIN = number(-(10**9), 10**9)


@dataclass(frozen=True, slots=True)
class QualityGate:
    """A quality gate on one metric.

    ``threshold``: the mean (``point``), or the cautious end of its interval (``lower``), is at least ``minimum`` or at
    most ``maximum``. The other kinds compare with the promoted version. ``better``: it is shown to be better.
    ``no_harm``: it is not shown to be worse. ``not_worse``: it is shown to be worse by less than ``margin``. For the
    first two, ``margin`` is the smallest difference of interest. ``aim`` says which direction is better. A gate fails
    if more than ``leak_limit`` of the test set was seen in training, unless ``leak`` is ``report``, the default of
    HELD_OUT, which is compared with the corpus when that is built.
    """

    metric: Annotated[
        str,
        matching(
            r"[a-z0-9][a-z0-9_@-]{0,59}(\.[a-z0-9][a-z0-9_-]{0,39})?",
            "a gate names its metric",
            'write metric = "component_atomicity", or "loss.python" for one domain',
        ),
    ]
    kind: Annotated[GateKind, one_of("there is no such kind of gate", *GATE_KINDS)]
    minimum: Annotated[float | None, _MARGIN] = None
    maximum: Annotated[float | None, _MARGIN] = None
    by: Annotated[
        Literal["point", "lower"],
        one_of("this says whether the mean counts or the cautious end of its interval", "point", "lower"),
    ] = "point"
    margin: Annotated[float, _MARGIN] = 0.0
    aim: Annotated[Literal["high", "low"], _AIM] = "high"
    leak: Annotated[
        Literal["", "refuse", "report"],
        one_of("this says what follows when items were seen in training", "refuse", "report"),
    ] = ""
    leak_limit: Annotated[float, number(0, 1, "of the test set")] = 0.01

    @property
    def compares(self) -> bool:
        """Whether the gate needs a promoted version to compare with."""
        return self.kind != "threshold"


@dataclass(frozen=True, slots=True)
class Requirements:
    """The packages that a job's command imports and that an image may lack.

    ``source`` is the file that lists them. The other fields are set when they are locked: ``digest`` names the lock in
    the artifact store, ``targets`` has its Pythons and platforms, ``packages`` is their largest number. Sessions fetch
    at most ``fetched_bytes``, and ``image_bytes`` more if the image's packages do not satisfy the lock, the largest of
    which is ``image_largest``; 0 if sizes are unknown.
    """

    source: str
    digest: str = ""
    targets: tuple[str, ...] = ()
    packages: int = 0
    fetched_bytes: int = field(default=0, compare=False)  # reported; not part of the identity
    image_bytes: int = field(default=0, compare=False)
    image_largest: str = field(default="", compare=False)


def _source(kind: type[Code] | type[Requirements], why: str, remedy: str) -> Rule:
    """Return the rule of a path, which makes a ``kind``; an empty path means None."""
    text = matching("(?s).*", why, remedy)
    return Rule(lambda value: kind(text.read(value)) if value != "" else None, _source_table, place=True)


def _source_table(thing: Code | Requirements | None) -> Any:
    if isinstance(thing, Code) and thing.revision:
        return {"repository": thing.source, "commit": thing.revision}
    return thing and thing.source


def _inputs(value: Any) -> tuple[Input, ...]:
    return tuple(Input(name, source) for name, source in sorted(keys.inputs(value).items()))


_CODE = _source(Code, "this must be a folder, or a repository and a commit", 'write it like code = "."')
_INPUTS = Rule(_inputs, lambda inputs: {each.name: each.source for each in inputs}, place=True)
_REQUIREMENTS = _source(
    Requirements, "this must be a file that asks for packages", 'write it like requirements = "requirements.txt"'
)


@dataclass(frozen=True, slots=True)
class JobSpec:
    """The definition of one job.

    ``weight`` is the value of one productive hour relative to other jobs. ``steps_per_hour`` is an estimate for the
    reference device, ``device_speedup`` of the speed-up of n devices (index n - 1) over one; measurements replace
    both. The session replaces ``{python}`` and ``{payload}`` in ``command``.
    """

    name: Annotated[str, keys.NAME, Option("Name of the job. Default for a script: that of its folder.")]
    role: Annotated[
        Role, one_of("there is no such role", *ROLES), Option("main or manager, in a family of models. Default: job.")
    ]
    command: Annotated[tuple[str, ...], keys.COMMAND, Option("Training command, as one would type it in a shell.")]
    target_step: Annotated[int, keys.STEPS, Option("Train up to this step.")]
    steps_per_hour: Annotated[
        float, number(0.01, 10**9, "steps an hour"), Option("An estimate of its speed, until it is measured.")
    ]
    weight: Annotated[
        float,
        number(0.001, 10**6),
        Key("priority", old="weight"),
        Option("Value of one training hour relative to other jobs, which have 1."),
    ] = 1.0
    needs: Needs = Needs()
    mixture: Mixture | None = None  # None: no corpus at all
    gate: Annotated[Gate | None, Key("after", old="gate")] = None
    start_from: StartFrom | None = None  # if it is set, its gate replaces ``gate``
    share: Share | None = None  # its share of the hours that it has together with another job
    pools: Annotated[
        tuple[str, ...], keys.STRINGS, Option("A pool it may use; may be repeated. Default: any.", "--pool", "POOL")
    ] = ()
    seed: Annotated[int, keys.SEED] = 0
    setup_seconds: Annotated[int, span(0, _WEEK)] = 600
    checkpoint_seconds: Annotated[int, span(0, _WEEK)] = 60
    device_speedup: Annotated[tuple[float, ...], keys.SPEEDUP] = (1.0,)
    environment: Annotated[
        Mapping[str, str],
        keys.ENVIRONMENT,
        Option("An environment variable of its command; may be repeated.", "--env", "KEY=VALUE"),
    ] = field(default_factory=dict)
    not_before: Annotated[int | None, keys.INSTANT, Option("Start no earlier than this.")] = None
    deadline: Annotated[int | None, keys.INSTANT, Option("Finish before, 2026-12-01T09:00:00Z.")] = None
    stall: Stall = Stall()
    stop: StopRule | None = None  # None: it trains to its target step
    code: Annotated[  # None: the command starts in an empty folder
        Code | None, _CODE, Option("The folder its command runs in, kept as it is now.", metavar="DIR")
    ] = None
    inputs: Annotated[
        tuple[Input, ...],
        _INPUTS,
        Option("A folder or hf:ORG/NAME@REVISION that it reads; may be repeated.", "--input", "NAME=SOURCE"),
    ] = ()
    requirements: Annotated[  # None: the image's own packages
        Requirements | None,
        _REQUIREMENTS,
        Option("The packages it needs. Default: requirements.txt of a script's folder.", metavar="FILE"),
    ] = None
    # A container image, on platforms where a launch can choose it (SageMaker); empty: the pool's image.
    image: Annotated[
        str,
        matching(
            "([A-Za-z0-9][!-~]{0,254})?",
            "this must be a container image",
            'write it like "123456789012.dkr.ecr.us-east-1.amazonaws.com/mine:1-py312" or "sdk:pytorch:2.10"',
        ),
    ] = ""
    image_python: Annotated[  # empty: as in the image's name
        str, matching(r"(?a)(3\.\d{1,2})?", "this is no version of Python", 'write it like "3.12"')
    ] = ""
    secrets: Annotated[  # names of variables; the daemon or the platform provides the values
        tuple[str, ...], keys.SECRETS, Option("A secret that its sessions get; may be repeated.", "--secret", "NAME")
    ] = ()
    budget_seconds: Annotated[  # None: only quotas limit its hours
        int | None,
        span(60, 10 * 365 * 86_400),
        Option("Device hours that it may use, or all jobs of a --halving sweep, such as 12h.", "--budget", "TIME"),
    ] = None
    agent: str = ""  # the coding agent that added the job; empty: a person did
    halving: Halving | None = None  # None: it trains to its target step, however the other jobs of its sweep do
    sweep: Annotated[str, keys.NAME] = ""  # the sweep that it belongs to; lists show a sweep as one row
    expects: Annotated[str, keys.CYCLE] = ""  # when the next generation is due; empty: learned from the queue
    whole: Annotated[  # True: it has no checkpoints, and its only step is the whole run in one session
        bool,
        Rule(keys.SESSION.read, lambda whole: whole or None),
        Option(
            "Run it in one session that takes at most so long, such as 3h; it cannot resume.",
            "--max-time --whole",
            "TIME",
        ),
    ] = False
    evaluation: Evaluation | None = None  # None: it is not evaluated
    gates: tuple[QualityGate, ...] = ()  # at least one if it has an evaluation
