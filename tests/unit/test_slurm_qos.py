"""What a QOS grants is read as Slurm 22.05 prints it, and nothing is made up of what it does not tell."""

import pytest

from platforms.slurm.commands import Association, Cap, read_qos

# Of a real controller, with two jobs of root that hold two GPUs each.
REST = "cpu=N(2),mem=N(200),energy=N(0),node=N(1),billing=N(2),fs/disk=N(0),vmem=N(0),pages=N(0)"
RECORD = (
    "QOS=small(2) UsageRaw=0.000000 GrpJobs=5(2) GrpJobsAccrue=N(3) GrpSubmitJobs=N(5) GrpWall=N(0.00) "
    f"GrpTRES={REST},gres/gpu=6(4) GrpTRESMins={REST},gres/gpu=600(12) GrpTRESRunMins={REST},gres/gpu=N(40) "
    "MaxWallPJ= MaxTRESPJ=gres/gpu=2 MaxTRESPN= MaxTRESMinsPJ= MinPrioThresh=  MinTRESPJ= PreemptMode=OFF Priority=0 "
    "Account Limits= uff={MaxJobsPA=N(2) MaxJobsAccruePA=N(3) MaxSubmitJobsPA=N(5) "
    f"MaxTRESPA={REST},gres/gpu=N(4)}} User Limits= 1000={{MaxJobsPU=3(1) MaxTRESPU={REST},gres/gpu=4(2)}} "
    f"0={{MaxJobsPU=3(2) MaxJobsAccruePU=N(3) MaxSubmitJobsPU=N(5) MaxTRESPU={REST},gres/gpu=4(4)}}"
)
UNLIMITED = (
    "QOS=normal(1) UsageRaw=0.000000 GrpJobs=N(0) GrpJobsAccrue=N(0) GrpSubmitJobs=N(0) GrpWall=N(0.00) "
    f"GrpTRES={REST},gres/gpu=N(0) GrpTRESMins={REST},gres/gpu=N(0) GrpTRESRunMins={REST},gres/gpu=N(0) MaxWallPJ= "
    "MaxTRESPJ= MaxTRESPN= MaxTRESMinsPJ= MinPrioThresh=  MinTRESPJ= PreemptMode=OFF Priority=0 "
    "Account Limits=No Accounts User Limits=No Users"
)


def test_minutes_and_caps_are_those_of_the_user_who_asks() -> None:
    found = read_qos("small", RECORD, "gres/gpu=4|3", "0")
    assert found.minutes == Association(limit=600, used=12, running=40)
    assert set(found.caps) == {
        Cap("all together in the QOS small", 6, 4, "GPUs"),
        Cap("you in the QOS small", 4, 4, "GPUs"),
        Cap("one session in the QOS small", 2, 0, "GPUs"),
        Cap("all together in the QOS small", 5, 2, "jobs"),
        Cap("you in the QOS small", 3, 2, "jobs"),
    }
    other = read_qos("small", RECORD, "gres/gpu=4|3", "1000")
    assert Cap("you in the QOS small", 4, 2, "GPUs") in other.caps


def test_a_user_whom_the_record_does_not_name_holds_nothing_and_has_the_limits() -> None:
    found = read_qos("small", RECORD, "gres/gpu=4|3", "1")
    assert Cap("you in the QOS small", 4, 0, "GPUs") in found.caps
    assert Cap("you in the QOS small", 3, 0, "jobs") in found.caps


@pytest.mark.parametrize("record", [UNLIMITED, "", "QOS=x(1) GrpTRES=gres/gpu=6 GrpJobs=5", "rubbish Account Limits="])
def test_what_is_not_limited_or_not_told_is_no_limit_that_anything_is_made_of(record: str) -> None:
    found = read_qos("normal", record, "|", "0")
    assert found.minutes is None
    assert all(cap.limit == 6 and cap.used == 0 for cap in found.caps)


@pytest.mark.parametrize(("devices", "refused"), [(1, False), (2, False), (3, True)])
def test_a_cap_refuses_what_would_wait_for_others(devices: int, refused: bool) -> None:
    assert bool(Cap("you", 4, 2, "GPUs").refuses(devices)) == refused


def test_a_cap_of_jobs_counts_a_session_once_and_says_why() -> None:
    assert not Cap("you", 3, 2, "jobs").refuses(4)
    assert Cap("you", 3, 3, "jobs").refuses(4) == "you may run 3 jobs at once: 3 now, and 1 more asked"
