"""Every command that a person gives a path to ends, whatever is there: a pipe, a device without end, a folder.

Also a file of the kernel that looks regular and whose reading waits for ever. A file to be replaced is not changed.
"""

import os
import select
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from scheduler.cli.shell.exits import Exit
from scheduler.store import jobs
from scheduler.store.engine import Database
from tests.integration.cli.conftest import NOW, Schedctl, spec

SECONDS = 20  # a command takes less than one; what waits for a pipe or reads a device without end never ends


def _device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _kernel(path: Path) -> None:
    path.symlink_to("/proc/kmsg")  # regular, of 0 bytes; whoever may read it waits for the kernel's next message


MAKERS: tuple[Callable[[Path], None], ...] = (os.mkfifo, _device, _kernel, Path.mkdir)
READ = (
    "db restore {path}",
    "db move sqlite:///{path}",
    "queue add {path}",
    "queue update ufm {path}",
    "queue add --name new --target-step 10 --steps-per-hour 10 --command true --code {path}",
    "queue add --name new --target-step 10 --steps-per-hour 10 --command true --requirements {path} --code code",
    "queue code ufm --code {path}",
    "queue code ufm --code code --requirements {path}",
    "submit {path} --target-step 10",
    "certify {path} --target-step 10",
    "corpus leaks {path}",
    "advise --read {path}",
    "advise {path}",
    "--config {path} status",
)


def exit_code(schedctl: Schedctl, words: str) -> int:
    """Return the exit code of a command, typed in a child of its own: what waits inside SQLite hears no signal."""
    if not (child := os.fork()):
        code = 99
        try:
            code = schedctl(*words.split()).code
        finally:
            os._exit(code)
    ended = os.pidfd_open(child)
    try:
        if not select.select([ended], [], [], SECONDS)[0]:
            os.kill(child, signal.SIGKILL)
    finally:
        os.close(ended)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("words", READ)
@pytest.mark.parametrize("make", MAKERS)
def test_what_is_no_file_that_ends_is_refused_in_time(
    home: Path,
    database: Database,
    schedctl: Schedctl,
    monkeypatch: pytest.MonkeyPatch,
    make: Callable[[Path], None],
    words: str,
) -> None:
    monkeypatch.chdir(home)
    with database.write() as tx:
        jobs.add(tx, spec("ufm"), NOW)
    (home / "code").mkdir()
    path = home / "odd.py"
    make(path)
    refusals = {Exit.USAGE, Exit.CONFIG, Exit.DATABASE, Exit.NOT_FOUND, Exit.REFUSED, Exit.PLATFORM}
    assert exit_code(schedctl, words.format(path=path)) in refusals


def test_a_corpus_is_built_beside_what_never_ends(home: Path, database: Database, schedctl: Schedctl) -> None:
    del database  # it is there
    (home / "config.toml").write_text(f'{(home / "config.toml").read_text()}\n[corpus]\nsources = ["text"]\n')
    (home / "text").mkdir()
    for number, make in enumerate(MAKERS):
        make(home / "text" / f"{number}.md")
    for number in range(9):
        (home / "text" / f"plain-{number}.md").write_text(f"A text, number {number}, " * (number + 9))
    assert exit_code(schedctl, "corpus build") == Exit.OK
