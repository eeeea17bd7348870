"""The emulator as a program of its own."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from platforms.emulators.program import _processes_below
from platforms.kaggle.api.client import KaggleClient, Push
from platforms.kaggle.api.wire import Wire
from platforms.kaggle.settings import Credentials
from tests.lab.patience import PATIENCE_SECONDS, until

Start = Callable[..., tuple["subprocess.Popen[str]", KaggleClient]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts the program on one folder; returns its process and a client of it."""
    started: list[subprocess.Popen[str]] = []

    def start_program(*options: str) -> tuple["subprocess.Popen[str]", KaggleClient]:
        command = [sys.executable, "-m", "platforms.emulators.kaggle", str(tmp_path / "place"), "--scale", "100"]
        process = subprocess.Popen(
            [*command, *options], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        started.append(process)
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("the-key\n")
        process.stdin.flush()
        address = process.stdout.readline().strip()
        wire = Wire(Credentials("a test", username="alice", key="the-key"), address, 5)
        return process, KaggleClient(wire, tries=1, pause_seconds=0)

    yield start_program
    for process in started:
        with process:
            process.kill()
    for pid in _processes_below(
        tmp_path / "place"
    ):  # those of an emulator that was killed, where a test failed before their end
        os.kill(pid, signal.SIGKILL)


def push(client: KaggleClient, source: str = "import signal; print('up', flush=True); signal.pause()") -> None:
    pushed = client.push(Push("the-kernel", "the kernel", source, (), "NvidiaTeslaT4", 43_200, internet=False), 5)
    assert pushed.error == ""
    becomes(client, ("RUNNING", ""))


def waiting_for(gate: Path) -> str:
    """Return the source of a kernel that goes on when somebody has written into the pipe ``gate``, which is made."""
    os.mkfifo(gate)
    return LONG.replace("GO", str(gate))


def becomes(client: KaggleClient, wanted: tuple[str, str]) -> None:
    until(lambda: client.status("the-kernel") == wanted, f"the kernel to become {wanted}")


def test_it_ends_with_its_input_and_takes_its_kernels_along(start: Start, tmp_path: Path) -> None:
    process, client = start()
    push(client)
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(PATIENCE_SECONDS) == 0
    assert _processes_below(tmp_path / "place") == []


CLOCK = ("--epoch", "2026-11-21T00:00:00Z", "--origin", "1795219200")
LONG = """
import pathlib
print("up", flush=True)
pathlib.Path("GO").read_text()  # a pipe: returns once somebody has opened and closed it
pathlib.Path("result.txt").write_text("done")
print("over", flush=True)
"""


def test_killed_and_started_again_it_goes_on_with_account_sessions_and_bill(start: Start, tmp_path: Path) -> None:
    """As the real place would: the kernel never notices, what it prints meanwhile is there, and it is billed on."""
    process, client = start(*CLOCK)
    push(client, waiting_for(tmp_path / "go"))
    began, billed = client.last_run("the-kernel"), client.week().used_seconds
    (tmp_path / "file").write_bytes(b"content")
    token = client.datasets.upload(tmp_path / "file", "file.bin", 5)
    assert client.datasets.create("some-data", "some data", [token]) == ""
    journals = (tmp_path / "place").rglob
    until(lambda: any("up" in file.read_text() for file in journals("journal")), "the kernel's first line written down")
    process.kill()
    process.wait()
    (pid, *_) = _processes_below(tmp_path / "place")

    _, client = start(*CLOCK)
    assert pid in _processes_below(tmp_path / "place")
    assert client.status("the-kernel") == ("RUNNING", "")
    assert client.last_run("the-kernel") == began
    assert client.week().used_seconds >= billed
    assert "already in use" in client.datasets.create("some-data", "some data", [token])
    (tmp_path / "go").write_text("")
    becomes(client, ("COMPLETE", ""))
    output = client.output("the-kernel", "")
    assert output is not None
    assert [name for name, _ in output.files] == ["result.txt"]
    printed = "".join(entry["data"] for entry in json.loads(output.log))
    assert printed.startswith("up\nover\n")


def test_what_ended_while_it_was_away_is_known_after(start: Start, tmp_path: Path) -> None:
    process, client = start(*CLOCK)
    push(client, waiting_for(tmp_path / "go"))
    process.kill()
    process.wait()
    (tmp_path / "go").write_text("")
    until(lambda: not _processes_below(tmp_path / "place"), "the end of the kernels")
    _, client = start(*CLOCK)
    becomes(client, ("COMPLETE", ""))
    output = client.output("the-kernel", "")
    assert output is not None
    assert [name for name, _ in output.files] == ["result.txt"]


def test_a_session_that_went_on_is_cancelled_like_any_other(start: Start, tmp_path: Path) -> None:
    process, client = start(*CLOCK)
    push(client, waiting_for(tmp_path / "go"))
    process.kill()
    process.wait()
    _, client = start(*CLOCK)
    assert client.delete("the-kernel")
    assert _processes_below(tmp_path / "place") == []


def test_on_another_clock_it_begins_anew_and_ends_the_kernels_that_went_on(start: Start, tmp_path: Path) -> None:
    """They would publish beside the sessions that take their place."""
    process, client = start(*CLOCK)
    push(client, waiting_for(tmp_path / "go"))
    process.kill()
    process.wait()
    assert _processes_below(tmp_path / "place") != []
    _, client = start("--epoch", "2026-11-28T00:00:00Z", "--origin", "1795219200")
    assert _processes_below(tmp_path / "place") == []
    assert client.status("the-kernel") is None


def test_it_may_outlive_its_input_until_nothing_happens(start: Start) -> None:
    process, client = start("--idle-seconds", "0.2")
    assert process.stdin is not None
    process.stdin.close()
    assert client.week().used_seconds == 0
    assert process.wait(PATIENCE_SECONDS) == 0


def test_with_a_key_file_it_needs_no_input_and_runs_until_it_is_ended(start: Start, tmp_path: Path) -> None:
    """As a person starts it in the background, on a clock that begins at an instant of their choice."""
    (tmp_path / "key").write_text("the-key\n")
    process, client = start("--key-file", str(tmp_path / "key"), "--epoch", "2026-11-21T00:00:00Z")
    assert process.stdin is not None
    process.stdin.close()
    saturday = 1_795_219_200
    assert client.week().start == saturday
    assert process.poll() is None
    process.terminate()
    assert process.wait(PATIENCE_SECONDS) == 0


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--key-file", "/nowhere"], "the key file cannot be read"),
        (["--key-file", "/dev/null"], "/dev/null holds no API key"),
        (["--epoch", "yesterday"], "argument --epoch"),
    ],
)
def test_a_wrong_option_is_named(tmp_path: Path, options: list[str], says: str) -> None:
    command = [sys.executable, "-m", "platforms.emulators.kaggle", str(tmp_path / "place"), *options]
    done = subprocess.run(
        command, input="the-key\n", capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
    )
    assert done.returncode == 2
    assert says in done.stderr
