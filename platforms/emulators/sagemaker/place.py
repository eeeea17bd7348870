"""The place: which jobs there are, which new ones it takes, and what they cost."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jobs.payload.clock import Clock
from platforms.emulators.sagemaker.job import ACCOUNT, Job, MotoCloud, SageMakerRefusal, SageMakerRules

_NAME = re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}", re.ASCII)
# A tag, a digest or neither; the DNS suffix tells the region.
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

    ``folder`` holds what stands for the disks of its instances, and what outlives the emulator: a place that is made on
    the folder of one that is gone knows its jobs. AWS does not forget either.
    """

    job_kind: type[Job] = Job

    def __init__(
        self, folder: Path, clock: Clock, rules: SageMakerRules | None = None, region: str = "us-east-1"
    ) -> None:
        self.rules = rules or SageMakerRules()
        self.jobs: dict[str, Job] = {}
        self.cloud: MotoCloud | None = None
        self._folder = folder
        self._clock = clock
        self.region = region
        self._lock = threading.Lock()
        self._deleted_seconds = 0
        self._records.mkdir(parents=True, exist_ok=True)
        for record in sorted(self._records.glob("*.json")):
            document = json.loads(record.read_text())
            job = self._new_job(document["request"])
            job.recall(document)
            self.jobs[job.name] = job

    @property
    def _records(self) -> Path:
        return self._folder / "jobs"

    @property
    def disks(self) -> Path:
        """The folder below which every container runs."""
        return self._folder / "disks"

    def create(self, request: Mapping[str, Any], region: str = "") -> dict[str, Any]:
        """Do CreateTrainingJob for a caller that signed for ``region``, by default ours. Raises SageMakerRefusal."""
        _validate(request)
        _validate_image(request.get("AlgorithmSpecification", {}), region or self.region)
        name = request["TrainingJobName"]
        with self._lock:
            if name in self.jobs:
                raise SageMakerRefusal("ResourceInUse", f"Training job names must be unique: {name}")
            live = sum(job.live for job in self.jobs.values())
            if live >= self.rules.instances_max:
                raise SageMakerRefusal(
                    "ResourceLimitExceeded",
                    f"The account-level service limit 'ml.x for training job usage' is {self.rules.instances_max} "
                    f"Instances, with current utilization of {live} Instances",
                )
            if self.cloud is None:
                raise SageMakerRefusal("InternalFailure", "the place is closed")
            self.jobs[name] = job = self._new_job(request)
            job.start(self.cloud)
        return {"TrainingJobArn": job.arn}

    def _new_job(self, request: Mapping[str, Any]) -> Job:
        name = request["TrainingJobName"]
        arn = f"arn:aws:sagemaker:{self.region}:{ACCOUNT}:training-job/{name}"
        return self.job_kind(request, arn, self.disks / name, self._records / f"{name}.json", self._clock, self.rules)

    def describe(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Do DescribeTrainingJob. Raises SageMakerRefusal."""
        return self._job(request).describe()

    def stop(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Do StopTrainingJob. Raises SageMakerRefusal, also for a job that is over."""
        job = self._job(request)
        if not job.live:
            raise SageMakerRefusal(
                "ValidationException", f"The request was rejected: the job is in status {job.status}"
            )
        job.stop()
        return {}

    def delete(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Do DeleteTrainingJob. Raises SageMakerRefusal."""
        job = self._job(request)
        if job.live:
            raise SageMakerRefusal("ValidationException", f"{job.name} is not in a terminal state")
        with self._lock:
            self._deleted_seconds += job.billed_seconds
            job.forget()
            del self.jobs[job.name]
        return {}

    def list(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Do ListTrainingJobs, newest first. As at AWS, pages are cut before statuses are looked at: some are empty."""
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
        """Do ListServiceQuotas: as many instances of each usual type as the rules allow."""
        uses = ("training job usage", "spot training job usage")
        names = [f"{name} for {use}" for name in _TYPES for use in uses]
        listed = [{"QuotaName": name, "Value": float(self.rules.instances_max)} for name in names]
        return {"Quotas": listed if request.get("ServiceCode") == "sagemaker" else []}

    def billed_seconds(self) -> int:
        """Return what all jobs cost until now, the deleted ones too."""
        with self._lock:
            return self._deleted_seconds + sum(job.billed_seconds for job in self.jobs.values())

    def close(self) -> None:
        """Stop all jobs and wait for their processes to be gone."""
        with self._lock:
            jobs = list(self.jobs.values())
        for job in jobs:
            job.stop()
        for job in jobs:
            job.join(_STOP_WALL_SECONDS)

    def _job(self, request: Mapping[str, Any]) -> Job:
        job = self.jobs.get(str(request.get("TrainingJobName")))
        if job is None:
            raise SageMakerRefusal("ValidationException", "Requested resource not found.")
        return job


def _validate(request: Mapping[str, Any]) -> None:
    """Refuse what AWS refuses, in its way."""
    stopping, resources = request.get("StoppingCondition", {}), request.get("ResourceConfig", {})
    spot, wait = request.get("EnableManagedSpotTraining", False), stopping.get("MaxWaitTimeInSeconds")
    runtime, wishes = stopping.get("MaxRuntimeInSeconds", 86_400), resources.get("InstancePreferences") or [resources]
    wrong = {
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
    if invalid := [name for name, bad in wrong.items() if bad]:
        raise SageMakerRefusal("ValidationException", f"1 validation error detected: {', '.join(invalid)}")


def _validate_image(algorithm: Mapping[str, Any], region: str) -> None:
    """Refuse what AWS refuses as a training image: one that is no address of ECR in the region of the job."""
    image, access = algorithm.get("TrainingImage"), algorithm.get("TrainingImageConfig", {})
    if (image is None) == (algorithm.get("AlgorithmName") is None):
        raise SageMakerRefusal("ValidationException", "Exactly one of AlgorithmName and TrainingImage is required")
    if image is None or access.get("TrainingRepositoryAccessMode") == "Vpc":
        return  # an algorithm of the account, or a registry of one's own
    parts = _ECR.fullmatch(str(image)) if len(str(image)) <= _IMAGE_CHARACTERS_MAX else None
    if parts is None:
        wanted = "Please provide a valid Amazon Elastic Container Registry path of the Docker image to run."
        raise SageMakerRefusal("ValidationException", f"Invalid training image {image}. {wanted}")
    if parts["region"] != region:
        raise SageMakerRefusal(
            "ValidationException", f"Invalid DNS suffix for region '{parts['region']}' in training image"
        )
