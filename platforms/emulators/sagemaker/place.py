"""The state of an emulated AWS account: training jobs that really run, its limits, and the cost of the jobs."""

import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jobs.payload.clock import Clock
from jobs.payload.whole_file import write_whole
from platforms.emulators.program import SUMS
from platforms.local.processes import MARK, kill_members, start_ticks
from platforms.sagemaker.answers import GROUP

ACCOUNT = "123456789012"  # moto's account for all keys that it did not issue
_SERVICE = "sagemaker.amazonaws.com"
_ROOT = "/opt/ml"
_KILL_ROUNDS = 25
_FAILURE_CHARACTERS = 1024
_RECORDED = frozenset({
    "request", "status", "secondary", "reason", "created_at", "started_at", "ended_at", "transitions",
})  # fmt: skip
_INHERITED = re.compile(rf"PATH|HOME|LANG|LD_LIBRARY_PATH|TMPDIR|{SUMS.pattern}")  # programs need it to run here


@dataclass(slots=True)
class SageMakerRules:
    """The limits of the account; all seconds are scheduled. Spot jobs are billed ``spot_share`` of their time."""

    instances_max: int = 1
    queue_seconds: float = 120.0
    download_seconds: float = 60.0
    upload_seconds: float = 20.0
    grace_seconds: float = 120.0
    spot_share: float = 0.35


class SageMakerRefusal(Exception):
    """An error response with AWS's error code."""

    def __init__(self, message: str, code: str = "ValidationException") -> None:
        super().__init__(message)
        self.code = code
        self.message = message


# The instances' access to S3, CloudWatch and IAM: directly to moto's memory, without HTTP.
class MotoCloud:
    """Moto's S3, CloudWatch and IAM in this process, for the instances in ``region``.

    ``credentials`` is the address at which a container gets the credentials of its role.
    """

    def __init__(self, region: str, credentials: str) -> None:
        from moto.iam.models import iam_backends
        from moto.logs.models import logs_backends
        from moto.s3.models import s3_backends

        self._region = region
        self.credentials = credentials
        self._files: Any = s3_backends[ACCOUNT]["aws"]
        self._logs: Any = logs_backends[ACCOUNT][region]
        self._roles: Any = iam_backends[ACCOUNT]["aws"]

    def make_bucket(self, bucket: str) -> None:
        """Create an empty bucket unless it exists."""
        if bucket not in self._files.buckets:
            self._files.create_bucket(bucket, self._region)

    def make_role(self, name: str) -> None:
        """Create an execution role that trusts SageMaker unless it exists."""
        if any(role.name == name for role in self._roles.get_roles()):
            return
        statement = {"Effect": "Allow", "Principal": {"Service": _SERVICE}, "Action": "sts:AssumeRole"}
        trust = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
        self._roles.create_role(name, trust, "/", None, "", [], "3600")

    def copy(self, uri: str, folder: Path) -> int:
        """Copy all objects whose names begin with ``uri``, which need not end at a '/'; return how many."""
        bucket, _, prefix = uri.removeprefix("s3://").partition("/")
        keys = self._files.get_bucket(bucket).keys
        names = [name for name in list(keys) if name.startswith(prefix)]
        for name in names:
            path = folder / name.removeprefix(prefix).lstrip("/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(keys[name].value)
        return len(names)

    def put(self, uri: str, data: bytes) -> None:
        """Write an object."""
        bucket, _, key = uri.removeprefix("s3://").partition("/")
        self._files.put_object(bucket, key, data)

    def log(self, job: str, lines: Iterable[bytes]) -> None:
        """Write each line as an event when it arrives. The first line creates the stream."""
        at = int(time.time() * 1000)  # noqa: TID251 - CloudWatch uses real time, in milliseconds
        stream = f"{job}/algo-1-{at // 1000}"
        stream_exists = False
        for line in lines:
            if not stream_exists:
                self._create_stream(stream)
                stream_exists = True
            at = max(at, int(time.time() * 1000))  # noqa: TID251 - as above
            message = line.rstrip(b"\n").decode(errors="replace") or " "
            self._logs.put_log_events(GROUP, stream, [{"timestamp": at, "message": message}])

    def forget_logs(self) -> None:
        """Remove all output: the whole process shares moto's memory, and the next account must not find it."""
        self._logs.groups.pop(GROUP, None)

    def _create_stream(self, stream: str) -> None:
        from moto.logs.exceptions import ResourceAlreadyExistsException

        with suppress(ResourceAlreadyExistsException):  # another job created it at the same moment
            self._logs.create_log_group(GROUP, {})
        self._logs.create_log_stream(GROUP, stream)


@dataclass
class Job:
    """A training job; its times are scheduled UTC seconds, with fractions as on AWS.

    ``folder`` represents /opt/ml and is removed at the end. ``record`` is the file that outlives the emulator.
    """

    request: Mapping[str, Any]
    arn: str
    folder: Path
    record: Path
    clock: Clock
    rules: SageMakerRules
    status: str = "InProgress"
    secondary: str = "Starting"
    created_at: float = 0.0
    started_at: float | None = None
    ended_at: float | None = None
    reason: str = ""
    transitions: list[tuple[str, float]] = field(default_factory=list)
    _selected: str | None = None  # the type of the instance that the job runs on
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None
    _cloud: MotoCloud | None = None

    @property
    def name(self) -> str:
        """The job's name."""
        return str(self.request["TrainingJobName"])

    @property
    def cloud(self) -> MotoCloud:
        """The other AWS services, for a started job."""
        if self._cloud is None:
            raise AssertionError(f"{self.name} was not started")
        return self._cloud

    @property
    def live(self) -> bool:
        """Whether it holds an instance, or waits for one."""
        return self.ended_at is None

    @property
    def billed_seconds(self) -> int:
        """The seconds billed so far."""
        if self.started_at is None:
            return 0
        until = self.ended_at or self.clock.now()
        share = self.rules.spot_share if self.request.get("EnableManagedSpotTraining") else 1.0
        return round((until - self.started_at) * share)

    def start(self, cloud: MotoCloud) -> None:
        """Start the job in the background."""
        self._cloud = cloud
        self.created_at = self.clock.now()
        self._move(self.secondary)
        self._thread = threading.Thread(target=self._run_job, name=f"job {self.name}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ask the job to end."""
        with self._lock:
            if self.live:
                self.status = "Stopping"
                self._move("Stopping")
        self._stop.set()

    def restore(self, document: Mapping[str, Any]) -> None:
        """Restore the job from an earlier emulator's record; a job that had not ended counts as failed."""
        for name in _RECORDED & document.keys():
            setattr(self, name, document[name])
        if self.live:
            self._end("Failed", "Failed", "InternalServerError: the instance was lost")

    def forget(self) -> None:
        """Remove the record of an ended job."""
        with self._lock:
            self.record.unlink(missing_ok=True)

    def join(self, wall_seconds: float) -> None:
        """Wait for the end of a stopped job."""
        if self._thread is not None:
            self._thread.join(wall_seconds)

    def describe(self) -> dict[str, Any]:
        """Return the answer of DescribeTrainingJob."""
        with self._lock:
            changed = self.transitions[-1][1]
            document: dict[str, Any] = {
                **{name: value for name, value in self.request.items() if name != "Tags"},
                "TrainingJobArn": self.arn,
                "TrainingJobStatus": self.status,
                "SecondaryStatus": self.secondary,
                "CreationTime": self.created_at,
                "LastModifiedTime": changed,
                "SecondaryStatusTransitions": [{"Status": name, "StartTime": at} for name, at in self.transitions],
            }
            if self._selected and "InstancePreferences" in self.request["ResourceConfig"]:
                chosen = {"SelectedInstanceType": self._selected, "SelectedInstanceCount": 1}
                document["ResourceConfig"] = {**self.request["ResourceConfig"], **chosen}
            if self.reason:
                document["FailureReason"] = self.reason
            if self.started_at is not None:
                document["TrainingStartTime"] = self.started_at
            if self.ended_at is not None and self.started_at is not None:
                document["TrainingEndTime"] = self.ended_at
                document["TrainingTimeInSeconds"] = round(self.ended_at - self.started_at)
                document["BillableTimeInSeconds"] = self.billed_seconds
        return document

    def _run_job(self) -> None:
        try:
            ending = self._run()
        except Exception as error:  # noqa: BLE001 - reported as an internal error of AWS
            ending = ("Failed", "Failed", f"InternalServerError: {type(error).__name__}: {error}")
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)
        with self._lock:
            self._end(*ending)

    def _end(self, status: str, secondary: str, reason: str) -> None:
        self.status, self.reason = status, reason
        self.ended_at = self.clock.now()
        self._move(secondary)

    def _run(self) -> tuple[str, str, str]:
        """Run the job to its end; return status, secondary status and failure reason."""
        if self._paused(self.rules.queue_seconds):
            return ("Stopped", "Stopped", "")
        return self._run_on_instance(self._types()[0])

    def _run_on_instance(self, instance_type: str) -> tuple[str, str, str]:
        with self._lock:
            self._selected, self.started_at = instance_type, self.clock.now()
            self._move("Downloading")
        if reason := self._download():
            return ("Failed", "Failed", reason)
        if self._paused(self.rules.download_seconds):
            return ("Stopped", "Stopped", "")
        exit_code, why = self._train()
        if not self._stop.is_set():
            with self._lock:
                self._move("Uploading")
            self._upload()
            self._paused(self.rules.upload_seconds)
        return self._ending(exit_code, why)

    def _download(self) -> str:
        """Fill the folder that represents the instance's disk; return why that failed, or ""."""
        for channel in self.request.get("InputDataConfig", ()):
            uri = channel["DataSource"]["S3DataSource"]["S3Uri"]
            if not self.cloud.copy(uri, self.folder / "input" / "data" / channel["ChannelName"]):
                return f"ClientError: No S3 objects found under S3 URL '{uri}'"
        for name in ("input/config", "model", "checkpoints", "output/data"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        return ""

    def _ending(self, exit_code: int, why: str) -> tuple[str, str, str]:
        if why:
            return ("Stopped", why, "")
        if self._stop.is_set():
            return ("Stopped", "Stopped", "")
        if exit_code == 0:
            return ("Completed", "Completed", "")
        return ("Failed", "Failed", f"AlgorithmError: {self._output()}, exit code: {exit_code}")

    def _types(self) -> list[str]:
        resources = self.request["ResourceConfig"]
        wishes = resources.get("InstancePreferences") or [resources]
        return [str(wish["InstanceType"]) for wish in wishes]

    def _upload(self) -> None:
        """Upload the job's model and output to where AWS puts them."""
        address = f"{self.request['OutputDataConfig']['S3OutputPath'].rstrip('/')}/{self.name}/output"
        for folder, archive in (("model", "model.tar.gz"), ("output/data", "output.tar.gz")):
            if any((self.folder / folder).iterdir()):
                packed = io.BytesIO()
                with tarfile.open(fileobj=packed, mode="w:gz") as opened:
                    opened.add(self.folder / folder, ".")
                self.cloud.put(f"{address}/{archive}", packed.getvalue())

    def _train(self) -> tuple[int, str]:
        """Run the container; return its exit code, and the secondary status if AWS ended it, or ""."""
        with self._lock:
            if not self._stop.is_set():
                self._move("Training")
        process = self._spawn()
        ticks = start_ticks(process.pid) or 0
        output = process.stdout
        if output is None:
            raise AssertionError("Popen with PIPE has an output")
        logger = threading.Thread(target=self.cloud.log, args=(self.name, output), daemon=True)
        logger.start()
        why = self._watch(process)
        if process.poll() is None:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(self.clock.wall_seconds(self.rules.grace_seconds))
        kill_members(process.pid, ticks, str(self.folder), rounds=_KILL_ROUNDS)
        process.wait()
        logger.join()
        output.close()
        return process.returncode, why

    def _watch(self, process: subprocess.Popen[bytes]) -> str:
        """Wait until the container exits, is stopped, or exceeds a limit; return its name in ``_limits``, or ""."""
        why, at = min(self._limits().items(), key=lambda limit: limit[1])
        while process.poll() is None and not self._stop.is_set():
            left = self.clock.wall_seconds_until(at)
            if left <= 0:
                return why
            self._stop.wait(min(left, 0.02))
        return ""

    def _limits(self) -> dict[str, float]:
        """Return the time at which the container must end, by the secondary status that the job then gets."""
        runtime = self.request["StoppingCondition"].get("MaxRuntimeInSeconds", 86_400)
        return {"MaxRuntimeExceeded": (self.started_at or self.clock.now()) + runtime}

    def _spawn(self) -> subprocess.Popen[bytes]:
        algorithm = self.request["AlgorithmSpecification"]
        words = [*algorithm["ContainerEntrypoint"], *algorithm.get("ContainerArguments", ())]
        words = [word.replace(_ROOT, str(self.folder)) for word in words]
        if words[0] in {"python", "python3"}:
            words[0] = sys.executable
        environment = {
            **{name: text for name, text in os.environ.items() if _INHERITED.fullmatch(name)},
            **self.request.get("Environment", {}),
            "TRAINING_JOB_NAME": self.name,
            "TRAINING_JOB_ARN": self.arn,
            "AWS_CONTAINER_CREDENTIALS_FULL_URI": self.cloud.credentials,
            MARK: str(self.folder),
        }
        return subprocess.Popen(
            words,
            cwd=self.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def _output(self) -> str:
        try:
            return (self.folder / "output" / "failure").read_text(errors="replace")[:_FAILURE_CHARACTERS]
        except FileNotFoundError:
            return "the container failed"

    def _paused(self, seconds: float) -> bool:
        """Wait for some scheduled seconds; return whether the job was stopped during the wait."""
        return self._stop.wait(self.clock.wall_seconds(seconds))

    def _move(self, secondary: str) -> None:
        self.secondary = secondary
        self.transitions.append((secondary, self.clock.now()))
        write_whole(self.record, json.dumps({name: getattr(self, name) for name in sorted(_RECORDED)}))


# The account: its jobs, its limits, and the cost.
_NAME = re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}", re.ASCII)
# A tag, a digest or neither; the DNS suffix contains the region.
_ECR = re.compile(
    r"\d{12}\.dkr\.ecr(-fips)?\.(?P<region>[a-z0-9-]+)\.amazonaws\.com(\.cn)?/[a-z0-9][a-z0-9._/-]*"
    r"(:[\w][\w.-]{0,127}|@sha256:[0-9a-f]{64})?",
    re.ASCII,
)
_ACCELERATED = re.compile(r"ml\.(g|p|trn)\d")
_IMAGE_CHARACTERS_MAX = 255
_STOP_WALL_SECONDS = 30.0
_PAGE = 10
_TYPES = ("ml.g4dn.xlarge", "ml.g5.xlarge", "ml.g6.xlarge")


class SageMakerAccount:
    """Training jobs of one account and region.

    ``folder`` represents the disks of the instances and contains the records that outlive the emulator: an account
    created on the folder of an earlier one restores its jobs.
    """

    job_kind: type[Job] = Job

    def __init__(
        self, folder: Path, clock: Clock, rules: SageMakerRules | None = None, region: str = "us-east-1"
    ) -> None:
        self.rules = rules or SageMakerRules()
        self.jobs: dict[str, Job] = {}
        self.cloud: MotoCloud | None = None
        self._folder, self._records = folder, folder / "jobs"
        self._clock = clock
        self.region = region
        self._lock = threading.Lock()
        self._deleted_seconds = 0
        self._records.mkdir(parents=True, exist_ok=True)
        for record in sorted(self._records.glob("*.json")):
            document = json.loads(record.read_text())
            job = self._new_job(document["request"])
            job.restore(document)
            self.jobs[job.name] = job

    @property
    def disks(self) -> Path:
        """The folder below which every container runs."""
        return self._folder / "disks"

    def create(self, request: Mapping[str, Any], region: str = "") -> dict[str, Any]:
        """Answer CreateTrainingJob, signed for ``region``, by default ours. Raises SageMakerRefusal."""
        _validate(request)
        _validate_image(request.get("AlgorithmSpecification", {}), region or self.region)
        name = request["TrainingJobName"]
        with self._lock:
            if name in self.jobs:
                raise SageMakerRefusal(f"Training job names must be unique: {name}", "ResourceInUse")
            live = sum(job.live for job in self.jobs.values())
            if live >= self.rules.instances_max:
                raise SageMakerRefusal(
                    f"The account-level service limit 'ml.x for training job usage' is {self.rules.instances_max} "
                    f"Instances, with current utilization of {live} Instances",
                    "ResourceLimitExceeded",
                )
            if self.cloud is None:
                raise SageMakerRefusal("the server is not running", "InternalFailure")
            self.jobs[name] = job = self._new_job(request)
            job.start(self.cloud)
        return {"TrainingJobArn": job.arn}

    def _new_job(self, request: Mapping[str, Any]) -> Job:
        name = request["TrainingJobName"]
        arn = f"arn:aws:sagemaker:{self.region}:{ACCOUNT}:training-job/{name}"
        return self.job_kind(request, arn, self.disks / name, self._records / f"{name}.json", self._clock, self.rules)

    def describe(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Answer DescribeTrainingJob. Raises SageMakerRefusal."""
        return self._job(request).describe()

    def stop(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Answer StopTrainingJob. Raises SageMakerRefusal, also for an ended job."""
        job = self._job(request)
        if not job.live:
            raise SageMakerRefusal(f"The request was rejected: the job is in status {job.status}")
        job.stop()
        return {}

    def delete(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Answer DeleteTrainingJob. Raises SageMakerRefusal."""
        job = self._job(request)
        if job.live:
            raise SageMakerRefusal(f"{job.name} is not in a terminal state")
        with self._lock:
            self._deleted_seconds += job.billed_seconds
            job.forget()
            del self.jobs[job.name]
        return {}

    def list(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Answer ListTrainingJobs, newest first. Like AWS, it filters a page by status, so a page may be empty."""
        with self._lock:
            descriptions = [job.describe() for job in self.jobs.values() if request.get("NameContains", "") in job.name]
        descriptions.sort(key=lambda job: (job["CreationTime"], job["TrainingJobName"]), reverse=True)
        begin, length = int(request.get("NextToken", 0)), int(request.get("MaxResults", _PAGE))
        wanted = request.get("StatusEquals")
        names = ("TrainingJobName", "TrainingJobArn", "CreationTime", "TrainingJobStatus", "SecondaryStatus")
        page = [
            {name: job[name] for name in names}
            for job in descriptions[begin : begin + length]
            if wanted in {None, job["TrainingJobStatus"]}
        ]
        more = {"NextToken": str(begin + length)} if begin + length < len(descriptions) else {}
        return {"TrainingJobSummaries": page, **more}

    def quotas(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Answer ListServiceQuotas: every common type has the number of instances that the rules allow."""
        uses = ("training job usage", "spot training job usage")
        names = [f"{name} for {use}" for name in _TYPES for use in uses]
        listed = [{"QuotaName": name, "Value": float(self.rules.instances_max)} for name in names]
        return {"Quotas": listed if request.get("ServiceCode") == "sagemaker" else []}

    def billed_seconds(self) -> int:
        """Return the billed seconds of all jobs, also of deleted ones."""
        with self._lock:
            return self._deleted_seconds + sum(job.billed_seconds for job in self.jobs.values())

    def close(self) -> None:
        """Stop all jobs and wait until their processes have ended."""
        with self._lock:
            jobs = list(self.jobs.values())
        for job in jobs:
            job.stop()
        for job in jobs:
            job.join(_STOP_WALL_SECONDS)

    def _job(self, request: Mapping[str, Any]) -> Job:
        job = self.jobs.get(str(request.get("TrainingJobName")))
        if job is None:
            raise SageMakerRefusal("Requested resource not found.")
        return job


def _validate(request: Mapping[str, Any]) -> None:
    """Raise SageMakerRefusal for requests that AWS refuses."""
    stopping, resources = request.get("StoppingCondition", {}), request.get("ResourceConfig", {})
    spot, wait = request.get("EnableManagedSpotTraining", False), stopping.get("MaxWaitTimeInSeconds")
    runtime, wishes = stopping.get("MaxRuntimeInSeconds", 86_400), resources.get("InstancePreferences") or [resources]
    is_invalid = {
        "TrainingJobName": not _NAME.fullmatch(str(request.get("TrainingJobName"))),
        "RoleArn": not str(request.get("RoleArn", "")).startswith("arn:aws:iam::"),
        "MaxRuntimeInSeconds": not 1 <= runtime <= 28 * 86_400,
        "MaxWaitTimeInSeconds without spot": wait is not None and not spot,
        "MaxWaitTimeInSeconds": spot and (wait is None or wait < runtime),
        "MaxPendingTimeInSeconds": not 1_800 <= stopping.get("MaxPendingTimeInSeconds", 1_800) <= 2_419_200,
        "MaxPendingTimeInSeconds without an accelerator": "MaxPendingTimeInSeconds" in stopping
        and not all(_ACCELERATED.match(str(wish.get("InstanceType"))) for wish in wishes),
        "InstancePreferences": ("InstanceType" in resources) == ("InstancePreferences" in resources),
        "InstancePreferences with spot": spot and "InstancePreferences" in resources,
        "Environment": any(len(text) > 512 for pair in request.get("Environment", {}).items() for text in pair),
        "ContainerArguments": any(
            len(word) > 256 for word in request.get("AlgorithmSpecification", {}).get("ContainerArguments", ())
        ),
    }
    if names := [name for name, invalid in is_invalid.items() if invalid]:
        raise SageMakerRefusal(f"1 validation error detected: {', '.join(names)}")


def _validate_image(algorithm: Mapping[str, Any], region: str) -> None:
    """Refuse training images as AWS does: each must be an ECR address in the job's region."""
    image, access = algorithm.get("TrainingImage"), algorithm.get("TrainingImageConfig", {})
    if (image is None) == (algorithm.get("AlgorithmName") is None):
        raise SageMakerRefusal("Exactly one of AlgorithmName and TrainingImage is required")
    if image is None or access.get("TrainingRepositoryAccessMode") == "Vpc":
        return  # an algorithm of the account, or a private registry
    parts = _ECR.fullmatch(str(image)) if len(str(image)) <= _IMAGE_CHARACTERS_MAX else None
    if parts is None:
        remedy = "Please provide a valid Amazon Elastic Container Registry path of the Docker image to run."
        raise SageMakerRefusal(f"Invalid training image {image}. {remedy}")
    if parts["region"] != region:
        raise SageMakerRefusal(f"Invalid DNS suffix for region '{parts['region']}' in training image")
