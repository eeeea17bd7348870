"""What retention keeps, and the reason it gives."""

from dataclasses import replace

import pytest

from config.load import load
from scheduler.core.retention import DAY, Retention, RetentionVerdict, SavedState, may_be_read, verdicts

NOW = 1_795_000_000
RULE = Retention(newest=2, milestones=4)


def saved(step: int, *, attempt: int = 1, good: bool = True, pinned: bool = False, age: int = 30 * DAY) -> SavedState:
    return SavedState(f"k{step}-{attempt}", step, attempt, good, pinned, NOW - age, f"run-{attempt}", "torn")


def kept(states: list[SavedState], **words: object) -> dict[str, str]:
    said = verdicts(states, words.get("resumes_from"), words.get("needed", {}), 400, RULE, NOW)  # type: ignore[arg-type]
    assert said.keys() == {state.key for state in states}
    return {key: verdict.why for key, verdict in said.items() if verdict.stays}


def test_the_newest_and_the_first_past_each_part_of_the_way_stay() -> None:
    states = [saved(step) for step in (10, 90, 110, 120, 190, 210, 390, 395)]
    assert kept(states) == {
        "k395-1": "number 1 of the newest 2",
        "k390-1": "number 2 of the newest 2",
        "k110-1": "the first past 25 % of the target",
        "k210-1": "the first past 50 % of the target",
    }


def test_one_far_step_past_several_parts_is_one_milestone() -> None:
    assert kept([saved(390), saved(395), saved(399), saved(10)]).keys() == {"k395-1", "k399-1", "k390-1"}


def test_reaching_the_target_is_a_milestone() -> None:
    states = [saved(400), saved(401), saved(402)]
    assert kept(states)["k400-1"] == "the first past 25 % of the target"


def test_of_two_attempts_at_one_step_the_later_is_newer() -> None:
    states = [saved(50, attempt=number) for number in (1, 2, 3)]
    assert kept(states).keys() == {"k50-3", "k50-2"}


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ({"resumes_from": "k10-1"}, "the job resumes from it"),
        ({"needed": {"k10-1": "a live session may read it"}}, "a live session may read it"),
    ],
)
def test_what_is_in_use_stays(words: dict[str, object], why: str) -> None:
    assert kept([saved(10), saved(20), saved(30)], **words)["k10-1"] == why


def test_what_a_person_pinned_stays_even_if_it_is_damaged() -> None:
    states = [saved(10, pinned=True), saved(11, pinned=True, good=False), saved(20), saved(30)]
    assert kept(states).keys() == {"k10-1", "k11-1", "k20-1", "k30-1"}


def test_a_damaged_one_stays_for_a_look_and_counts_for_nothing() -> None:
    states = [saved(99, good=False), saved(98, good=False, age=DAY), saved(20), saved(30)]
    assert kept(states).keys() == {"k98-1", "k20-1", "k30-1"}
    assert verdicts(states, None, {}, 400, RULE, NOW)["k99-1"].why == "damaged: torn"


def test_a_session_may_read_what_was_newest_at_its_launch_and_what_became_known_later() -> None:
    states = [saved(step, age=100) for step in (10, 20, 30)]
    states += [saved(40, attempt=7, age=0), saved(5, attempt=2, age=0), saved(35, good=False, age=100)]
    states += [saved(15, attempt=3, age=50)]  # known as it was launched, and no longer among the newest
    assert may_be_read(states, "run-7", NOW - 50, 2) == {"k20-1", "k30-1", "k5-2"}


def test_without_milestones_only_the_newest_stay() -> None:
    states = [saved(step) for step in (100, 200, 300, 400)]
    said = verdicts(states, None, {}, 400, Retention(newest=2, milestones=0), NOW)
    assert [key for key, verdict in said.items() if verdict.stays] == ["k300-1", "k400-1"]


def test_each_verdict_says_why() -> None:
    states = [saved(10, pinned=True), saved(20), saved(21, good=False), saved(110), saved(120), saved(395), saved(399)]
    said = verdicts(states, None, {}, 400, RULE, NOW)
    assert {key: (verdict.stays, verdict.why) for key, verdict in said.items()} == {
        "k10-1": (True, "pinned"),
        "k20-1": (False, "2 newer ones are good, and it is not a milestone"),
        "k21-1": (False, "damaged: torn"),
        "k110-1": (True, "the first past 25 % of the target"),
        "k120-1": (False, "2 newer ones are good, and it is not a milestone"),
        "k395-1": (True, "number 2 of the newest 2"),
        "k399-1": (True, "number 1 of the newest 2"),
    }


def test_a_damaged_one_is_kept_for_a_look_until_the_second_its_time_is_over() -> None:
    young = saved(10, good=False, age=RULE.damaged_seconds - 1)
    over = saved(11, good=False, age=RULE.damaged_seconds)
    said = verdicts([young, over, saved(20)], None, {}, 400, RULE, NOW)
    assert said["k10-1"].stays is True
    assert said["k10-1"].why == "damaged, kept for inspection: torn"
    assert said["k11-1"].stays is False


def test_a_milestone_is_reached_at_its_very_step() -> None:
    assert kept([saved(99), saved(100), saved(101), saved(200), saved(201), saved(202)]) == {
        "k100-1": "the first past 25 % of the target",
        "k200-1": "the first past 50 % of the target",
        "k201-1": "number 2 of the newest 2",
        "k202-1": "number 1 of the newest 2",
    }


def test_of_before_the_job_began_anew_nothing_stays_but_what_is_in_use() -> None:
    fenced = [replace(saved(step), fenced=True) for step in (395, 399)]
    said = verdicts([*fenced, saved(10)], None, {"k399-1": "a job starts from it"}, 400, RULE, NOW)
    assert said["k395-1"] == RetentionVerdict(stays=False, why="from before the job was restarted")
    assert said["k399-1"] == RetentionVerdict(stays=True, why="a job starts from it")
    assert said["k10-1"].why == "number 1 of the newest 2"


def test_what_is_kept_where_nothing_is_said_is_what_is_shipped() -> None:
    assert Retention(**dict(load(environ={}).retention)) == Retention()


def test_the_target_itself_is_the_last_milestone() -> None:
    assert (
        kept([saved(step) for step in (100, 200, 300, 400, 401, 402)])["k400-1"] == "the first past 100 % of the target"
    )
