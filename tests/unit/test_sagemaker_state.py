"""What a description of a training job means: when it is over, and what is charged."""

from datetime import UTC, datetime
from typing import Any

import pytest

from platforms.base import InQueue, SessionState
from platforms.sagemaker.answers import failure, lacking, lost_its_instance, observed

START, END, NOW = 1_800_000_000, 1_800_003_600, 1_800_010_000


def description(status: str, secondary: str, **more: Any) -> dict[str, Any]:
    name = {"TrainingJobName": "uff-ufm-0001", "TrainingJobArn": "arn", "TrainingJobStatus": status}
    return {**name, "SecondaryStatus": secondary, **more}


def at(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


@pytest.mark.parametrize(
    ("status", "secondary", "started", "state"),
    [
        ("InProgress", "Starting", False, SessionState.QUEUED),
        ("InProgress", "Pending", False, SessionState.QUEUED),
        ("InProgress", "Downloading", True, SessionState.RUNNING),
        ("InProgress", "Training", True, SessionState.RUNNING),
        ("InProgress", "Uploading", True, SessionState.RUNNING),
        ("InProgress", "SomethingNew", True, SessionState.RUNNING),
        ("SomethingNew", "SomethingNew", False, SessionState.UNCLEAR),
        ("SomethingNew", "SomethingNew", True, SessionState.UNCLEAR),
        ("Stopping", "Stopping", True, SessionState.RUNNING),
        ("Completed", "Completed", True, SessionState.ENDED),
        ("Stopped", "MaxRuntimeExceeded", True, SessionState.ENDED),
        ("Failed", "Failed", True, SessionState.ENDED),
        ("Failed", "Failed", False, SessionState.ABSENT),
        ("Stopped", "Stopped", False, SessionState.ABSENT),
        ("Deleting", "Completed", True, SessionState.ENDED),
    ],
)
def test_states_are_told_from_status_and_meter(status: str, secondary: str, started: bool, state: SessionState) -> None:
    times = {"TrainingStartTime": at(START), "TrainingEndTime": at(END)} if started else {}
    assert observed(description(status, secondary, **times), NOW).state is state


def test_what_is_charged_is_what_is_billed() -> None:
    """A spot job is billed less than it ran; its charge is the bill, from its start on."""
    job = description("Completed", "Completed", TrainingStartTime=at(START), TrainingEndTime=at(END))
    seen = observed({**job, "BillableTimeInSeconds": 1_234}, NOW)
    assert (seen.started, seen.ended) == (START, START + 1_234)


def test_the_end_is_believed_when_the_bill_is_there_or_overdue() -> None:
    job = description("Stopped", "Stopped", TrainingStartTime=at(START), TrainingEndTime=at(END))
    assert observed(job, END + 599).state is SessionState.RUNNING
    late = observed(job, END + 600)
    assert (late.state, late.started, late.ended) == (SessionState.ENDED, START, END)


def test_the_end_of_an_overdue_bill_is_as_far_from_the_start_as_it_was() -> None:
    """Instants of AWS have fractions; cutting each of them off could make a second more of the time between."""
    times = {name: datetime.fromtimestamp(at, UTC) for name, at in (("Start", START + 0.8), ("End", END + 0.1))}
    job = description("Stopped", "Stopped", TrainingStartTime=times["Start"], TrainingEndTime=times["End"])
    late = observed(job, NOW)
    assert (late.started, late.ended) == (START, END - 1)


@pytest.mark.parametrize(("days", "why"), [(29, ""), (367, "BillableTimeInSeconds cannot be")])
def test_a_bill_may_be_longer_than_one_job_may_run(days: int, why: str) -> None:
    times = {"CreationTime": at(START), "TrainingStartTime": at(START), "BillableTimeInSeconds": days * 86_400}
    job = description("Stopped", "Stopped", **times)
    assert lacking(job, job["TrainingJobName"]) == why


def test_a_job_that_got_no_machine_was_never_a_session_whatever_times_it_shows() -> None:
    times = {"TrainingStartTime": at(START), "TrainingEndTime": at(START + 5)}
    job = description("Failed", "Failed", **times, FailureReason="CapacityError: Unable to provision")
    assert observed({**job, "BillableTimeInSeconds": 0}, NOW).state is SessionState.ABSENT
    assert observed({**job, "BillableTimeInSeconds": 5}, NOW).state is SessionState.ENDED, "what is billed was one"
    assert observed(job, START + 10).state is SessionState.RUNNING, "a bill may come"


@pytest.mark.parametrize(
    ("status", "secondary", "stages", "lost"),
    [
        ("InProgress", "Interrupted", ["Training", "Interrupted"], True),
        ("InProgress", "Training", ["Training", "Interrupted", "Starting", "Training"], True),
        ("InProgress", "Restarting", [], True),
        ("InProgress", "Training", ["Starting", "Downloading", "Training"], False),
        ("Stopping", "Stopping", ["Training", "Interrupted", "Stopping"], False),
        ("Stopped", "Stopped", ["Training", "Interrupted", "Stopping", "Stopped"], False),
    ],
)
def test_a_lost_instance_is_noticed_also_when_there_is_another(
    status: str, secondary: str, stages: list[str], *, lost: bool
) -> None:
    """What runs on the other one began anew from an old checkpoint."""
    steps = [{"Status": name, "StartTime": at(START)} for name in stages]
    assert lost_its_instance(description(status, secondary, SecondaryStatusTransitions=steps)) is lost
    assert lost_its_instance(description(status, secondary)) is (secondary in {"Interrupted", "Restarting"})


def test_a_failure_is_told_with_its_class() -> None:
    job = description("Failed", "Failed", FailureReason="CapacityError: Unable to provision requested ML compute")
    assert failure(job)[0] == "CapacityError"
    assert "CapacityError" in observed(job, NOW).detail
    assert failure(description("Failed", "Failed")) == ("", "")


@pytest.mark.parametrize(
    ("secondary", "steps", "why"),
    [
        ("Starting", [], "Starting"),
        ("Pending", [("Starting", "Preparing"), ("Pending", "Waiting for capacity")], "Pending: Waiting for capacity"),
        ("Pending", [("Starting", "Preparing the instances")], "Pending"),
        ("LaunchingMLInstances", [("LaunchingMLInstances", "")], "LaunchingMLInstances"),
    ],
)
def test_a_job_without_a_machine_waits_and_says_why(secondary: str, steps: list[tuple[str, str]], why: str) -> None:
    moves = [{"Status": status, "StatusMessage": message} for status, message in steps]
    seen = observed(description("InProgress", secondary, SecondaryStatusTransitions=moves), NOW)
    assert seen.waits == InQueue(why)
    started = description("InProgress", "Training", TrainingStartTime=at(START), SecondaryStatusTransitions=moves)
    assert observed(started, NOW).waits is None


@pytest.mark.parametrize(
    ("secondary", "stages", "reason", "taken"),
    [
        ("Stopped", ["Training", "Interrupted", "Stopping", "Stopped"], "", True),
        ("MaxWaitTimeExceeded", ["Training", "Interrupted", "Stopped"], "", True),
        ("Failed", ["Training", "Failed"], "InternalServerError: We encountered an internal error", True),
        ("Failed", ["Training", "Failed"], "CapacityError: Unable to provision", True),
        ("Failed", ["Training", "Failed"], "AlgorithmError: InternalServerError: exit code 1", False),
        ("Stopped", ["Training", "Stopping", "Stopped"], "", False),
        ("MaxRuntimeExceeded", ["Training", "Stopping", "Stopped"], "", False),
    ],
)
def test_a_job_whose_machine_aws_took_away_is_told_as_taken(
    secondary: str, stages: list[str], reason: str, *, taken: bool
) -> None:
    times = {"TrainingStartTime": at(START), "TrainingEndTime": at(END), "BillableTimeInSeconds": 3_600}
    steps = [{"Status": name, "StartTime": at(START)} for name in stages]
    status = "Failed" if reason else "Stopped"
    job = description(status, secondary, **times, SecondaryStatusTransitions=steps, FailureReason=reason)
    assert observed(job, NOW).taken is taken
