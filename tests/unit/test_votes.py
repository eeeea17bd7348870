"""Votes are read from a file that anybody may add to: what is no vote tells nothing at all, and says where."""

import io
import json
from typing import Any

import pytest

from jobs.scores import VOTE_BYTES_MAX, Vote, Votes, VotesError
from scheduler.judge.evidence import watch


def line(version: Any = "ufm@3", cluster: Any = "a", worse: Any = True, **more: Any) -> bytes:
    return json.dumps({"version": version, "cluster": cluster, "worse": worse, **more}).encode() + b"\n"


def test_only_the_votes_of_one_version_are_given_and_a_line_that_is_being_written_waits() -> None:
    whole = line() + line("ufm@2") + line("ucm@3", "b") + line(cluster="b", worse=False, at=17)
    votes = Votes(io.BytesIO(whole + line(cluster="c")[:-9]), "ufm@3")
    assert list(votes) == [Vote("a", worse=True), Vote("b", worse=False)]
    alone = Votes(io.BytesIO(whole), "ufm@3")
    list(alone)
    assert votes.digest == alone.digest
    assert list(Votes(io.BytesIO(), "ufm@3")) == []


@pytest.mark.parametrize(
    ("second", "why"),
    [
        (b"\n", "no JSON object"),
        (b"[1]\n", "no JSON object"),
        (b"\xff\xfe\n", "no JSON object"),
        (b"[" * 4_000 + b"\n", "no JSON object"),
        (line(worse=1), "worse is 1"),
        (line(worse="true"), "worse is 'true'"),
        (line(worse=None), "worse is None"),
        (line(cluster=""), "cluster is ''"),
        (line(cluster=["a"]), "cluster is"),
        (line(cluster="\x1b[2J"), "cluster is"),
        (line(version=3), "version is 3"),
        (line(cluster="x" * 201), "cluster is"),
        (line(note="x" * VOTE_BYTES_MAX), "longer than"),
        (b"x" * (VOTE_BYTES_MAX + 10), "longer than"),
    ],
)
def test_a_line_that_is_no_vote_is_an_error_with_its_number(second: bytes, why: str) -> None:
    with pytest.raises(VotesError, match="line 2") as caught:
        list(Votes(io.BytesIO(line() + second + line()), "ufm@3"))
    assert why in caught.value.why
    assert caught.value.remedy


def test_too_many_votes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobs.scores.VOTES_MAX", 2)
    others = b"".join(line("ufm@2") for _ in range(5))
    assert len(list(Votes(io.BytesIO(others + line() * 2), "ufm@3"))) == 2
    with pytest.raises(VotesError, match="more than 2 votes of ufm@3"):
        list(Votes(io.BytesIO(line() * 3), "ufm@3"))
    monkeypatch.setattr("jobs.scores.VOTES_BYTES_MAX", 100)
    with pytest.raises(VotesError, match="begin a new file"):
        list(Votes(io.BytesIO(others), "ufm@3"))


def test_an_alarm_stands_whatever_is_said_later() -> None:
    """Ten losses in a row are E > 20; three hundred wins afterwards take the evidence back, and not the alarm."""
    stream = [Vote(str(number), worse=number < 10) for number in range(310)]
    assert watch(stream[:4]).alarm_at is None
    found = watch(stream)
    assert found.alarm_at is not None
    assert found.alarm_at <= 10
    assert found.log_evidence < 0
