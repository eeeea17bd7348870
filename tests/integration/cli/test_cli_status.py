"""What people look at all day: `status`, `top` and `prompt`."""

import errno
import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

from scheduler import line
from scheduler.core import job as job_arrows
from scheduler.store import events, jobs
from scheduler.store.engine import Database
from scheduler.wake import Waker

Schedctl = Any  # see conftest.py
NOW = 1_790_000_000


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal of 80 columns and 24 lines, as far as the environment tells."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "24")
    monkeypatch.setenv("NO_COLOR", "1")


@pytest.fixture
def crowd(world: Database) -> Database:
    """The world with a thousand more jobs of long names, a third of them held."""
    with world.write() as tx:
        pattern = jobs.get(tx, "ucm").spec
        for number in range(1_000):
            name = f"a-job-with-a-rather-long-name-{number:04d}"
            spec = type(pattern)(**{**{n: getattr(pattern, n) for n in pattern.__slots__}, "name": name})
            jobs.add(tx, spec, NOW)
            if number % 3 == 0:
                state = jobs.get(tx, name).state
                held = job_arrows.ask_hold(state, "tester", "waits for \x1b[31mdata\x1b[0m", NOW)
                jobs.change_state(tx, name, state, held, "hold", NOW, "tester")
    return world


def test_status_tells_what_needs_a_person_what_runs_and_what_is_left(world: Database, schedctl: Schedctl) -> None:
    shown = schedctl("status").out
    lines = shown.splitlines()
    assert lines[0].startswith("No daemon runs")
    assert lines.index("Actions required") < lines.index("Jobs") < lines.index("Sessions") < lines.index("Pools")
    assert any("job held" in text and "urm" in text and "data are being cleaned" in text for text in lines)
    for job in ("uff-main", "ufm"):
        assert any(text.startswith(job) and "uff-uff-main-0001" in text for text in lines), shown
    assert any("GPU hours of the week" in text and "30h 00m" in text for text in lines)
    assert any("ucm" in text and "desk from" in text and "GPU hours" in text for text in lines), shown
    assert len(lines) <= 24


def test_status_as_json_tells_the_same(world: Database, schedctl: Schedctl) -> None:
    document = schedctl("status", "--json").document
    assert document["daemon"]["leader"] is None
    assert [need["subject"] for need in document["needs"]] == ["urm"]
    assert [run["key"] for run in document["runs"]] == ["uff-uff-main-0001"]
    ucm = next(job for job in document["jobs"] if job["name"] == "ucm")
    assert (ucm["waits"]["code"], ucm["next"]["pool"]) == ("quota_empty", "desk")


def test_settings_that_were_not_taken_over_need_a_person_until_they_are(world: Database, schedctl: Schedctl) -> None:
    with world.write() as tx:
        events.append(tx, "daemon.reload_refused", "daemon", NOW, why="config.toml: surprise: there is no such key")
    assert "settings not reloaded" in schedctl("status").out
    with world.write() as tx:
        events.append(tx, "daemon.reloaded", "daemon", NOW + 1, pools="desk")
    assert "settings not reloaded" not in schedctl("status").out


def test_status_stays_on_one_screen_whatever_the_queue(crowd: Database, schedctl: Schedctl) -> None:
    lines = schedctl("status").out.splitlines()
    assert len(lines) <= 40
    assert sum("more: schedctl" in text for text in lines) == 2
    assert len(schedctl("status", "--all").out.splitlines()) > 1_000


def _without_place(row: str) -> str:
    return row.lstrip("0123456789 ")


@pytest.mark.usefixtures("terminal")
@pytest.mark.parametrize("people", ["world", "crowd"])
def test_top_fits_80_columns_and_24_lines(request: pytest.FixtureRequest, people: str, schedctl: Schedctl) -> None:
    request.getfixturevalue(people)
    drawn = schedctl("top", "--once").out
    lines = drawn.splitlines()
    assert len(lines) <= 23  # the last line stays free, or the terminal would scroll
    assert max(map(len, lines)) <= 80
    assert "\x1b" not in drawn
    for title in ("Actions required", "Jobs", "Pools"):
        assert title in lines or title in map(str.rstrip, lines)
    # So few lines are the jobs' before all; where each runs stands beside it.
    jobs_shown = lines[lines.index("Jobs") + 2 :]
    assert len(jobs_shown) >= (8 if people == "crowd" else 4)
    assert any(row.startswith("uff-main") and "kaggle until" in row for row in map(_without_place, jobs_shown))
    assert "Sessions" not in lines


@pytest.mark.usefixtures("terminal")
def test_top_orders_the_jobs_as_asked(world: Database, schedctl: Schedctl, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LINES", "40")

    def order(name: str) -> list[str]:
        lines = schedctl("top", "--once", "--order", name).out.splitlines()
        rows = lines[[text.strip() for text in lines].index("Jobs") + 2 :]
        return [_without_place(row).split()[0] for row in takewhile(str.strip, rows)]

    assert order("place") == ["uff-main", "ufm", "ucm", "urm"]
    assert order("name") == ["ucm", "uff-main", "ufm", "urm"]
    assert order("state") == ["uff-main", "ufm", "ucm", "urm"]
    assert schedctl("top", "--once", "--order", "size").code == 2


def test_top_without_a_terminal_says_what_to_do(world: Database, schedctl: Schedctl) -> None:
    typed = schedctl("top")
    assert (typed.code, typed.out) == (2, "")
    assert "schedctl top --once" in typed.err
    assert schedctl("top", "--json").code == 2


def test_top_is_left_by_a_key_and_leaves_the_terminal_as_it_was(world: Database) -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    before = termios.tcgetattr(theirs)
    script = Path(sys.executable).with_name("schedctl")
    environment = {name: text for name, text in os.environ.items() if name not in {"COLUMNS", "LINES"}}
    program = subprocess.Popen(
        [script, "top"], stdin=theirs, stdout=theirs, stderr=theirs, env={**environment, "TERM": "xterm"}
    )
    try:
        drawn = _read_until(ours, b"progress", press=b"s")
        assert b"kaggle until" in drawn
        os.write(ours, b"q")
        rest = b""
        while program.poll() is None:
            rest += _read(ours)
        assert program.returncode == 0
        assert b"\x1b[?1049l" in rest + drawn + _read(ours)
        assert termios.tcgetattr(theirs) == before
    finally:
        program.kill()  # does nothing to one that has ended
        program.wait()
        os.close(ours)
        os.close(theirs)


def _read(terminal: int) -> bytes:
    import select

    ready, _, _ = select.select([terminal], [], [], 0.2)
    with suppress(OSError):
        return os.read(terminal, 65_536) if ready else b""
    return b""


def _read_until(terminal: int, word: bytes, press: bytes) -> bytes:
    """Read until ``word`` is drawn; press a key once the first picture is there."""
    seen, pressed = b"", False
    for _ in range(300):
        seen += _read(terminal)
        if not pressed and b"place" in seen:
            os.write(terminal, press)
            pressed = True
        if word in seen:
            return seen
    raise AssertionError(seen[-2000:])


def test_a_prompt_shows_the_line_and_whether_a_daemon_answers(home: Path, schedctl: Schedctl) -> None:
    assert (schedctl("prompt").code, schedctl("prompt").out) == (0, "")
    (home / "state").mkdir(exist_ok=True)
    line.write(str(home / "state"), "1 running, 2 waiting")
    assert schedctl("prompt").out == "1 running, 2 waiting (no daemon)\n"
    waker = Waker(home / "state", lambda: None)
    assert schedctl("prompt").out == "1 running, 2 waiting\n"
    waker.close()
    assert schedctl("prompt").out == "1 running, 2 waiting (no daemon)\n"


@pytest.mark.parametrize(
    "words",
    [
        'state_dir = "{there}"',
        "state_dir='{there}'",
        'zone = "UTC"\nstate_dir = """{there}"""',
        '"state_dir" = "{there}"',
    ],
)
def test_a_prompt_finds_the_state_folder_as_everything_else_does(
    home: Path, tmp_path: Path, words: str, schedctl: Schedctl
) -> None:
    there = tmp_path / "there"
    there.mkdir()
    (home / "config.toml").write_text(words.format(there=there) + "\n[daemon]\n")
    line.write(str(there), "found")
    assert schedctl("prompt").out.startswith("found")
    assert schedctl("prompt", "--config", str(home / "config.toml")).out.startswith("found")
    assert schedctl("prompt", "--no-color").out.startswith("found")  # by the parser


def test_a_prompt_with_settings_that_cannot_be_read_says_so(home: Path, schedctl: Schedctl) -> None:
    (home / "config.toml").write_text("state_dir = \n")
    typed = schedctl("prompt")
    assert typed.code == 3
    assert "config.toml" in typed.err


def test_a_prompt_loads_next_to_nothing(home: Path) -> None:
    (home / "config.toml").write_text(f'state_dir = "{home}/state"\n')
    program = "import sys; before = set(sys.modules); from scheduler.cli.main import main; main(['prompt'])"
    program += "; print(*sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    ours = {"scheduler", "scheduler.cli", "scheduler.cli.main", "scheduler.cli.prompt", "scheduler.line"}
    assert loaded <= {*ours, "__future__", "errno", "gc"}


def test_the_line_of_the_service_is_found_without_settings(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from scheduler.cli import prompt

    monkeypatch.delenv("SCHEDCTL_CONFIG", raising=False)
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr(line, "SYSTEM_FOLDER", str(tmp_path))
    line.write(str(tmp_path), "of the service")
    assert prompt.show_line(None) == 0
    assert capsys.readouterr().out == "of the service\n"


def test_a_line_that_may_not_be_read_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from scheduler.cli import prompt

    def refuse(folder: str) -> str:
        raise PermissionError(errno.EACCES, "no", folder)

    monkeypatch.setattr(line, "read", refuse)
    assert prompt.show_line(None) == 0
    assert capsys.readouterr().out == ""
