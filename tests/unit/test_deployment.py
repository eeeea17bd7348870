"""What is due at which target, and why the rest waits."""

from scheduler.core.version import Deployment, DeploymentRule, DeploymentState, Due, Waits, decide

NOW = 1_795_000_000
HOUR = 3_600


def past(
    model: str,
    number: int,
    state: DeploymentState,
    target: str = "griffith",
    *,
    served_at: int | None = None,
    ended_at: int | None = None,
    why: str = "",
) -> Deployment:
    """Return a recorded deployment."""
    return Deployment(1, model, number, target, state, "ann", why, {}, NOW - 20 * HOUR, served_at, ended_at)


def serving(model: str, number: int, since: int = 10 * HOUR) -> Deployment:
    return past(model, number, "serving", served_at=NOW - since)


def returned(model: str, number: int, ago: int = HOUR, target: str = "griffith") -> Deployment:
    return past(model, number, "returned", target, ended_at=NOW - ago, why="it took too long")


def decided(
    rule: DeploymentRule, in_force: dict[str, int], *rows: Deployment, resumed: dict[str, int] | None = None
) -> list[Due | Waits]:
    return decide([rule], in_force, rows, resumed or {}, NOW)


AUTOMATIC = DeploymentRule("griffith", automatic=True)


def test_what_is_in_force_is_due_where_it_is_not_yet() -> None:
    assert decided(AUTOMATIC, {"ufm": 3}) == [Due("ufm", 3, "griffith")]
    assert decided(AUTOMATIC, {"ufm": 3}, serving("ufm", 2)) == [Due("ufm", 3, "griffith")]
    assert decided(AUTOMATIC, {"ufm": 3}, serving("ufm", 3)) == []


def test_an_older_version_that_is_in_force_again_is_due_too() -> None:
    assert decided(AUTOMATIC, {"ufm": 2}, serving("ufm", 3)) == [Due("ufm", 2, "griffith")]


def test_nothing_is_due_where_a_person_deploys_or_the_model_is_not_served() -> None:
    assert decided(DeploymentRule("griffith"), {"ufm": 3}) == []
    assert decided(DeploymentRule("griffith", ("ucm",), automatic=True), {"ufm": 3}) == []


def test_one_is_on_its_way_to_a_target_at_a_time() -> None:
    first, second = decided(AUTOMATIC, {"ufm": 3, "ucm": 4})
    assert first == Due("ucm", 4, "griffith")
    assert isinstance(second, Waits)
    assert "waits for ucm@4" in second.why
    (waits,) = decided(AUTOMATIC, {"ufm": 3, "ucm": 4}, past("ucm", 4, "intended"))
    assert isinstance(waits, Waits)
    assert (waits.model, waits.paused) == ("ufm", False)


def test_two_targets_do_not_wait_for_each_other() -> None:
    rules = [AUTOMATIC, DeploymentRule("here", automatic=True)]
    found = decide(rules, {"ufm": 3}, [past("ufm", 3, "intended")], {}, NOW)
    assert found == [Due("ufm", 3, "here")]


STAGED = DeploymentRule("griffith", automatic=True, first="uam", watch_seconds=HOUR)


def test_the_first_model_goes_before_the_others_whatever_its_name() -> None:
    found = decided(STAGED, {"ucm": 2, "uam": 5, "ufm": 2})
    assert found[0] == Due("uam", 5, "griffith")
    assert [one.why for one in found[1:] if isinstance(one, Waits)] == ["uam@5 goes first", "uam@5 goes first"]


def test_the_others_follow_one_by_one_once_the_first_was_watched() -> None:
    wanted = {"ucm": 2, "uam": 5, "ufm": 2}
    soon = decided(STAGED, wanted, serving("uam", 5, since=HOUR - 60))
    assert [one.why for one in soon if isinstance(one, Waits)] == ["uam@5 goes first and is watched for 60 s more"] * 2
    then = decided(STAGED, wanted, serving("uam", 5, since=HOUR))
    assert then[0] == Due("ucm", 2, "griffith")
    assert isinstance(then[1], Waits)
    assert decided(STAGED, wanted, serving("uam", 5), serving("ucm", 2)) == [Due("ufm", 2, "griffith")]


def test_where_the_first_was_returned_the_others_stay() -> None:
    found = decided(STAGED, {"uam": 5, "ufm": 2}, serving("uam", 4), returned("uam", 5))
    assert [(one.model, isinstance(one, Waits) and one.paused) for one in found] == [("uam", True), ("ufm", False)]


def test_a_model_without_any_version_in_force_holds_up_nobody() -> None:
    assert decided(STAGED, {"ufm": 2}) == [Due("ufm", 2, "griffith")]


def test_a_returned_version_pauses_its_model_until_a_person_resumes_it() -> None:
    rows = serving("ufm", 2), returned("ufm", 3)
    (waits,) = decided(AUTOMATIC, {"ufm": 3}, *rows)
    assert isinstance(waits, Waits)
    assert (waits.paused, waits.why) == (True, "ufm@3 was returned at griffith: it took too long")
    (newer,) = decided(AUTOMATIC, {"ufm": 4}, *rows)
    assert isinstance(newer, Waits)
    assert newer.paused
    before, after = {"ufm": NOW - 2 * HOUR}, {"ufm": NOW - HOUR}
    assert isinstance(decided(AUTOMATIC, {"ufm": 3}, *rows, resumed=before)[0], Waits)
    assert decided(AUTOMATIC, {"ufm": 3}, *rows, resumed=after) == [Due("ufm", 3, "griffith")]


def test_what_was_returned_at_one_target_goes_to_no_other_by_itself() -> None:
    (waits,) = decided(AUTOMATIC, {"ufm": 3}, returned("ufm", 3, target="here"))
    assert isinstance(waits, Waits)
    assert waits.paused


def test_a_person_who_made_it_serve_has_ended_the_pause() -> None:
    later = past("ufm", 4, "serving", served_at=NOW - 60)
    assert decided(AUTOMATIC, {"ufm": 5}, returned("ufm", 3), later) == [Due("ufm", 5, "griffith")]


def test_what_failed_before_anything_was_touched_is_not_tried_again_there_but_the_next_version_is() -> None:
    failed = past("ufm", 3, "failed", ended_at=NOW - HOUR, why="the disk is full")
    (waits,) = decided(AUTOMATIC, {"ufm": 3}, failed)
    assert isinstance(waits, Waits)
    assert waits.paused
    assert decided(AUTOMATIC, {"ufm": 4}, failed) == [Due("ufm", 4, "griffith")]
    assert decide([DeploymentRule("here", automatic=True)], {"ufm": 3}, [failed], {}, NOW) == [Due("ufm", 3, "here")]
