"""The SageMaker adapter: training jobs by AWS's API, with a bucket for inputs and CloudWatch for logs.

A session has three independent stops. Two are SageMaker's: StopTrainingJob, which the daemon calls, and
MaxRuntimeInSeconds, which ends a job even without a daemon.
"""

import hashlib
import json
import os
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from jobs.payload.bounded_file import read_below
from jobs.payload.whole_file import create_below
from platforms import base
from platforms.artifacts.s3.store import S3Store
from platforms.record_file import unclear
from platforms.registry import PlatformContext
from platforms.remote import payload_of
from platforms.sagemaker import answers
from platforms.sagemaker.settings import create_by_sdk, image_address, read_settings, session_of

_OWNER_FILE = "owner"
_REPAIR_SECONDS = 3_600  # how long a pool waits after a job failed because of wrong settings
_ENDING_SECONDS = 10  # between polls of a job that may end within the next line's time
_ENDING_WITHIN_SECONDS = 300
_SPREAD = 0.2  # intervals between polls vary by this share
_PAUSE_SECONDS = 30  # the first pause after throttling
_PAUSE_SECONDS_MAX = 300
_FORGET_SECONDS = 3_600  # observations older than this are dropped


class SageMakerPlatform(base.Platform):
    """Runs payloads as training jobs; docs/sagemaker.md lists the settings."""

    capabilities = base.Capabilities(tails_logs=True, takes_orders=True, finds_orphans=True, bills_late=True)

    def __init__(self, options: Mapping[str, str], context: PlatformContext) -> None:
        import boto3  # noqa: F401 - a missing library is reported here, not at the first launch

        self._settings = settings = read_settings(options)
        self._context = context
        self._owner = settings.owner or _owner(context.state_folder.absolute())
        self._poller = Poller(settings.poll_seconds)
        self._clients: dict[str, Any] = {}
        self._bad_images: dict[str, tuple[int, str]] = {}  # of failed jobs: no launch before this time, and why
        self._rest: tuple[int, base.Refused | base.Misconfigured] | None = None

    def _client(self, service: str) -> Any:
        """Return the pool's client of an AWS service, created once. Raises PlatformError."""
        if service not in self._clients:
            with answers.translated("connect"):
                self._clients[service] = self._settings.client(service)
        return self._clients[service]

    @property
    def _jobs(self) -> Any:
        return self._client("sagemaker")

    @cached_property
    def _sdk_session(self) -> Any:
        return session_of(self._client, self._settings.region)

    @cached_property
    def _image(self) -> str:
        """Return the address of the pool's image; a name is looked up once. Raises Misconfigured."""
        return self._address(self._settings.image)

    def _address(self, image: str) -> str:
        return image_address(image, self._settings.region, self._settings.instance_types[0])

    def _image_for(self, wanted: str, now: int) -> str:
        """Return the address of the image that a launch asks for, or the pool's. Raises Misconfigured.

        An error in a job's own image concerns only that job, not the pool: raises Refused, permanent.
        """
        if wanted in {"", self._settings.image}:
            return self._image
        try:
            address = self._address(wanted)
        except base.Misconfigured as error:
            raise _bad_image(wanted, error.why) from error
        parts = answers.ECR.fullmatch(address)
        if parts is None or parts["region"] != self._settings.region:
            raise _bad_image(wanted, f"it is no address of Amazon ECR in {self._settings.region}")
        if now < self._bad_images.get(address, (0, ""))[0]:
            raise _bad_image(wanted, self._bad_images[address][1])
        return address

    @cached_property
    def _files(self) -> S3Store:
        return S3Store(self._client("s3"), self._settings.bucket, prefix=self._settings.prefix)

    def launch(self, request: base.LaunchRequest, now: int) -> base.Observed:
        """Start a training job named by the key; see Platform.launch."""
        image = self._image_for(str(request.launch.get("image") or ""), now)
        body = answers.training_job(self._order(request, now), replace(self._settings, image=image))
        with answers.translated("look up", now):
            standing = self._describe(request.key)
        if standing is None:
            self._admit(request, now)
            with answers.translated("launch", now):
                self._upload(request)
                standing = self._create(body)
        return self._adopt(request.key, standing, now)

    def find(self, keys: Sequence[str], now: int) -> Mapping[str, base.Observed]:
        """Return the sessions by key; see Platform.find.

        A spot job that lost its instance is stopped, even if it runs on another by now: SageMaker restarts it without
        the checkpoints saved meanwhile, while the scheduler's next launch resumes from them.
        """

        def look(key: str) -> Look | None:
            with answers.translated("find", now):
                description = self._describe(key)
                if description is None:
                    return None
                if not answers.is_ours(description, key, self._owner):
                    nobodys = unclear(key, "a training job of this name exists, and its owner is unknown")
                    return None if answers.is_told(description) else Look(nobodys, answers.ends_by(description))
                if answers.lost_its_instance(description):
                    answers.ask(lambda: self._jobs.stop_training_job(TrainingJobName=key))
                session = answers.observed(description, now)
                self._learn(description, session)
                return Look(session, answers.ends_by(description))

        return self._poller.find(filter(answers.valid_name, keys), now, look)

    def stop(self, key: str, now: int, *, force: bool) -> None:
        """Stop a job: SageMaker sends SIGTERM, and SIGKILL two minutes later. It has no faster stop."""
        del force
        if answers.valid_name(key):
            self._poller.forget(key)
            with answers.translated("stop", now):
                description = self._describe(key)
                if description is None or description["TrainingJobStatus"] in answers.TERMINAL:
                    return
                if answers.is_ours(description, key, self._owner):
                    answers.ask(lambda: self._jobs.stop_training_job(TrainingJobName=key))

    def logs(self, key: str, offset: int, limit_bytes: int) -> Iterator[bytes]:
        """Yield the output of a job in CloudWatch; see Platform.logs."""
        if answers.valid_name(key):
            with answers.translated("logs"):
                if self._describe(key) is not None:
                    yield from answers.read_logs(self._client("logs"), key, offset, limit_bytes)

    def orphans(self, keys: Collection[str], now: int) -> Sequence[base.Observed]:
        """Return live training jobs of this pool that are not in ``keys``; see Platform.orphans.

        It lists all live jobs of the account, which is too slow for every cycle: AWS allows an account two such calls
        per second.
        """
        result = []
        with answers.translated("orphans", now):
            pages = self._jobs.get_paginator("list_training_jobs").paginate(StatusEquals="InProgress")
            names = [job["TrainingJobName"] for page in pages for job in page["TrainingJobSummaries"]]
            for name in sorted(set(names) - set(keys)):
                description = self._describe(name)
                if description is None or description["TrainingJobStatus"] in answers.TERMINAL:
                    continue
                if answers.is_ours(description, name, self._owner):
                    result.append(answers.observed(description, now))
        return result

    def sweep(self, over: Collection[str], now: int) -> Sequence[str]:
        """Delete the ended jobs of ``over`` and their launch documents; return their keys.

        Without permission to delete jobs only the documents are deleted.
        """
        swept = []
        with answers.translated("sweep", now):
            for name in list(self._files.keys(f"launches/{self._owner}/")):
                key = name.split("/")[2]
                if key not in over:
                    continue
                description = self._describe(key)
                if description is not None:
                    final = description["TrainingJobStatus"] in answers.TERMINAL
                    if not final or not answers.is_ours(description, key, self._owner):
                        continue
                    self._delete(key)
                # The document is deleted last, also if an interrupted sweep had already deleted the job.
                self._files.delete(name)
                swept.append(key)
        return sorted(swept)

    def _order(self, request: base.LaunchRequest, now: int) -> answers.SageMakerOrder:
        bucket = f"s3://{self._settings.bucket}/{self._settings.prefix}"
        return answers.SageMakerOrder(
            key=request.key,
            owner=self._owner,
            pool=request.pool,
            code=f"{bucket}code/{self._code_digest(request)}/",
            launch=f"{bucket}launches/{self._owner}/{request.key}/",
            output=f"{bucket}outputs",
            seconds=max(1, request.deadline - now),
        )

    def _admit(self, request: base.LaunchRequest, now: int) -> None:
        """Raise Refused or Misconfigured if a session must not be launched here, or not now."""
        if self._rest is not None and now < self._rest[0]:
            raise self._rest[1]
        if request.deadline <= now:
            raise base.Refused("sagemaker", "launch", f"the deadline {request.deadline} is not after {now}")
        store = request.launch.get("store", {})
        if store.get("kind") == "directory":
            remedy = "Set artifacts.kind = 's3'; see docs/inside/store.md"
            raise base.Misconfigured(
                "sagemaker", "launch", "a training job cannot reach a folder of this machine", remedy
            )
        if self._settings.spot and not store.get("posts"):
            # Each lost instance would be billed, but its work would be lost.
            remedy = "Set spot = no, or an artifact store that sessions can write to"
            raise base.Misconfigured("sagemaker", "launch", "a spot job without checkpoints may never end", remedy)

    def _upload(self, request: base.LaunchRequest) -> None:
        """Upload the payload, named by its digest, and the launch document to where the job reads them."""
        digest = self._code_digest(request)
        if self._files.size(f"code/{digest}.complete") is None:
            for name, path in self._code(request).items():
                # Not through the store, which does not allow the key __init__.py.
                place = f"{self._settings.prefix}code/{digest}/payload/{name}"
                self._client("s3").put_object(Bucket=self._settings.bucket, Key=place, Body=path.read_bytes())
            self._files.put(f"code/{digest}.complete", b"")
        document: dict[str, Any] = {**request.launch, "work_dir": answers.WORK_DIR}
        if self._settings.secrets:
            kind, _, prefix = self._settings.secrets.partition(":")
            where = {"region": self._settings.region, "endpoint": self._settings.endpoint}
            document["secret_store"] = {"kind": kind, "prefix": prefix, **where}
        self._files.put(f"launches/{self._owner}/{request.key}/launch.json", json.dumps(document).encode())

    def _code(self, request: base.LaunchRequest) -> dict[str, Path]:
        payload = payload_of("sagemaker", request, self._context)
        return {path.relative_to(payload).as_posix(): path for path in sorted(payload.rglob("*.py"))}

    def _code_digest(self, request: base.LaunchRequest) -> str:
        digest = hashlib.sha256()
        for name, path in self._code(request).items():
            digest.update(f"{name}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
        return digest.hexdigest()

    def _create(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Create the job and return its description.

        An error that proves that nothing was created is raised; after any other error the job is looked up. Raises
        Unreachable if the lookup fails, or finds no job although it may have been created.
        """
        from botocore.exceptions import BotoCoreError, ClientError
        from botocore.parsers import ResponseParserError

        key, why = body["TrainingJobName"], "it was created"
        try:
            if self._settings.launcher == "sdk":
                create_by_sdk(body, self._sdk_session)
            else:
                self._jobs.create_training_job(**body)
        except (BotoCoreError, ClientError, ResponseParserError, OSError) as error:
            if answers.is_refusal(error, "CreateTrainingJob"):
                if (simpler := answers.of_one_type(body, error)) is None:
                    raise
                return self._create(simpler)
            why = str(error)
        try:
            with answers.translated("look up"):
                description = self._describe(key)
        except base.PlatformError as error:
            raise base.Unreachable(
                "sagemaker", "launch", f"{why}; whether {key} exists is unknown: {error.why}"
            ) from error
        if description is None:
            raise base.Unreachable("sagemaker", "launch", f"{why}; {key} is not there yet")
        return description

    def _adopt(self, key: str, description: Mapping[str, Any], now: int) -> base.Observed:
        if not answers.is_told(description):
            raise base.Unreachable("sagemaker", "launch", f"a training job {key} exists, and its owner is unknown")
        if not answers.is_ours(description, key, self._owner):
            remedy = "Give each scheduler of this account its own launch_prefix, or correct the option owner"
            raise base.Misconfigured("sagemaker", "launch", f"a training job {key} of somebody else is there", remedy)
        session = answers.observed(description, now)
        if session.state is base.SessionState.UNCLEAR:
            raise base.Unreachable("sagemaker", "launch", f"{key} is there, and {session.detail}")
        return session

    def _describe(self, key: str) -> Mapping[str, Any] | None:
        """Return a job's description, or None if there is no such job."""
        description: Mapping[str, Any] | None = answers.ask(
            lambda: self._jobs.describe_training_job(TrainingJobName=key)
        )
        if description is not None and (lack := answers.lacking(description, key)):  # the response is not from AWS
            why = f"an answer about {key} that is none: {lack}"
            raise base.Unreachable("sagemaker", "look up", why, "Check the network")
        return description

    def _delete(self, key: str) -> None:
        codes = answers.MISSING | answers.DENIED | answers.UNKNOWN
        answers.ask(lambda: self._jobs.delete_training_job(TrainingJobName=key), codes)

    def _learn(self, description: Mapping[str, Any], session: base.Observed) -> None:
        """Remember for the next launch why a job failed to start: a lack of instances, or wrong settings."""
        kind, reason = answers.failure(description)
        if session.state != base.SessionState.ABSENT or not kind:
            return
        last = description.get("LastModifiedTime") or description.get("TrainingEndTime") or description["CreationTime"]
        since = int(last.timestamp())
        if kind == answers.NO_MACHINE:
            until = since + answers.CAPACITY_SECONDS
            self._rest = (until, base.Refused("sagemaker", "launch", reason, wait_until=until))
        elif kind == "ClientError":
            image = (description.get("AlgorithmSpecification") or {}).get("TrainingImage", self._image)
            if image != self._image:
                self._bad_images[image] = since + _REPAIR_SECONDS, reason
                return
            remedy = "Check image, role and bucket of this pool"
            self._rest = (since + _REPAIR_SECONDS, base.Misconfigured("sagemaker", "launch", reason, remedy))


def _bad_image(image: str, why: str) -> base.Refused:
    remedy = "Correct it with schedctl queue edit; the role must be able to pull it in the pool's region"
    return base.Refused("sagemaker", "launch", f"the job's image {image}: {why}", remedy, permanent=True)


def _owner(folder: Path) -> str:
    """Return the owner's name, which identifies this pool's jobs; it is generated once."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        create_below(folder, _OWNER_FILE, os.urandom(8).hex().encode())
        return read_below(folder, _OWNER_FILE).decode("ascii")
    except (OSError, ValueError) as error:
        raise base.Misconfigured("sagemaker", "load", str(error), f"It needs to write to {folder}") from error


# One poller for all jobs of a pool, which limits the requests to an account.
#
# SageMaker limits requests per second and account. Each result is reused until the next poll is due. Polls are spread
# so that jobs launched together are not polled together. After throttling there are no requests for a while, which
# doubles each time.
@dataclass(frozen=True, slots=True)
class Look:
    """The last observation of a job, and when AWS ends it at the latest (UTC seconds)."""

    observed: base.Observed
    ends_by: int


class Poller:
    """Remembers the observation of each job until its next poll is due. All times are UTC seconds."""

    def __init__(self, seconds: int) -> None:
        self._seconds = seconds  # between two polls of a running job; a waiting job is polled half as often
        self._answers: dict[str, tuple[int, base.Observed]] = {}  # the observation is recent enough until then
        self._quiet_until = 0
        self._pause_seconds = 0
        self._lock = threading.Lock()

    def find(self, keys: Iterable[str], now: int, look: Callable[[str], Look | None]) -> dict[str, base.Observed]:
        """Return the sessions by key, polling those that are due; ``look`` returns None for unknown jobs.

        Raises Throttled, also without a request during the pause after throttling, and what ``look`` raises.
        """
        result: dict[str, base.Observed] = {}
        wanted = list(keys)
        with self._lock:
            self._answers = {key: answer for key, answer in self._answers.items() if answer[0] > now - _FORGET_SECONDS}
            if now < self._quiet_until:
                why = f"asked too often; it is left in peace until {self._quiet_until}"
                raise answers.Throttled("sagemaker", "find", why)
            for key in wanted:
                fresh_until, observed = self._answers.get(key, (now, None))
                if observed is not None and fresh_until > now:
                    result[key] = observed
                    continue
                answer = self._poll(key, now, look)
                if answer is not None:
                    result[key] = answer.observed
                    self._remember(key, answer, now)
            self._pause_seconds = 0
        return result

    def forget(self, key: str) -> None:
        """Drop the observation of a job, so that the next call polls it: a request may have changed its state."""
        with self._lock:
            self._answers.pop(key, None)

    def _poll(self, key: str, now: int, look: Callable[[str], Look | None]) -> Look | None:
        try:
            return look(key)
        except answers.Throttled:
            self._pause_seconds = min(_PAUSE_SECONDS_MAX, 2 * self._pause_seconds or _PAUSE_SECONDS)
            self._quiet_until = now + self._pause_seconds
            raise

    def _remember(self, key: str, answer: Look, now: int) -> None:
        if answer.observed.state is base.SessionState.RUNNING:
            ending = now >= answer.ends_by - _ENDING_WITHIN_SECONDS
            seconds = min(self._seconds, _ENDING_SECONDS) if ending else self._seconds
        elif answer.observed.state is base.SessionState.QUEUED:
            seconds = 2 * self._seconds
        else:
            self._answers.pop(key, None)
            return
        # A hash suffices instead of randomness: the times of different jobs only must not coincide for long.
        part = int.from_bytes(hashlib.sha256(f"{key} {now}".encode()).digest()[:4], "big") / 0xFFFFFFFF
        self._answers[key] = (now + round(seconds * (1 - _SPREAD + 2 * _SPREAD * part)), answer.observed)
