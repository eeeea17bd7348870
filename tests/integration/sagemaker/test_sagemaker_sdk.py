"""Both launchers send the same CreateTrainingJob: boto3 is held against what the SDK of SageMaker was recorded to send.

The SDK brings about 130 packages, so it is in no lock file. Where it is installed (pip install sagemaker-core), these
tests run it; RECORD=1 writes the recording anew.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from platforms.base import Misconfigured, SessionState
from platforms.sagemaker import settings as sdk
from platforms.sagemaker.answers import SageMakerOrder, training_job
from platforms.sagemaker.settings import read_settings

World = Any  # see conftest.py

RECORDING = Path(__file__).parent / "wire" / "create_training_job.json"
OPTIONS = {
    "region": "eu-central-1",
    "bucket": "team",
    "role": "arn:aws:iam::123456789012:role/uff-execution",
    "image": "763104351884.dkr.ecr.eu-central-1.amazonaws.com/pytorch-training:2.10-gpu-py313",
    "instance_types": "ml.g4dn.xlarge",
}
WAYS = {
    "plain": {},
    "spot": {"spot": "yes"},
    "wishes": {"instance_types": "ml.g6.xlarge,ml.g5.xlarge"},
}
ORDER = SageMakerOrder(
    "uff-ufm-0001", "me", "pool", "s3://team/code/ab/", "s3://team/launches/k/", "s3://team/outputs", 13_200
)


class Wire:
    """A client that writes down what it is to send."""

    def __init__(self) -> None:
        self.sent: dict[str, Any] = {}

    def create_training_job(self, **body: Any) -> dict[str, str]:
        """Take the request as AWS's client would."""
        self.sent = body
        return {"TrainingJobArn": "arn:aws:sagemaker:eu-central-1:123456789012:training-job/uff-ufm-0001"}

    def describe_training_job(self, **_: Any) -> dict[str, Any]:
        """Answer as AWS does, which the SDK asks for afterwards."""
        return {
            **self.create_training_job(**self.sent),
            "TrainingJobName": "uff-ufm-0001",
            "TrainingJobStatus": "InProgress",
            "SecondaryStatus": "Starting",
            "ModelArtifacts": {"S3ModelArtifacts": "s3://team/outputs"},
        }


def body(way: str) -> dict[str, Any]:
    return training_job(ORDER, read_settings({**OPTIONS, **WAYS[way]}))


@pytest.fixture
def installed() -> None:
    """Skip where SageMaker's SDK is missing."""
    pytest.importorskip(
        "sagemaker.core.resources", reason="SageMaker's SDK is not installed: `make test-nightly` tests with it"
    )


@pytest.mark.parametrize("way", sorted(WAYS))
def test_boto3_sends_what_the_sdk_was_recorded_to_send(way: str) -> None:
    assert body(way) == json.loads(RECORDING.read_text())[way]


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("way", sorted(WAYS))
def test_the_sdk_sends_what_was_recorded(way: str) -> None:
    wire = Wire()
    sdk.create_by_sdk(body(way), sdk.session_of(lambda _: wire, "eu-central-1"))
    if os.environ.get("RECORD"):
        recorded = json.loads(RECORDING.read_text()) if RECORDING.exists() else {}
        RECORDING.write_text(json.dumps({**recorded, way: wire.sent}, indent=1, sort_keys=True) + "\n")
    assert wire.sent == json.loads(RECORDING.read_text())[way]


@pytest.mark.usefixtures("installed")
def test_a_pool_may_launch_by_the_sdk_and_look_its_image_up(world: World, waiting: Any) -> None:
    """On the emulator, through the same client: the job is found, adopted and stopped like any other."""
    platform = world.adapter(launcher="sdk", image="sdk:pytorch:2.10")
    first = platform.launch(waiting("uff-lm-1"), world.clock.now())
    assert platform.launch(waiting("uff-lm-1"), world.clock.now()).remote_id == first.remote_id
    world.until("uff-lm-1", SessionState.RUNNING)
    image = world.place.jobs["uff-lm-1"].request["AlgorithmSpecification"]["TrainingImage"]
    assert image.endswith("pytorch-training:2.10-gpu-py313")
    platform.stop("uff-lm-1", world.clock.now(), force=False)
    world.until("uff-lm-1", SessionState.ENDED)


@pytest.mark.usefixtures("installed")
def test_an_image_that_the_sdk_does_not_know_is_named() -> None:
    with pytest.raises(Misconfigured, match=r"9\.9.*Name one that it knows"):
        sdk.image_address("sdk:pytorch:9.9", "eu-central-1", "ml.g4dn.xlarge")


def test_without_the_sdk_its_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "sagemaker"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "sagemaker", None)
    with pytest.raises(Misconfigured, match=r"uff-scheduler\[sagemaker\]"):
        sdk.image_address("sdk:pytorch:2.10", "eu-central-1", "ml.g4dn.xlarge")
    with pytest.raises(Misconfigured, match="launcher = boto3"):
        sdk.create_by_sdk(body("plain"), sdk.session_of(lambda _: None, "eu-central-1"))


@pytest.mark.parametrize(
    ("option", "value"), [("image", "sdk:pytorch"), ("image", "sdk:a:b:c:d"), ("image", "sdk::2.10"), ("launcher", "x")]
)
def test_what_is_no_name_is_refused(option: str, value: str) -> None:
    with pytest.raises(Misconfigured, match=option):
        read_settings({**OPTIONS, option: value})
