"""The adviser's arithmetic: parts sum to the whole, and more of anything never needs less."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.advice.choice import Wishes, advise
from jobs.advice.memory import memory_of, pace_of
from jobs.advice.shape import METHODS, OFFLOADS, OPTIMIZERS, PARALLELS, STACKS, Setup, cards, shipped

SHAPES = sorted({shape.name for shape in shipped().values()})

SETUPS = st.builds(
    Setup,
    shape=st.sampled_from(SHAPES).map(lambda name: shipped()[name]),
    method=st.sampled_from(METHODS),
    seq=st.sampled_from([1, 64, 512, 2_048, 16_384]),
    batch=st.integers(1, 16),
    accumulate=st.integers(1, 16),
    devices=st.sampled_from([1, 2, 4, 8]),
    rank=st.integers(1, 128),
    dropout=st.sampled_from([0.0, 0.05]),
    optimizer=st.sampled_from(OPTIMIZERS),
    master=st.booleans(),
    checkpointing=st.booleans(),
    parallel=st.sampled_from(PARALLELS),
    offload=st.sampled_from(OFFLOADS),
    stack=st.sampled_from(sorted(STACKS)).map(STACKS.__getitem__),
    image_tokens=st.sampled_from([0, 64, 1_296]),
)


@given(SETUPS)
def test_parts_sum_to_the_total_and_none_is_negative(setup: Setup) -> None:
    memory = memory_of(setup)
    assert memory.total == pytest.approx(sum(part.bytes for part in memory.parts))
    assert all(part.bytes >= 0 for part in memory.parts)
    assert len({part.name for part in memory.parts}) == len(memory.parts)
    assert memory.allocated <= memory.total


@given(SETUPS, st.sampled_from(["batch", "seq", "rank"]))
def test_more_rows_longer_rows_and_higher_ranks_never_need_less(setup: Setup, what: str) -> None:
    more = replace(setup, **{what: 2 * getattr(setup, what)})
    assert memory_of(more).total >= memory_of(setup).total * (1 - 1e-9)
    assert pace_of(more, cards()["4090"]).step >= pace_of(setup, cards()["4090"]).step * (1 - 1e-9)


@given(SETUPS)
def test_checkpointing_never_needs_more_and_is_never_quicker(setup: Setup) -> None:
    with_it, without = replace(setup, checkpointing=True), replace(setup, checkpointing=False)
    if setup.shape.layers > 4 and setup.stack.loose == setup.stack.loose_again:
        # It keeps the input of the layer that it computes again, which shows where there is next to nothing else.
        assert memory_of(with_it).total <= memory_of(without).total * 1.01
    assert pace_of(with_it, cards()["a10g"]).step >= pace_of(without, cards()["a10g"]).step * (1 - 1e-9)


@given(SETUPS, st.sampled_from(sorted(cards())))
def test_nothing_is_quicker_than_a_card_can_compute(setup: Setup, name: str) -> None:
    card = cards()[name]
    pace = pace_of(setup, card)
    assert 4 * setup.shape.parameters * 0.5 * pace.tokens_per_second <= card.tflops * 1e12 * setup.devices
    assert pace.hours(1e6, 0.9) > pace.hours(1e6)
    assert sum(pace.limits.values()) == pytest.approx(1.0)


@given(st.sampled_from(SHAPES), st.sampled_from(sorted(cards())), st.sampled_from([1, 2, 4]))
def test_whatever_is_taken_fits(shape: str, name: str, devices: int) -> None:
    found = advise(shipped()[shape], cards()[name], devices, Wishes())
    if found.best is not None:
        assert found.best.memory.gib <= cards()[name].usable_gib
    assert all(rung.verdict == "does not fit" or rung.memory.gib <= rung.card.usable_gib for rung in found.rungs)
