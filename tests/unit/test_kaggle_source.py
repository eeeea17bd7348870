"""The text that is pushed: it proves whose it is, and gives its order back."""

import ast
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from platforms.base import Refused
from platforms.kaggle.kernel.packing import SOURCE_BYTES_MAX, build_source, is_source_of, order_of
from tests.lab.night import share

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@settings(max_examples=share(25))
@given(st.dictionaries(st.text(), json_values))
def test_an_order_comes_back_as_it_went(order: dict[str, Any]) -> None:
    """Quotes, newlines and odd characters included; the text is a program in any case."""
    source = build_source("uff-ufm-0001", order)
    ast.parse(source)
    assert source.isascii()
    assert order_of(source) == order
    assert is_source_of("uff-ufm-0001", source)
    assert not is_source_of("uff-ufm-0002", source)


@pytest.mark.parametrize(
    "source", ["", "print('mine')", "main(json.loads(", "main(json.loads('5'))", "main(json.loads(x))"]
)
def test_a_source_of_somebody_else_has_no_order(source: str) -> None:
    with pytest.raises(ValueError, match=r"source|malformed"):
        order_of(source)
    assert not is_source_of("uff-ufm-0001", source)


def test_a_large_order_travels_packed_and_comes_back() -> None:
    order = {"urls": [f"https://bucket.example/{number:064x}?signed=1" for number in range(20_000)]}
    source = build_source("uff-ufm-0001", order)
    ast.parse(source)
    assert len(source) < SOURCE_BYTES_MAX
    assert order_of(source) == order
    assert is_source_of("uff-ufm-0001", source)
    damaged = source.rstrip()[:-40] + "'))\n"
    with pytest.raises(ValueError, match=r"source|Unterminated"):
        order_of(damaged)


def test_an_order_that_is_too_large_even_packed_is_refused() -> None:
    noise = random.Random(1).randbytes(2 * SOURCE_BYTES_MAX).hex()
    with pytest.raises(Refused, match=str(SOURCE_BYTES_MAX)):
        build_source("uff-ufm-0001", {"note": noise})
