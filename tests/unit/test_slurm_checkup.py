"""What `schedctl doctor slurm` reports of nodes and options, from answers of sinfo and sbatch of real clusters."""

from pathlib import Path

import pytest

from platforms.base import BadOption, Unreachable
from platforms.slurm.checkup import SlurmNodes, checks, cluster_of, nodes_of
from platforms.slurm.settings import read_settings

DRAINED = "gpu*|drained|2|1-00:00:00|gpu:h100:4|bad fan"
DOWN = "gpu*|down*|1|1-00:00:00|gpu:h100:4|Not responding"
MIXED = "gpu*|mixed|3|1-00:00:00|gpu:a100:8(S:0-1)|none"
PROCESSORS = "cpu|idle|10|infinite|(null)|none"
REFUSED = "sbatch: error: Batch job submission failed: Requested node configuration is not available"


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of programs that print what a cluster printed."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    _program(tmp_path / "sbatch", REFUSED, 1)
    return tmp_path


def _program(file: Path, prints: str, exit_code: int = 0) -> None:
    file.write_text(f"#!/bin/sh\ncat <<'END'\n{prints}\nEND\nexit {exit_code}\n")
    file.chmod(0o755)


@pytest.mark.parametrize(
    ("rows", "grade", "words", "remedy"),
    [
        ([DRAINED, DOWN, PROCESSORS], "warning", "bad fan", "sinfo -R"),
        ([MIXED], "bad", REFUSED.removeprefix("sbatch: "), "Correct the options"),
        ([MIXED, DOWN], "bad", "Not responding", "If other nodes are meant, correct the options"),
    ],
)
def test_a_refused_job_is_blamed_on_nodes_out_of_service_where_no_other_is_meant(
    slurm: Path, rows: list[str], grade: str, words: str, remedy: str
) -> None:
    _program(slurm / "sinfo", "\n".join(rows))
    checked = checks({}, {}, 0, probe=False)["a job like ours"]()
    assert checked.grade == grade
    assert words in checked.found
    assert remedy in checked.remedy


def test_nodes_out_of_service_are_listed_with_the_reason(slurm: Path) -> None:
    _program(slurm / "sinfo", f"{DRAINED}\n{DOWN}")
    checked = checks({}, {}, 0, probe=False)["nodes"]()
    assert checked.grade == "warning"
    assert checked.found == (
        '2 drained in gpu (4 x gpu:h100, at most 1440 min): "bad fan"; '
        '1 down* in gpu (4 x gpu:h100, at most 1440 min): "Not responding"'
    )
    _program(slurm / "sinfo", "")
    assert checks({"partition": "gqu"}, {}, 0, probe=False)["nodes"]().remedy == "Correct the option partition"


def test_nodes_are_read_with_gpus_and_time_limits_and_damaged_rows_are_left_out(slurm: Path) -> None:
    _program(slurm / "sinfo", f'{PROCESSORS}\n{MIXED}\nno row\n"]|idle|1|30:00|gpu:1|none')
    assert nodes_of({}) == [
        SlurmNodes("gpu", True, "mixed", 3, "gpu:a100", 8, 86_400, ""),
        SlurmNodes("cpu", False, "idle", 10, "", 0, None, ""),
    ]
    assert cluster_of({}).partition == "gpu"
    _program(slurm / "sinfo", DRAINED)
    with pytest.raises(Unreachable, match="no node of the cluster is up"):
        cluster_of({})


@pytest.mark.parametrize("dropped", ["slurmrestd", "token_file"])
def test_options_of_slurmrestd_are_refused_with_the_options_of_ssh(dropped: str) -> None:
    with pytest.raises(BadOption, match=rf"{dropped}: Slurm is no longer asked through slurmrestd") as error:
        read_settings({dropped: "/somewhere"}, Path("/state"), "python3")
    assert "by ssh: host, folder, known_hosts" in str(error.value)
