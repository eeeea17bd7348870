"""Mutants of a file: what is changed, what is left alone, and that each is a program."""

from __future__ import annotations

import ast
from textwrap import dedent
from typing import TYPE_CHECKING

import pytest

from tests.lab.mutation.mutate import mutants_of

if TYPE_CHECKING:
    from pathlib import Path


def changes(source: str) -> set[tuple[str, str]]:
    return {(one.old, one.new) for one in mutants_of("file.py", dedent(source).encode())}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("a = b < c", {("b < c", "(b <= c)"), ("b < c", "(b >= c)")}),
        ("a = b is None and c", {("b is None and c", "(b is None or c)"), ("b is None", "(b is not None)")}),
        ("a = b + c", {("b + c", "(b - c)")}),
        ("a = 1", {("1", "(2)"), ("1", "(0)")}),
        ("a = 3_600", {("3_600", "(7200)"), ("3_600", "(1800)")}),
        ("a = b[0]", {("b[0]", "b[1]")}),
        ("a = min(b)", {("min", "max")}),
        ("a = b if c else d", {("b if c else d", "(b if not c else d)")}),
        ("def f():\n    return b", {("return b", "return None")}),
        ("def f():\n    g()", {("g()", "pass")}),
        ("def f():\n    raise ValueError(1 + 2)", {("raise ValueError(1 + 2)", "pass")}),
    ],
)
def test_each_kind_of_slip_is_made(source: str, expected: set[tuple[str, str]]) -> None:
    assert changes(source) == expected


def test_words_types_logs_and_what_only_type_checkers_read_stay() -> None:
    assert (
        changes(
            '''
        """1 + 2"""
        if TYPE_CHECKING:
            import a
        Both = One | Other
        text = "a" + f"{1 + 2}"

        @decorated(1)
        def f(a: Literal[1] | None) -> Literal[2]:
            log.info("said", seconds=1)
            self._ports.log.warning("said", seconds=1)
        '''
        )
        == {}.keys()
    )


def test_a_mutant_names_the_outermost_function_around_it_and_its_class() -> None:
    source = "a = 1\nclass C:\n    b = 2\n    def f(self, c=3):\n        def g():\n            return 4\n"
    where = {(one.old, one.where) for one in mutants_of("file.py", source.encode())}
    assert where == {("1", ""), ("2", ""), ("3", ""), ("4", "C.f"), ("return 4", "C.f")}


@pytest.mark.nightly
def test_every_mutant_of_a_real_file_is_another_program(repository: Path) -> None:
    for name in ("scheduler/core/quota.py", "jobs/payload/lane/lane.py", "scheduler/store/codec.py"):
        source = (repository / name).read_bytes()
        before = ast.dump(ast.parse(source))
        found = mutants_of(name, source)
        assert len(found) > 50
        assert all(ast.dump(ast.parse(one.applied(source))) != before for one in found)
