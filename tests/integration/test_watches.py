"""The watch after promotion: votes that show harm take a version back, once, whatever happens on the way."""

import itertools
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scheduler.service.cycle.cycle import Cycle
from scheduler.service.outside.ports import Ports
from scheduler.service.versions import model_sync as watching
from scheduler.service.versions import promotion
from scheduler.service.versions.promotion import overrule, promote
from scheduler.store import events, versions
from scheduler.store.engine import Database
from scheduler.store.versions import Promotion
from scheduler.views import needs
from tests.lab.trained_model import NOW, World, make_world, passing

LOOK = 60  # seconds between two looks at votes


@pytest.fixture
def votes(tmp_path: Path) -> Path:
    """The file that users' votes are added to; there are none yet."""
    path = tmp_path / "votes.jsonl"
    path.touch()
    return path


@pytest.fixture
def world(make_ports: Callable[..., Ports], database: Database, tmp_path: Path, journal: Any, votes: Path) -> World:
    """A model that users vote on, with version 2 in force and version 1 before it."""
    world = make_world(make_ports, database, tmp_path, journal, votes=str(votes))
    world.judged("a", passing(0.95))
    world.judged("b", passing(1.0))
    assert (world.states(), world.in_force()) == ([(1, "retired"), (2, "accepted")], 2)
    return world


def vote(path: Path, worse: int, better: int = 0, version: str = "ufm@2") -> None:
    """Let users vote, those who found it better first, each in a cluster of its own."""
    before = path.read_bytes().count(b"\n")
    with path.open("a") as stream:
        for number in range(better + worse):
            said = {"version": version, "cluster": f"session-{before + number}", "worse": number >= better}
            stream.write(json.dumps(said) + "\n")


def look(world: World, cycle: Cycle | None = None) -> None:
    world.ports.clock.present += LOOK
    (cycle or world.cycle).run()


def moves(world: World) -> list[Promotion]:
    with world.database.read() as tx:
        return versions.promotions_of(tx, "ufm")


def needed(world: World) -> dict[str, tuple[str, str, str]]:
    with world.database.read() as tx:
        found = needs.needs(tx, {"pool"}, 0, world.ports.clock.now() + 1)
    return {need.what: (need.subject, need.why, need.remedy) for need in found}


def test_votes_that_show_harm_put_the_version_before_in_force_again_and_say_so(world: World, votes: Path) -> None:
    vote(votes, worse=5, better=5)
    vote(votes, worse=40, version="ufm@1")
    look(world)
    assert world.in_force() == 2
    vote(votes, worse=60)
    look(world)
    assert (world.states(), world.in_force()) == ([(1, "accepted"), (2, "rejected")], 1)
    newest = moves(world)[0]
    assert (newest.kind, newest.number, newest.was, newest.by) == ("rollback", 1, 2, "daemon")
    assert "65 of 70 votes say that it is worse" in newest.why
    with world.database.read() as tx:
        (alarm,) = events.tail(tx, kinds={watching.ALARM})
    evidence = alarm.data["watched"]
    assert (alarm.subject, evidence["votes"], evidence["worse"], alarm.data["usual"]) == ("ufm@2", 70, 65, 0.5)
    again = watching.read_watch(world.ask(lambda tx, version, *_: version, 2), votes, 0.5)
    assert (again.digest, again.watched.alarm_at) == (alarm.data["votes_digest"], evidence["alarm_at"])
    subject, why, remedy = needed(world)["version rolled back"]
    assert (subject, remedy) == ("ufm@2", "schedctl models show ufm@2")
    assert why.endswith("ufm@1 is promoted")
    world.judged("c", passing(1.0))
    assert world.in_force() == 1, "none is promoted by itself until a person promotes one"
    world.ask(promote, 3, "I looked at it")
    assert "version rolled back" not in needed(world)


def test_one_alarm_takes_back_once_even_if_a_person_puts_the_version_in_force_again(world: World, votes: Path) -> None:
    vote(votes, worse=60)
    look(world)
    world.ask(overrule, 2, "accepted", "the votes were a prank")
    world.ask(promote, 2, "the votes were a prank")
    for _ in range(3):
        vote(votes, worse=1)
        look(world, Cycle(world.ports))
    assert world.in_force() == 2
    assert [move.kind for move in moves(world)].count("rollback") == 1


@pytest.mark.parametrize("at", ["versions.in_force", "events.append", "rollback", "versions.note_promotion"])
def test_a_daemon_that_dies_anywhere_while_it_takes_back_has_done_all_of_it_or_nothing(
    world: World, votes: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    class Killed(BaseException):
        """As the end of a process: nothing in between takes it for an error."""

    module, _, name = at.rpartition(".")
    place = {"": watching, "versions": versions, "events": events}[module]
    work = getattr(place, name)

    def dies(tx: Any, *words: Any, **more: Any) -> Any:
        work(tx, *words, **more)
        raise Killed

    vote(votes, worse=60)
    world.ports.clock.present += LOOK
    with monkeypatch.context() as patched:
        if at == "versions.in_force":  # only of what is asked while it takes back
            patched.setattr(watching, "roll_back_by_votes", lambda tx, version, *_: dies(tx, version.model))
        else:
            patched.setattr(place, name, dies)
        with pytest.raises(Killed):
            world.cycle.run()
    assert (world.in_force(), len(moves(world))) == (2, 2)
    with world.database.read() as tx:
        assert events.tail(tx, kinds={watching.ALARM}) == []
    for _ in range(2):
        look(world, Cycle(world.ports))
    assert world.in_force() == 1
    assert [move.kind for move in moves(world)] == ["rollback", "promote", "promote"]


def test_votes_that_cannot_be_read_take_nothing_back_and_are_told_once(world: World, votes: Path) -> None:
    vote(votes, worse=60)
    with votes.open("a") as stream:
        stream.write("no vote\n")
    for _ in range(3):
        look(world)
    assert world.in_force() == 2
    with world.database.read() as tx:
        (blind,) = events.tail(tx, kinds={watching.BLIND})
    assert "line 61: no JSON object" in blind.data["why"]
    assert needed(world)["votes not read"][2] == "schedctl models watch ufm@2"
    votes.unlink()
    os.mkfifo(votes)
    look(world)  # a pipe keeps nobody waiting
    votes.unlink()
    look(world)
    with world.database.read() as tx:
        told = [str(event.data["why"]) for event in events.tail(tx, kinds={watching.BLIND})]
    assert ["not a regular file" in told[1], "there is no file of votes" in told[2], len(told)] == [True, True, 3]
    votes.touch()
    vote(votes, worse=60)
    look(world)
    assert world.in_force() == 1


def test_a_person_who_was_faster_is_no_error(world: World, votes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look at the votes and the word of it somebody took the version back."""
    vote(votes, worse=60)
    read = watching.read_watch

    def while_a_person_acts(*words: Any) -> Any:
        found = read(*words)
        with world.database.write() as tx:
            promotion.rollback(tx, "ufm", "it lies", NOW, "mia")
        return found

    monkeypatch.setattr(watching, "read_watch", while_a_person_acts)
    look(world)
    assert world.in_force() == 1
    assert [move.by for move in moves(world) if move.kind == "rollback"] == ["mia"]


def test_unchanged_votes_are_read_once(world: World, votes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vote(votes, worse=3, better=3)
    read, count = watching.read_watch, itertools.count()
    monkeypatch.setattr(watching, "read_watch", lambda *words: (next(count), read(*words))[1])
    for _ in range(4):
        look(world)
    assert repr(count) == "count(1)"
    shutil.copy(votes, votes.with_suffix(".new"))
    votes.with_suffix(".new").replace(votes)
    look(world)
    assert repr(count) == "count(2)"
