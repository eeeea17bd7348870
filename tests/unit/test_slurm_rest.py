"""Where slurmrestd may be, and what of sbatch's words its API has."""

from pathlib import Path

import pytest

from platforms.base import Misconfigured
from platforms.slurm.rest import _fields
from platforms.slurm.settings import read_settings


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"token_file": "/t"}, "without slurmrestd"),
        ({"slurmrestd": "http://127.0.0.1:6820"}, "needs a token"),
        ({"slurmrestd": "http://head:6820", "token_file": "/t"}, "in the clear"),
        ({"slurmrestd": "https://user:secret@head", "token_file": "/t"}, "no plain http"),
        ({"slurmrestd": "unix:socket"}, "not usable"),
        ({"slurmrestd": "head:6820", "token_file": "/t"}, "no plain http"),
    ],
)
def test_an_address_that_would_give_a_token_away_or_is_none_is_refused(options: dict[str, str], why: str) -> None:
    with pytest.raises(Misconfigured, match=why) as error:
        read_settings(options, Path("/state"), "python3")
    assert "secret" not in str(error.value)


@pytest.mark.parametrize(
    "options",
    [
        {"slurmrestd": "unix:/run/slurmrestd.sock"},
        {"slurmrestd": "unix:/run/slurmrestd.sock", "token_file": "/t"},
        {"slurmrestd": "http://127.0.0.1:6820", "token_file": "/t"},
        {"slurmrestd": "https://head:6820", "token_file": "/t"},
    ],
)
def test_a_socket_needs_no_token_and_a_network_is_encrypted(options: dict[str, str]) -> None:
    assert read_settings(options, Path("/state"), "python3").slurmrestd == options["slurmrestd"]


def test_every_option_of_a_pool_has_a_word_in_the_api() -> None:
    options = {
        "partition": "gpu", "account": "uff", "qos": "high", "constraint": "a100&ib", "exclude": "n1", "memory": "64G",
        "gres": "gpu:h100", "cpus": "16", "nodes": "2",
    }  # fmt: skip
    words = read_settings(options, Path("/state"), "python3").words(8)
    assert _fields(["--comment=mine", "--no-requeue", "--signal=B:TERM@120", "--time=90", *words]) == {
        "comment": "mine", "requeue": False, "time_limit": 90, "nodes": [2, 2], "tasks": 2, "tasks_per_node": 1,
        "partition": "gpu", "account": "uff", "qos": "high", "constraints": "a100&ib", "exclude_nodes": "n1",
        "memory_per_node": "64G", "gres": "gpu:h100:4", "cpus_per_task": 16,
    }  # fmt: skip
    with pytest.raises(Misconfigured, match="no word for --array"):
        _fields(["--array=1-9"])
