"""What the emulator does as AWS does it, for training scripts and requests that are not ours: boto3 and no more."""

import io
import tarfile
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from platforms.artifacts.s3.client import connect
from platforms.emulators.sagemaker.server import SageMakerServer
from tests.lab.patience import until

World = Any  # see conftest.py

IMAGE = "123456789012.dkr.ecr.us-east-1.amazonaws.com/pytorch-training:2.10"
ROLE = "arn:aws:iam::123456789012:role/uff-execution"


NO_IMAGES = [
    "whatever runs here",
    "pytorch",
    "docker.io/pytorch:latest",
    "12345.dkr.ecr.us-east-1.amazonaws.com/x:1",
    IMAGE.replace("us-east-1", "eu-west-1"),
    f"{IMAGE}{'0' * 255}",
]


class Account:
    """Training jobs of somebody who uses boto3 alone."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.files = connect("s3", region="us-east-1", endpoint=world.address)
        self.jobs = connect("sagemaker", region="us-east-1", endpoint=world.address)

    def train(self, name: str, program: str, **fields: Any) -> None:
        """Start a job that runs a Python program."""
        bucket = f"s3://{self.world.bucket}"
        self.put(f"{name}/code/train.py", program.encode())
        source = {"S3DataType": "S3Prefix", "S3Uri": f"{bucket}/{name}/code/"}
        request: dict[str, Any] = {
            "TrainingJobName": name,
            "RoleArn": ROLE,
            "AlgorithmSpecification": {
                "TrainingImage": IMAGE,
                "TrainingInputMode": "File",
                "ContainerEntrypoint": ["python3"],
                "ContainerArguments": ["/opt/ml/input/data/code/train.py"],
            },
            "InputDataConfig": [{"ChannelName": "code", "DataSource": {"S3DataSource": source}}],
            "OutputDataConfig": {"S3OutputPath": f"{bucket}/out"},
            "ResourceConfig": {"InstanceType": "ml.g4dn.xlarge", "InstanceCount": 1, "VolumeSizeInGB": 50},
            "StoppingCondition": {"MaxRuntimeInSeconds": 86_400},
        }
        self.jobs.create_training_job(**{**request, **fields})

    def put(self, key: str, data: bytes) -> None:
        """Write an object."""
        self.files.put_object(Bucket=self.world.bucket, Key=key, Body=data)

    def keys(self, prefix: str) -> dict[str, bytes]:
        """The objects below a prefix; one that vanishes between the listing and the reading is not there."""
        listed = self.files.list_objects_v2(Bucket=self.world.bucket, Prefix=prefix).get("Contents", ())
        found: dict[str, bytes] = {}
        for name in [entry["Key"] for entry in listed]:
            with suppress(self.files.exceptions.NoSuchKey):
                answer = self.files.get_object(Bucket=self.world.bucket, Key=name)
                found[name.removeprefix(prefix)] = answer["Body"].read()
        return found

    def until(self, name: str, *statuses: str) -> dict[str, Any]:
        """Wait, within reason, for one of some statuses, primary or secondary."""

        def look() -> dict[str, Any] | None:
            seen: dict[str, Any] = self.jobs.describe_training_job(TrainingJobName=name)
            return seen if {seen["TrainingJobStatus"], seen["SecondaryStatus"]} & set(statuses) else None

        return until(look, f"{name} to be one of {statuses}")


@pytest.fixture
def account(world: World) -> Account:
    """An account that may have five jobs at a time."""
    world.place.rules.instances_max = 5
    return Account(world)


def test_a_spot_job_that_lost_its_instance_begins_anew_on_another_disk(account: Account, tmp_path: Path) -> None:
    """What it wrote is gone with the instance, and nothing is paid for the wait."""
    rules = account.world.place.rules
    rules.spot_seconds, rules.spot_back_seconds, rules.spot_share = 1_200, 600, 1.0
    program = (
        "import os, pathlib, signal, sys\n"
        "root = pathlib.Path(os.path.dirname(__file__)).parents[2]\n"
        f"seen = pathlib.Path({str(tmp_path / 'seen')!r})\n"
        "if seen.exists():\n"
        "    sys.exit(len(list((root / 'model').iterdir())))\n"
        "(root / 'model' / 'unsaved').write_text('gone')\n"
        "seen.touch()\n"
        "while True: signal.pause()\n"
    )
    stopping = {"MaxRuntimeInSeconds": 86_400, "MaxWaitTimeInSeconds": 86_400}
    account.train("spot", program, EnableManagedSpotTraining=True, StoppingCondition=stopping)
    done = account.until("spot", "Completed", "Failed")
    stages = [step["Status"] for step in done["SecondaryStatusTransitions"]]
    after = stages[stages.index("Interrupted") :]
    assert after == ["Interrupted", "Restarting", "Training", "Uploading", "Completed"], done.get("FailureReason")
    assert account.keys("out/spot/output/") == {}, "another disk"
    assert 600 <= done["TrainingTimeInSeconds"] - done["BillableTimeInSeconds"] < 1_200


def test_what_aws_refuses_is_refused(account: Account) -> None:
    """At once and by its own word; nothing runs then."""
    runtime, cpu = {"MaxRuntimeInSeconds": 3_600}, {"InstanceType": "ml.m5.xlarge", "InstanceCount": 1}
    wish = {"InstancePreferences": [{"InstanceType": "ml.g5.xlarge", "InstanceCount": 1}], "VolumeSizeInGB": 50}
    algorithm = {"TrainingImage": IMAGE, "TrainingInputMode": "File", "ContainerEntrypoint": ["python3"]}
    wrong: list[dict[str, Any]] = [
        {"TrainingJobName": "a_b"},
        {"TrainingJobName": "a" * 64},
        {"RoleArn": "uff-execution-role-of-ours"},
        {"StoppingCondition": {"MaxRuntimeInSeconds": 28 * 86_400 + 1}},
        {"StoppingCondition": {**runtime, "MaxWaitTimeInSeconds": 3_600}},
        {"StoppingCondition": runtime, "EnableManagedSpotTraining": True},
        {
            "StoppingCondition": {**runtime, "MaxPendingTimeInSeconds": 1_800},
            "ResourceConfig": {**cpu, "VolumeSizeInGB": 50},
        },
        {"ResourceConfig": {**wish, "InstanceType": "ml.g5.xlarge", "InstanceCount": 1}},
        {
            "StoppingCondition": {**runtime, "MaxWaitTimeInSeconds": 3_600},
            "ResourceConfig": wish,
            "EnableManagedSpotTraining": True,
        },
        {"Environment": {"A": "x" * 513}},
        {"AlgorithmSpecification": {**algorithm, "ContainerArguments": ["x" * 257]}},
        {"AlgorithmSpecification": {**algorithm, "AlgorithmName": "of-ours"}},
        {"AlgorithmSpecification": {name: word for name, word in algorithm.items() if name != "TrainingImage"}},
        *({"AlgorithmSpecification": {**algorithm, "TrainingImage": image}} for image in NO_IMAGES),
    ]
    for fields in wrong:
        with pytest.raises(account.jobs.exceptions.ClientError) as refused:
            account.train("refused", "pass", **fields)
        assert refused.value.response["Error"]["Code"] == "ValidationException", fields
    assert account.world.place.jobs == {}
    account.train("taken", "pass")
    with pytest.raises(account.jobs.exceptions.ResourceInUse):
        account.train("taken", "pass")
    account.until("taken", "Completed")
    with pytest.raises(account.jobs.exceptions.ClientError, match="is in status Completed"):
        account.jobs.stop_training_job(TrainingJobName="taken")


def test_the_first_type_with_a_machine_is_taken_in_the_order_of_the_wishes(account: Account) -> None:
    account.world.place.rules.no_capacity_types = {"ml.g6.xlarge"}
    types = ("ml.g6.xlarge", "ml.g5.xlarge", "ml.g4dn.xlarge")
    wishes = [{"InstanceType": name, "InstanceCount": 1} for name in types]
    account.train("wishing", "pass", ResourceConfig={"InstancePreferences": wishes, "VolumeSizeInGB": 50})
    seen = account.until("wishing", "Completed")
    assert seen["ResourceConfig"]["SelectedInstanceType"] == "ml.g5.xlarge"
    account.world.place.rules.no_capacity_types = set(types)
    account.train("wishing-2", "pass", ResourceConfig={"InstancePreferences": wishes, "VolumeSizeInGB": 50})
    failed = account.until("wishing-2", "Failed")
    assert failed["FailureReason"].startswith("CapacityError")
    assert "TrainingStartTime" not in failed


def test_model_and_output_are_left_where_aws_leaves_them(account: Account) -> None:
    program = (
        "import os, pathlib\n"
        "root = pathlib.Path(os.path.dirname(__file__)).parents[2]\n"
        "(root / 'model' / 'weights').write_text('w')\n"
        "(root / 'output' / 'data' / 'plot').write_text('p')\n"
    )
    account.train("leaving", program)
    account.until("leaving", "Completed")
    left = account.keys("out/leaving/output/")
    assert set(left) == {"model.tar.gz", "output.tar.gz"}
    with tarfile.open(fileobj=io.BytesIO(left["model.tar.gz"])) as packed:
        assert "./weights" in packed.getnames()


def test_what_a_program_says_of_its_failure_is_told(account: Account) -> None:
    program = (
        "import os, pathlib, sys\n"
        "(pathlib.Path(os.path.dirname(__file__)).parents[2] / 'output' / 'failure').write_text('no such word')\n"
        "sys.exit(3)\n"
    )
    account.train("failing", program)
    assert account.until("failing", "Failed")["FailureReason"] == "AlgorithmError: no such word, exit code: 3"


def test_calls_for_one_object_take_turns(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Moto closes what is written anew under the hands of another writer, and answers with an error of the server."""
    server, at_work, seen = SageMakerServer(world.place), 0, []

    def moto(environ: dict[str, Any], start: object) -> list[bytes]:
        nonlocal at_work
        at_work += 1
        seen.append(at_work)
        threading.Event().wait(0.1)
        at_work -= 1
        return [b""]

    monkeypatch.setattr(server, "_moto", moto, raising=False)  # it is made when the server is entered
    with ThreadPoolExecutor(4) as pool:
        answers = [pool.submit(server.answer, {"PATH_INFO": "/bucket/one.json"}, lambda *_: None) for _ in range(4)]
    assert [answer.result() for answer in answers] == [[b""]] * 4
    assert seen == [1, 1, 1, 1]
