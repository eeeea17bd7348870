"""Who is blamed for a failed command: last lines of public threads, and what other processes echo of it."""

import tomllib
from pathlib import Path
from typing import get_args

import pytest

from jobs.payload.lane.failure import HARDWARE, PATTERNS, ErrorClass, classify
from tests.lab import __file__ as lab

LINES = tomllib.loads(Path(lab).with_name("last_lines.toml").read_text(encoding="utf-8"))["line"]
TRACEBACK = 'Traceback (most recent call last):\n  File "train.py", line 7, in <module>\n    main()\n'
RETRIED = (
    "WARNING: '(ReadTimeoutError(\"HTTPSConnectionPool(host='hub', port=443): Read timed out.\"))' Retrying in 1s\n"
)
LAUNCHER = TRACEBACK + "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: train.py FAILED\n"


@pytest.mark.parametrize("line", LINES, ids=lambda line: line["source"])
def test_last_lines_of_public_threads_get_the_class_we_judged_right(line: dict[str, str]) -> None:
    assert classify(1, line["text"]).error_class == line["error_class"]
    assert classify(1, TRACEBACK + line["text"] + "\n" + LAUNCHER).error_class == line["error_class"]


def test_there_are_sixty_lines_and_each_names_its_thread() -> None:
    assert len({line["text"] for line in LINES}) >= 60
    assert all(line["source"].count("/") == 1 and "#" in line["source"] for line in LINES)


def test_every_pattern_has_a_source_and_a_class_that_the_daemon_knows() -> None:
    for pattern in (*HARDWARE, *PATTERNS):
        assert pattern.error_class in get_args(ErrorClass)
        assert "/" in pattern.source


@pytest.mark.parametrize(
    ("exit_code", "errors", "error_class"),
    [
        (1, RETRIED * 3 + TRACEBACK + "KeyError: 'text'", "code"),
        (1, TRACEBACK + "ConnectionError: Read timed out.\n" + TRACEBACK + "KeyError: 'text'", "code"),
        (
            1,
            TRACEBACK
            + "requests.exceptions.ReadTimeout: Read timed out.\n\n"
            + "During handling of the above exception, another exception occurred:\n\n"
            + TRACEBACK
            + "UnboundLocalError: cannot access local variable 'answer'",
            "network",
        ),
        # One process of two dies of the job's own fault; the other says what it sees of that.
        (
            1,
            TRACEBACK
            + "[rank1]: KeyError: 'text'\n"
            + TRACEBACK
            + "torch.distributed.DistBackendError: NCCL error: remote process exited\n"
            + LAUNCHER,
            "code",
        ),
        (
            1,
            "terminate called after throwing 'c10::Error'\n  what():  CUDA error: unknown error",
            "device",
        ),
        (1, TRACEBACK + "ValueError: 3 rows\nNVRM: Xid (PCI:0000:02:00): 63, pid=9, Row Remapper", "device"),
        (1, TRACEBACK + "IndexError: 9\nNVRM: Xid (PCI:0000:02:00): 31, pid=9, MMU Fault", "code"),
        (1, "RuntimeError: CUDA error: x\nCompile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.", "code"),
        (-7, "", "device"),
        (-11, "Fatal Python error: Segmentation fault\n", "device"),
        (139, "", "device"),
        (-11, TRACEBACK + "KeyError: 'text'", "code"),
        (-9, "torch.OutOfMemoryError: CUDA out of memory.", "oom"),
        (-6, "", "code"),
        (2, "usage: train.py [-h]\ntrain.py: error: unrecognized arguments: --rat", "code"),
        (65, "requests.exceptions.ReadTimeout: Read timed out.", "data"),
    ],
)
def test_the_blame_follows_from_what_ended_the_command(exit_code: int, errors: str, error_class: str) -> None:
    assert classify(exit_code, errors).error_class == error_class


@pytest.mark.parametrize(
    ("exit_code", "how"), [(-7, "(died of SIGBUS)"), (139, "(exit status 139)"), (-6, "died of SIGABRT")]
)
def test_the_sentence_says_how_the_command_ended(exit_code: int, how: str) -> None:
    assert classify(exit_code, "").why.endswith(how)
