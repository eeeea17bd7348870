"""What the emulator does as AWS does it, for training scripts and requests that are not ours: boto3 and no more."""

import io
import tarfile
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest

from platforms.artifacts.s3.client import connect
from platforms.emulators.sagemaker.server import Server
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
        """Start a job that runs a Python program; its checkpoints are at ``checkpoints``, if that is given."""
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

    def until_there(self, prefix: str, name: str) -> None:
        """Wait, within reason, for an object."""
        until(lambda: name in self.keys(prefix), f"{prefix}{name}")


@pytest.fixture
def account(world: World) -> Account:
    """An account whose checkpoints are synced every scheduled minute, a tenth of a second."""
    world.place.rules.instances_max = 5
    return Account(world)


WAITING = """
import os, pathlib, signal, sys
folder = pathlib.Path(os.path.dirname(__file__)).parents[2] / "checkpoints"
def stop(*_):
    (folder / "after-sigterm").write_text("late")
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
"""


def checkpoints(account: Account, prefix: str) -> dict[str, Any]:
    return {"CheckpointConfig": {"S3Uri": f"s3://{account.world.bucket}/{prefix}"}}


def test_a_prefix_without_a_slash_restores_its_neighbours_too(account: Account) -> None:
    """The trap for which our own prefixes end with one."""
    account.put("ckpt/run-1/weights", b"ours")
    account.put("ckpt/run-10/weights", b"a neighbour's")
    program = WAITING + "print(sorted(p.relative_to(folder).as_posix() for p in folder.rglob('*') if p.is_file()))"
    account.train("loose", program, **checkpoints(account, "ckpt/run-1"))
    account.train("tight", program, **checkpoints(account, "ckpt/run-1/"))
    for name in ("loose", "tight"):
        account.until(name, "Completed")
    logs = connect("logs", region="us-east-1", endpoint=account.world.address)
    group = "/aws/sagemaker/TrainingJobs"
    said = {}
    for stream in logs.describe_log_streams(logGroupName=group)["logStreams"]:
        name = stream["logStreamName"]
        events = logs.get_log_events(logGroupName=group, logStreamName=name)["events"]
        said[name.split("/")[0]] = events[0]["message"]
    assert said == {"tight": "['weights']", "loose": "['0/weights', 'weights']"}


def test_what_is_deleted_locally_is_deleted_in_s3_and_markers_appear(account: Account) -> None:
    program = WAITING + (
        "(folder / 'old').write_text('1')\n"
        "(folder / 'temporary.sagemaker-ignore').write_text('x')\n"
        "while not (folder / 'old.sagemaker-uploaded').exists(): signal.sigtimedwait([], 0.01)\n"
        "(folder / 'old').unlink()\n"
        "(folder / 'new').write_text('2')\n"
        "while True: signal.pause()\n"
    )
    account.train("deleting", program, **checkpoints(account, "ckpt/d/"))
    account.until_there("ckpt/d/", "new")
    # The old one went, the ignored one and the markers never came.
    until(lambda: set(account.keys("ckpt/d/")) == {"new"}, "the new one alone")
    account.jobs.stop_training_job(TrainingJobName="deleting")
    account.until("deleting", "Stopped")


@pytest.mark.parametrize("synced", [False, True])
def test_the_last_save_need_not_be_uploaded(account: Account, synced: bool) -> None:
    account.world.place.rules.syncs_after_sigterm = synced
    program = WAITING + "(folder / 'first').write_text('1')\nwhile True: signal.pause()\n"
    account.train("stopped", program, **checkpoints(account, "ckpt/s/"))
    account.until_there("ckpt/s/", "first")
    account.jobs.stop_training_job(TrainingJobName="stopped")
    account.until("stopped", "Stopped")
    assert ("after-sigterm" in account.keys("ckpt/s/")) == synced


def test_a_spot_job_that_lost_its_instance_begins_anew_with_its_checkpoints(account: Account) -> None:
    """What it wrote since the last sync is gone with the instance, and nothing is paid for the wait."""
    rules = account.world.place.rules
    rules.spot_seconds, rules.spot_back_seconds, rules.spot_share = 1_200, 600, 1.0
    program = WAITING + (
        "if (folder / 'first').exists():\n"
        "    print(sorted(path.name for path in folder.iterdir()))\n"
        "    sys.exit(0)\n"
        "(folder / 'first').write_text('1')\n"
        "while not (folder / 'first.sagemaker-uploaded').exists(): signal.sigtimedwait([], 0.01)\n"
        "(folder.parent / 'model' / 'unsynced').write_text('gone')\n"
        "while True: signal.pause()\n"
    )
    stopping = {"MaxRuntimeInSeconds": 86_400, "MaxWaitTimeInSeconds": 86_400}
    spot = {"EnableManagedSpotTraining": True, "StoppingCondition": stopping}
    account.train("spot", program, **spot, **checkpoints(account, "ckpt/spot/"))
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
    server, at_work, seen = Server(world.place), 0, []

    def moto(environ: dict[str, Any], start: object) -> list[bytes]:
        nonlocal at_work
        at_work += 1
        seen.append(at_work)
        threading.Event().wait(0.1)
        at_work -= 1
        return [b""]

    monkeypatch.setattr(server, "_moto", moto, raising=False)  # it is made when the server is entered
    with ThreadPoolExecutor(4) as pool:
        answers = [pool.submit(server._answer, {"PATH_INFO": "/bucket/one.json"}, lambda *_: None) for _ in range(4)]
    assert [answer.result() for answer in answers] == [[b""]] * 4
    assert seen == [1, 1, 1, 1]
