"""Models in the daemon: it creates versions, evaluates and judges them, and watches the votes of users on them."""

import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from sqlalchemy import Connection

from jobs.payload.bounded_file import open_regular
from jobs.payload.scorers.items import BadItems
from jobs.payload.store.manifest import Manifest, blob_key, sha256_file, split_key
from jobs.payload.store.tree import BadListing
from jobs.problem import Refusal
from jobs.scores import SCORES_BYTES_MAX, Scores, ScoresError, Votes, read_scores
from jobs.spec import TEST_SET, JobSpec
from jobs.spec import Evaluation as Wanted
from platforms.artifacts.base import BlobStore, Missing, StoreError
from scheduler.core.job import Cancelled, Done, Failed, Held, Queued
from scheduler.core.version import OF_VERDICT
from scheduler.judge.evidence import WatchResult, watch
from scheduler.judge.gates import Judgement, judge
from scheduler.service.faults.isolation import gather_apart, why
from scheduler.service.outside.ports import Ports
from scheduler.service.versions.promotion import evaluate, gates_digest, promote_by_itself, rollback, version_of
from scheduler.store import checkpoints, conditions, evaluations, events, jobs, versions
from scheduler.store.errors import Refused, Stale, StoreFailure
from scheduler.store.evaluations import EvaluationJob
from scheduler.store.jobs import JobRecord
from scheduler.store.versions import Version

SCORES = "output/scores.jsonl"  # the path of the scores in the output of an evaluation's job
_Saved = tuple[str | None, Wanted | None, int, int]


class NoScores(Exception):
    """An evaluation has no usable scores; the message says what is wrong and what to do."""


class ModelSync:
    """Creates, evaluates and judges versions. Its state (newest event, work in progress) may be lost in a restart."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._newest_event = -1
        self._has_pending = False
        self._not_due: dict[str, _Saved] = {}  # by model, the checkpoint that was not due for a version
        self._refused: dict[str, str] = {}  # by model, the reported reason why no version could be evaluated

    def sync(self, now: int) -> None:
        """Create versions, queue evaluations and, in the background, judge evaluations with scores."""
        ports = self._ports
        with ports.database.read() as tx:
            newest = events.newest_id(tx)
            if newest == self._newest_event and not self._has_pending:
                return
            trained = self._due_models(tx)
            open_evaluations = evaluations.open_ones(tx)
        self._newest_event = newest
        begin = {job: partial(_create_version, ports, job, now) for job in trained}
        answers: dict[str, str | None] = gather_apart(ports, "version", "version.failed", begin, None, "job")
        self._log_refusals({job: refused for job, refused in answers.items() if refused is not None})
        if any(answers.get(job) is None for job in begin):
            self._newest_event = -1  # some work failed or continues, so the next cycle tries again
        cases = {case.version.name: case for one in open_evaluations if (case := self._case(one, now)) is not None}
        work = {name: partial(_judge_case, ports, case) for name, case in cases.items()}
        done = gather_apart(ports, "verdict", "verdict.waits", work, False, "version")  # noqa: FBT003 - the answer
        self._has_pending = bool(cases.keys() - done.keys()) or any(not answer for answer in done.values())

    def _due_models(self, tx: Connection) -> list[str]:
        """Return the models with a saved step that is due for a version; each is checked once for every saved step."""
        due, not_due = [], {}
        for record in jobs.with_evaluation(tx):
            name, spec = record.spec.name, record.spec
            saved = (record.checkpoint, spec.evaluation, spec.target_step, record.fenced_attempt)
            newest = checkpoints.find(tx, record.checkpoint or "") if self._not_due.get(name) != saved else None
            if newest is not None and _is_due(tx, record, newest.manifest):
                due.append(name)
            else:
                not_due[name] = saved
        self._not_due = not_due
        return due

    def _log_refusals(self, answers: Mapping[str, str]) -> None:
        """Log, once, why a model cannot be evaluated; it is tried again after the next event."""
        for job, refused in answers.items():
            if refused and self._refused.get(job) != refused:
                following = f"schedctl models evaluate {job}"
                self._ports.log.warning("version.not_evaluated", job=job, why=refused, next=following)
            self._refused[job] = refused

    def _case(self, evaluation: EvaluationJob, now: int) -> "JudgedCase | None":
        """Return the case of an evaluation that can be judged now, or None; end it if it will never have scores."""
        ports = self._ports
        with ports.database.read() as tx:
            try:
                if broken := _why_hopeless(tx, evaluation):
                    raise NoScores(broken)
                record = jobs.find(tx, evaluation.job)
                if record is None or not isinstance(record.state, Done):
                    return None
                case = case_of(tx, evaluation)
            except NoScores as error:
                problem = str(error)
            except (StoreFailure, OSError):
                raise
            except Exception as error:  # noqa: BLE001 - an error in one evaluation must not stop the others
                problem = why(error)
            else:
                if case is None:
                    self._score_promoted(evaluation, now)
                return case
        end_without_verdict(ports, evaluation, problem)
        return None

    def _score_promoted(self, evaluation: EvaluationJob, now: int) -> None:
        """Queue an evaluation of the promoted version with the same set and scorer, once."""
        ports = self._ports
        try:
            with ports.write() as tx:
                in_force = versions.in_force(tx, evaluation.model)
                if in_force is not None and newest_scored(tx, in_force, evaluation) is None:
                    scored = jobs.find(tx, evaluation.job)
                    test_set = next(one for one in scored.spec.inputs if one.name == TEST_SET) if scored else None
                    if test_set is not None:
                        model = jobs.get(tx, evaluation.model)
                        evaluate(tx, model, in_force, test_set, Path(ports.bundle), now, "daemon")
        except (Refusal, Refused, jobs.UnknownJob) as error:
            ports.log.warning("version.not_evaluated", job=evaluation.model, why=str(error))


def _create_version(ports: Ports, job: str, now: int) -> str:
    """Create a version of a model's checkpoint and queue its evaluation; return why that is impossible, or "".

    Slow and idempotent.
    """
    from jobs.corpus.errors import CorpusError  # imported here, since it loads the corpus code, which slows the start
    from scheduler.service.versions.item_sets import set_for

    try:
        with ports.database.read() as tx:
            spec = jobs.get(tx, job).spec
        delete_at = now + ports.policy.retention.grace_seconds
        test_set = set_for(spec, ports.database, ports.artifacts, ports.corpora, delete_at)
        with ports.write() as tx:
            record = jobs.get(tx, job)
            saved = checkpoints.find(tx, record.checkpoint) if record.checkpoint else None
            if saved is not None and _is_due(tx, record, saved.manifest):
                version = version_of(tx, record, saved.manifest, now, "daemon")
                evaluate(tx, record, version, test_set, Path(ports.bundle), now, "daemon")
    except (Refusal, CorpusError, StoreError, Refused, jobs.UnknownJob) as error:
        return str(error)
    return ""


def _judge_case(ports: Ports, case: "JudgedCase") -> bool:
    """Judge an evaluation; return whether it has ended."""
    judge_and_store(ports, case)
    with ports.database.read() as tx:
        all_evaluations = evaluations.of_job(tx, case.evaluation.job)
    return all_evaluations is None or all_evaluations.state != "open"


def _is_due(tx: Connection, record: JobRecord, newest: Manifest) -> bool:
    """Return whether a checkpoint is due for evaluation: it has passed a planned step without a version."""
    wanted, target = record.spec.evaluation, record.spec.target_step
    passed = [part * target for part in wanted.at if part * target <= newest.step] if wanted else []
    if not passed or versions.of_digest(tx, record.spec.name, newest.digest) is not None:
        return False
    judged_steps = [split_key(version.checkpoint) for version in versions.everything(tx, record.spec.name)]
    return not any(key and key[2] > record.fenced_attempt and key[1] >= passed[-1] for key in judged_steps)


def _why_hopeless(tx: Connection, evaluation: EvaluationJob) -> str:
    """Return why an evaluation will never have scores; "" if it may have some."""
    version: Version = versions.get(tx, evaluation.model, evaluation.number)
    record = jobs.find(tx, evaluation.job)
    if record is None or record.removed_at is not None:
        return f"its job {evaluation.job} was removed"
    if isinstance(record.state, Failed):
        return f"its job {evaluation.job} failed: {record.state.message}"
    if isinstance(record.state, Cancelled):
        return f"its job {evaluation.job} was cancelled"
    saved = checkpoints.find(tx, version.checkpoint)
    waits = isinstance(record.state, Queued | Held)
    if waits and (saved is None or saved.state != "good"):
        return f"the checkpoint of {version.name} is damaged"
    return ""


# A verdict is stored once, in one transaction with its consequences.
@dataclass(frozen=True, slots=True)
class JudgedCase:
    """An evaluation to judge: the version, its model's definition, and the promoted version with its scores."""

    evaluation: EvaluationJob
    version: Version
    spec: JobSpec
    in_force: Version | None = None
    compared: EvaluationJob | None = None  # evaluation of the promoted version; None: no gate compares with it


def judge_and_store(ports: Ports, case: JudgedCase) -> None:
    """Read the scores of an evaluation and store the verdict. Slow (minutes) and idempotent.

    Raises StoreError if the artifact store does not answer, OSError, and database errors; nothing is stored then.
    """
    try:
        judgement = _judgement(ports, case)
    except NoScores as error:
        end_without_verdict(ports, case.evaluation, str(error))
        return
    except (StoreError, StoreFailure, OSError):
        raise
    except Exception as error:
        ports.log.exception("verdict.failed", version=case.version.name)
        end_without_verdict(ports, case.evaluation, f"its scores cannot be judged: {why(error)}")
        return
    if judgement is not None and judgement.verdict == "error":
        end_without_verdict(ports, case.evaluation, judgement.reason)
        return
    now = ports.clock.now()
    try:
        with ports.write() as tx:
            if judgement is None:
                evaluations.end(tx, case.evaluation, "scored", now)
            else:
                _write(tx, case, judgement, now)
    except Stale as error:  # a person has decided, or another version is promoted now: judged again
        ports.log.info("verdict.stale", version=case.version.name, why=str(error))
        return
    if judgement is not None:
        ports.log.info("version.judged", version=case.version.name, verdict=judgement.verdict, why=judgement.reason)


def end_without_verdict(ports: Ports, evaluation: EvaluationJob, error: str) -> None:
    """Store that an evaluation has no usable scores; the version returns to its state before the evaluation."""
    now = ports.clock.now()
    try:
        with ports.write() as tx:
            evaluations.end(tx, evaluation, "failed", now, error[:1_000])
            version = versions.get(tx, evaluation.model, evaluation.number)
            if version.state == "evaluating":
                versions.move(tx, version, "fail", error[:1_000], now)
    except Stale as stale:
        ports.log.info("verdict.stale", version=evaluation.version, why=str(stale))
        return
    ports.log.error(
        "evaluation.failed", version=evaluation.version, why=error, next=f"schedctl models evaluate {evaluation.model}"
    )


def _judgement(ports: Ports, case: JudgedCase) -> Judgement | None:
    """Return the judgement by the quality gates; None if the version was scored only to compare others with it."""
    scores = scores_of(ports, case.evaluation, case.version)
    if case.version.state != "evaluating":
        return None
    before = None
    if case.compared is not None and case.in_force is not None:
        try:
            before = scores_of(ports, case.compared, case.in_force)
        except NoScores as error:
            raise NoScores(f"the promoted {case.in_force.name} cannot be compared: {error}") from None
    from scheduler.service.versions.item_sets import leaks_in  # imported here, since it slows the start of the daemon

    return judge(case.spec.gates, scores, before, leaks_in(ports, case.evaluation, case.version))


def _write(tx: Connection, case: JudgedCase, judgement: Judgement, now: int) -> None:
    """Store verdict, evidence, state of the version and, if it is automatic, the promotion. Raises Stale."""
    version, evaluation = case.version, case.evaluation
    in_force = versions.in_force(tx, version.model)
    if in_force != case.in_force:
        raise Stale(f"the promoted version of {version.model}", repr(case.in_force), repr(in_force))
    evaluations.end(tx, evaluation, "scored", now)
    digest = gates_digest(case.spec, evaluation.scorer_digest)
    earlier = evaluations.same_verdict(tx, version, digest, evaluation.set_digest)
    if earlier is not None:  # the gates were changed and changed back, so the verdict is stored already
        why_again = f"the same verdict as before on test set {earlier.set_digest[:12]}"
        versions.move(tx, version, OF_VERDICT[earlier.verdict], why_again, now)
        return
    evidence = {
        **judgement.document(),
        "in_force": in_force.name if in_force else None,
        "set": case.spec.evaluation.test_set.source if case.spec.evaluation else "",
        "set_uses": evaluations.uses(tx, evaluation.set_digest) + 1,
        "scorer": evaluation.scorer_digest,
    }
    evaluations.add_verdict(tx, evaluation, digest, judgement.verdict, evidence, now)  # type: ignore[arg-type] # no error here
    judged = versions.move(tx, version, OF_VERDICT[judgement.verdict], judgement.reason[:1_000], now)
    wanted = case.spec.evaluation
    if judged.state == "accepted" and wanted is not None and wanted.promote == "automatic":
        promote_by_itself(tx, judged, now)


def newest_scored(tx: Connection, version: Version, like: EvaluationJob) -> EvaluationJob | None:
    """Return the newest evaluation of a version, in any state, with the set and scorer of ``like``."""
    scored = [
        one
        for one in evaluations.of_version(tx, version)
        if (one.set_digest, one.scorer_digest) == (like.set_digest, like.scorer_digest)
    ]
    return scored[-1] if scored else None


def case_of(tx: Connection, evaluation: EvaluationJob) -> JudgedCase | None:
    """Return the case to judge; None if the promoted version must be scored first. Raises NoScores."""
    version = versions.get(tx, evaluation.model, evaluation.number)
    record = jobs.find(tx, evaluation.model)
    if record is None:
        raise NoScores(f"there is no job {evaluation.model}")
    in_force = versions.in_force(tx, evaluation.model)
    case = JudgedCase(evaluation, version, record.spec, in_force)
    compares = version.state == "evaluating" and any(gate.compares for gate in record.spec.gates)
    if in_force is None or in_force.number == version.number or not compares:
        return case
    compared = newest_scored(tx, in_force, evaluation)
    if compared is None or compared.state == "open":
        return None
    if compared.state == "failed":
        raise NoScores(f"the promoted {in_force.name} cannot be compared, its evaluation failed: {compared.error}")
    return JudgedCase(evaluation, version, record.spec, in_force, compared)


# Reading and validating the scores of an evaluation from the artifact store.
def scores_of(ports: Ports, evaluation: EvaluationJob, version: Version) -> Scores:
    """Return the scores of an evaluation. Raises NoScores, and StoreError if the store does not answer."""
    from scheduler.service.versions.item_sets import items_of

    with ports.database.read() as tx:
        record = jobs.find(tx, evaluation.job)
        saved = checkpoints.find(tx, record.checkpoint) if record is not None and record.checkpoint else None
    test_set = next((one for one in record.spec.inputs if one.name == TEST_SET), None) if record else None
    if saved is None or test_set is None:
        raise NoScores(f"{evaluation.job} left no output. See its log: schedctl queue show {evaluation.job}")
    with tempfile.TemporaryDirectory(prefix="schedctl-scores-") as folder:
        scratch = Path(folder)
        try:
            items = items_of(ports, test_set)
            scores = _fetch_scores(ports.artifacts, saved.manifest, scratch / "scores.jsonl")
            with scores.open("rb") as stream:
                expected = {"model": version.model, "checkpoint": version.digest, "test_set": items.digest}
                return read_scores(stream, **expected, items=items.items)
        except (ScoresError, BadItems, BadListing) as error:
            raise NoScores(str(error)) from None


def _fetch_scores(artifacts: BlobStore, manifest: Manifest, target: Path) -> Path:
    component = next((part for part in manifest.components if part.name == SCORES), None)
    if component is None:
        raise NoScores(
            f"{manifest.job} wrote no {Path(SCORES).name}. Let its command leave it in the folder that "
            f"SCHED_OUTPUT_DIR names; see its log: schedctl runs logs {manifest.run}"
        )
    if component.bytes > SCORES_BYTES_MAX:
        raise NoScores(f"its scores have {component.bytes:,} bytes, at most {SCORES_BYTES_MAX:,} are read")
    try:
        artifacts.fetch(blob_key(manifest.job, component.sha256), target)
    except Missing:
        raise NoScores(f"the scores of {manifest.job} are gone from the artifact store. Evaluate it again") from None
    if sha256_file(target) != component.sha256:
        raise NoScores(f"the scores of {manifest.job} are damaged in the artifact store. Evaluate it again")
    return target


# The rollback watch: if votes of users prove that the promoted version is harmful, it is rolled back, once.
#
# Votes are read outside the cycle. A rollback is one transaction, which checks that the watched version is still
# promoted.
ALARM, BLIND = "watch.alarm", conditions.BLIND
_VOTES_EVERY_SECONDS = 60
BY = "daemon"


@dataclass(frozen=True, slots=True)
class Watch:
    """The evidence of the votes on a version; ``usual`` is the share of worse votes that is normal, without harm.

    ``digest`` is the SHA-256 of the lines read from ``source``.
    """

    version: str
    source: str
    usual: float
    watched: WatchResult
    digest: str

    @property
    def alarm(self) -> bool:
        """Return whether the votes have ever proven harm."""
        return self.watched.alarm_at is not None

    @property
    def text(self) -> str:
        """The evidence as text."""
        watched = self.watched
        return f"{watched.worse:,} of {watched.votes:,} votes say that it is worse; the usual share is {self.usual:g}"


@dataclass(frozen=True, slots=True)
class _WatchedVersion:
    """A version to watch, with the file of its votes and the normal share of worse votes."""

    version: Version
    path: str
    usual: float


_Mark = tuple[float, int, int, int]  # the usual share, and inode, size and modification time of a file
_NEVER: _Mark = (0.0, 0, 0, 0)


def read_watch(version: Version, path: Path, usual: float) -> Watch:
    """Return the evidence of a file of votes. Raises VotesError, ValueError for a bad ``usual``, OSError."""
    with open_regular(path) as stream:
        votes = Votes(stream, version.name)
        watched = watch(votes, usual)
    return Watch(version.name, str(path), usual, watched, votes.digest)


def roll_back_by_votes(
    tx: Connection, version: Version, evidence: Watch, now: int, by: str
) -> tuple[Version, Version | None]:
    """Roll a version back because of its votes, and store the evidence. Raises Stale if it is no longer promoted."""
    in_force = versions.in_force(tx, version.model)
    if in_force is None or in_force.number != version.number:
        raise Stale(f"the promoted version of {version.model}", version.name, in_force.name if in_force else "nothing")
    events.append(
        tx,
        ALARM,
        version.name,
        now,
        by,
        why=evidence.text,
        watched=asdict(evidence.watched),
        usual=evidence.usual,
        votes_digest=evidence.digest,
    )
    return rollback(tx, version.model, f"{evidence.text} (votes {evidence.digest[:16]})", now, by)


class Watches:
    """Checks votes once a minute. Its state (files that were read, and their errors) may be lost in a restart."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._again_at = 0
        self._reading: dict[str, _WatchedVersion] = {}
        self._read: dict[str, _Mark] = {}  # by version, the identity of the newest file without an alarm
        self._blind: dict[str, str] = {}

    def poll(self, now: int) -> None:
        """Read the votes on promoted versions, and roll back versions with proven harm."""
        ports = self._ports
        if not self._reading and now >= self._again_at:
            self._again_at = now + _VOTES_EVERY_SECONDS
            with ports.database.read() as tx:
                self._reading = {case.version.name: case for case in _versions_to_watch(tx)}
        work = {name: partial(_read_votes, case, self._read.get(name)) for name, case in self._reading.items()}
        for name, answer in gather_apart(ports, "watch", "watch.unknown", work, None, "version").items():
            case = self._reading.pop(name)
            if answer is None:
                continue
            mark, result = answer
            if isinstance(result, str):
                self._record_blind(name, result, now)
                continue
            self._blind.pop(name, None)
            self._read[name] = mark
            if result is not None and result.alarm:
                self._roll_back(case.version, result, now)

    def _record_blind(self, name: str, why: str, now: int) -> None:
        """Store and log, once, why a version cannot be watched."""
        if self._blind.get(name) != why:
            with self._ports.write() as tx:
                events.append(tx, BLIND, name, now, why=why)
            self._ports.log.warning(BLIND, version=name, why=why, next=f"schedctl models watch {name}")
        self._blind[name] = why

    def _roll_back(self, version: Version, evidence: Watch, now: int) -> None:
        try:
            with self._ports.write() as tx:
                _, back = roll_back_by_votes(tx, version, evidence, now, BY)
        except Stale as error:  # a person has rolled it back or promoted another version
            self._ports.log.info("watch.stale", version=version.name, why=str(error))
            return
        outcome = f"{back.name} is promoted again" if back else f"no version of {version.model} is promoted"
        self._ports.log.error(
            ALARM, version=version.name, why=f"{evidence.text}; {outcome}", next=f"schedctl models show {version.name}"
        )


def _versions_to_watch(tx: Connection) -> list[_WatchedVersion]:
    """Return the promoted versions whose definition names a file of votes.

    A version that a person promotes again after a rollback is not watched, since its old votes would roll it back.
    """
    result = []
    for record in jobs.everything(tx):
        wanted = record.spec.evaluation
        in_force = versions.in_force(tx, record.spec.name) if wanted is not None and wanted.votes else None
        if wanted is None or in_force is None:
            continue
        moves = versions.promotions_of(tx, record.spec.name)
        if not any(move.kind == "rollback" and move.was == in_force.number for move in moves):
            result.append(_WatchedVersion(in_force, wanted.votes, wanted.usual))
    return result


def _read_votes(case: _WatchedVersion, read: _Mark | None) -> tuple[_Mark, Watch | str | None]:
    """Return the file's identity, with its evidence, an error text, or None if it is unchanged since ``read``."""
    path = Path(case.path)
    try:
        status = path.stat()
        mark = (case.usual, status.st_ino, status.st_size, status.st_mtime_ns)
        return mark, None if mark == read else read_watch(case.version, path, case.usual)
    except (ValueError, OSError) as error:
        missing = isinstance(error, FileNotFoundError)
        return _NEVER, f"there is no file of votes {path}; make an empty one" if missing else str(error)
