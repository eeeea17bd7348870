"""Every state and definition survives its columns, and equal values give equal text."""

from collections.abc import Mapping
from dataclasses import make_dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.definition import bounded
from jobs.spec import Gate, JobSpec, Mixture, Needs, Share
from scheduler.core.job import Active, Cancelled, Done, Failed, Held, JobState, Queued, Wish
from scheduler.core.run import Ended, Outcome, Reserved, Running, RunState, Stopping, Submitting
from scheduler.store import codec
from scheduler.store.schema import Words, jobs, runs

instants = st.integers(min_value=0, max_value=2**53)
# Surrogates are what Python makes of broken bytes in arguments and file names.
words = st.text(max_size=30) | st.just("\ud800\0")
maybe = st.none() | instants

job_states: st.SearchStrategy[JobState] = st.one_of(
    st.builds(Queued, instants, maybe),
    st.builds(Active, words, instants, st.sampled_from([None, "hold", "cancel"]), words),
    st.builds(Held, words, words, instants),
    st.builds(Done, instants),
    st.builds(Failed, words, words, instants),
    st.builds(Cancelled, words, instants),
)
run_states: st.SearchStrategy[RunState] = st.one_of(
    st.builds(Reserved, instants),
    st.builds(Submitting, instants, instants),
    st.builds(Running, words, instants),
    st.builds(Stopping, words, instants, words, instants),
    st.builds(Ended, st.sampled_from(Outcome), instants, maybe),
)
floats = st.floats(allow_nan=False, allow_infinity=False)
specs = st.builds(
    JobSpec,
    name=words,
    role=st.sampled_from(["main", "manager"]),
    command=st.lists(words, max_size=3).map(tuple),
    target_step=instants,
    steps_per_hour=floats,
    weight=floats,
    needs=st.builds(Needs, instants, instants, floats, words),
    mixture=st.builds(Mixture, st.none() | words, floats),
    gate=st.none() | st.builds(Gate, words, floats),
    share=st.none() | st.builds(Share, words, floats),
    pools=st.lists(words, max_size=3).map(tuple),
    seed=instants,
    setup_seconds=instants,
    checkpoint_seconds=instants,
    device_speedup=st.lists(floats, max_size=3).map(tuple),
    environment=st.dictionaries(words, words, max_size=3),
    not_before=maybe,
    deadline=maybe,
)


@given(job_states)
def test_a_job_state_survives_its_columns(state: JobState) -> None:
    name, detail = codec.state_name(state), codec.state_detail(state)
    rebuilt = codec.job_state.__wrapped__(name, detail)
    assert rebuilt == state
    assert type(rebuilt) is type(state)
    assert codec.state_detail.__wrapped__(rebuilt) == detail
    assert detail.isascii()


@given(run_states)
def test_a_run_state_survives_its_columns(state: RunState) -> None:
    name, detail = codec.state_name(state), codec.state_detail(state)
    rebuilt = codec.run_state.__wrapped__(name, detail)
    assert rebuilt == state
    assert type(rebuilt) is type(state)
    assert codec.state_detail.__wrapped__(rebuilt) == detail
    if isinstance(rebuilt, Ended):
        assert isinstance(rebuilt.outcome, Outcome)


@given(st.lists(job_states, min_size=2, max_size=2, unique=True))
def test_different_states_never_look_alike_to_a_guarded_write(states: list[JobState]) -> None:
    first, second = ((codec.state_name(state), codec.state_detail(state)) for state in states)
    assert first != second


class _Row:
    """A row of the jobs table, as far as the codec looks at it."""

    def __init__(self, columns: dict[str, object]) -> None:
        self.__dict__.update(columns)


@given(specs)
def test_a_definition_survives_its_columns(spec: JobSpec) -> None:
    columns = codec.spec_columns(spec)
    assert set(columns) <= {column.name for column in jobs.columns}
    read, faults = codec.spec(_Row(columns))  # type: ignore[arg-type]
    assert (read, faults) == bounded(spec)
    assert (read == spec) == (not faults)
    assert bounded(read) == (read, ())


@given(words)
def test_text_columns_hold_any_text(value: str) -> None:
    stored = Words().process_bind_param(value, None)  # type: ignore[arg-type]
    assert stored is not None
    assert "\0" not in stored
    assert stored.encode().decode() == stored
    if "\0" not in value and value.isprintable():
        assert stored == value


def test_the_tables_allow_exactly_the_states_there_are() -> None:
    for table, names in ((jobs, codec.JOB_STATES), (runs, codec.RUN_STATES)):
        (check,) = (str(found.sqltext) for found in table.constraints if found.name == f"ck_{table.name}_state")  # type: ignore[attr-defined]
        assert check == f"state IN ({', '.join(repr(name) for name in names)})"


@pytest.mark.parametrize(
    ("name", "detail", "error"),
    [
        ("sleeping", "{}", KeyError),
        ("queued", "{}", TypeError),
        ("queued", "not JSON", ValueError),
        ("done", '{"at":1,"more":2}', TypeError),
    ],
)
def test_columns_that_no_state_gives_are_refused(name: str, detail: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        codec.job_state(name, detail)


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (int, [0], [True, 1.0, "1", None]),
        (int | None, [None, 1], [True, 1.5, "1"]),
        (float, [1, 1.5], [True, "1", None]),
        (float | None, [None, 1.5], [True, "1"]),
        (str, ["a"], [1, None]),
        (str | None, [None, "a"], [1]),
        (bool, [True, False], [1, None]),
        (Wish | None, [None, "hold", "cancel"], ["stop", 1]),
        (tuple[str, ...], [[], ("a",)], ["a", ["a", 1], None]),
        (tuple[int, ...], [[], (1,)], [[True], [1.0], 1]),
        (tuple[float, ...], [[1, 1.5]], [[True], ["1"], 1.5]),
        (Mapping[str, str], [{}, {"a": "b"}], [{"a": 1}, [], None]),
        (Mapping[str, float], [{"a": 1.5}], [{"a": "1"}, {"a": True}, None]),
    ],
)
def test_a_stored_value_of_another_type_is_refused(kind: Any, good: list[object], bad: list[object]) -> None:
    record = make_dataclass("Record", [("field", kind)])
    for value in good:
        expected = tuple(value) if isinstance(value, list) else value
        assert codec.built(record, {"field": value}).field == expected
    for value in bad:
        with pytest.raises(ValueError, match="field is not of type"):
            codec.built(record, {"field": value})


def test_what_json_cannot_hold_is_refused() -> None:
    with pytest.raises(TypeError, match="object cannot be stored"):
        codec.dump({"a": object()})
