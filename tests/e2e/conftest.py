"""What the tests of accidents share: a small rehearsal in real processes, and the audit of what it left behind."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab.crashes.audit import audit
from tests.lab.crashes.processes import working_for
from tests.lab.crashes.stage import Stage
from tests.lab.patience import until

MakeStage = Callable[..., Stage]


@pytest.fixture
def make_stage(tmp_path: Path) -> Iterator[MakeStage]:
    """Makes stages with fields of their own. Whatever the test does, no process is left behind."""
    made: list[Stage] = []

    def make(**fields: Any) -> Stage:
        made.append(Stage(tmp_path / f"stage-{len(made)}", **fields))
        return made[-1]

    yield make
    for stage in made:
        stage.close()
    assert not working_for(tmp_path)


@pytest.fixture
def stage(make_stage: MakeStage) -> Stage:
    """A rehearsal of six hours in six seconds, not begun yet."""
    return make_stage()


@pytest.fixture
def running(make_stage: MakeStage) -> Stage:
    """A rehearsal of which a daemon runs two sessions; the command that began it was killed, to be out of the way.

    It has more time than the slowest machine needs for a test; ``settled`` cuts it short.
    """
    stage = make_stage(hours=500.0)
    command = stage.begin()
    until(lambda: command.poll() is not None or (stage.has_begun() and len(stage.live()) == 2), "two live sessions")
    command.kill()
    command.wait()
    return stage


@pytest.fixture
def settled() -> Callable[[Stage], None]:
    """Resume a rehearsal for three more hours, and see that nothing was run twice and nothing lost."""

    def settle(stage: Stage) -> None:
        pid = stage.daemon_pid()
        if pid is not None:
            os.kill(pid, signal.SIGTERM)
            until(lambda: stage.daemon_pid() is None, "the end of the daemon")
        if stage.now() < stage.rehearsal.end:  # the clock of a finished rehearsal stands still
            stage.cut(3.0)
        ended = stage.ended(stage.resume())
        assert ended.code == 0, ended.err + stage.log
        assert audit(stage).all == []
        verified = stage.type("db", "verify")
        assert verified.code == 0, verified.out

    return settle
