"""The rollback watch: evidence of harm that may be looked at after every request, and still errs in 1 of 20 cases.

A plain test that is looked at again and again will alarm some day. Here evidence is a bet against "no harm": on average
the bet wins nothing, so that the stake ever grows to 20 times its size in one of twenty cases at most, however often
one looks. It holds for independent votes only, hence one vote a cluster: the first that its cluster gave.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from jobs.votes import Vote
from scheduler.judge.binomial import log_upper_tail

ALARM = 20.0


@dataclass(frozen=True, slots=True)
class WatchResult:
    """``votes`` counted, one a cluster, and how many of them were ``worse``; ``log_evidence`` is ln E now.

    ``alarm_at`` is the number of the vote with which E passed 20 first, None if it never did: an alarm stands.
    """

    votes: int
    worse: int
    log_evidence: float
    alarm_at: int | None


def watch(stream: Iterable[Vote], usual: float = 0.5) -> WatchResult:
    """Return the evidence in a stream of votes, in its order; the same stream gives the same evidence.

    ``usual`` is the share of worse votes that is no harm: a half for pairs in which one of two versions did worse, the
    known rate of failures for single requests. Raises ValueError when it is no share.
    """
    if not 0 < usual < 1:
        raise ValueError(f"a usual share of {usual} leaves nothing to watch for")
    users: set[str] = set()
    votes = worse = 0
    alarm_at = None
    for vote in stream:
        if vote.cluster in users:
            continue
        users.add(vote.cluster)
        votes += 1
        worse += vote.worse
        # Evidence rises with worse votes alone, and is below 1 while these are no more than usual.
        may_alarm = alarm_at is None and vote.worse and worse > usual * votes
        if may_alarm and log_evidence(worse, votes, usual) > math.log(ALARM):
            alarm_at = votes
    return WatchResult(votes, worse, log_evidence(worse, votes, usual), alarm_at)


def log_evidence(worse: int, votes: int, usual: float = 0.5) -> float:
    """Return ln E of ``worse`` among ``votes``: a bet spread evenly over all shares above the usual one."""
    log_beta = math.lgamma(worse + 1) + math.lgamma(votes - worse + 1) - math.lgamma(votes + 2)
    # The incomplete beta integral from `usual` to 1 is a binomial's lower tail.
    log_above = log_upper_tail(votes + 1 - worse, votes + 1, 1 - usual)
    log_bet = log_beta + log_above - math.log1p(-usual)
    return log_bet - worse * math.log(usual) - (votes - worse) * math.log1p(-usual)
