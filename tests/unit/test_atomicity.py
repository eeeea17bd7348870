"""Component atomicity: golden cases of the documented formula, and code that tries to look smaller than it is."""

import pytest

from jobs.payload.scorers.atomicity import PARTS, CodeCounts, Unparsed, atomicity, measure
from jobs.payload.scorers.items import code_in

PYTHON = '''
"""A small store."""
import json
from os import path as p
from pathlib import Path

def put(values, value):
    """Add a value.

    At the end.
    """
    if value is None or value == "":
        return values
    for one in values:
        if one == value and one:
            return values
    return [*values, value]

def _load(name):
    with open(name) as stream:
        return json.load(stream)

def _there(name):
    return p.exists(name) and Path(name).read_text()
'''

ELIXIR = '''
defmodule Store do
  @moduledoc """
  Keeps values.
  """
  import Enum
  alias Store.Disk

  # a comment
  @doc "Adds a value."
  def put(values, value) when is_list(values) and value != nil do
    case value do
      "" -> values
      :none -> values
      other -> values ++ [other]
    end
  end

  def put(_, nil), do: []
  def get(values, place \\\\ 0), do: Enum.at(values, place)

  defp save(values, fun) do
    if fun.(values) || values == [] do
      File.write!("store", inspect(values))
      send(self(), :saved)
    end
  end
end
'''


def test_python_is_counted_by_its_tree() -> None:
    found = measure(PYTHON, "python")
    # put has 1 + if + or + for + if + and; open and read_text reach outside, path.exists does not.
    assert found == CodeCounts(entries=1, lines=15, complexity=6, effects=2, imports=3)
    assert atomicity(found) == pytest.approx(1 - 0.2 * 2 / 5)


def test_elixir_is_counted_by_its_tree() -> None:
    pytest.importorskip("tree_sitter_elixir", reason="the extra gates is not installed")
    found = measure(ELIXIR, "elixir")
    # put/2 has two clauses, an and, and two ways more in its case; write! and send reach outside, fun.() does not.
    assert found == CodeCounts(entries=2, lines=19, complexity=5, effects=2, imports=2)
    assert atomicity(found) == pytest.approx(1 - 0.3 / 4 - 0.2 * 2 / 5)


@pytest.mark.parametrize(
    ("measured", "score"),
    [
        (CodeCounts(1, 80, 10, 0, 6), 1.0),
        (CodeCounts(0, 1, 1, 0, 0), 0.0),
        (CodeCounts(3, 80, 10, 0, 6), 0.85),
        (CodeCounts(1, 240, 10, 0, 6), 0.9),
        (CodeCounts(1, 80, 20, 0, 6), 0.9),
        (CodeCounts(1, 80, 10, 1, 6), 0.96),
        (CodeCounts(1, 80, 10, 0, 12), 0.95),
        (CodeCounts(9, 999, 99, 99, 99), 0.0),
    ],
)
def test_each_part_falls_evenly_to_nothing(measured: CodeCounts, score: float) -> None:
    assert atomicity(measured) == pytest.approx(score)


def test_the_weights_are_one_together() -> None:
    assert sum(weight for weight, _, _ in PARTS.values()) == pytest.approx(1)


@pytest.mark.parametrize("code", ["def f(:", "(" * 3_000, "x = '\0'", "if x:\n" * 200 + "y", "x" * (1 << 20) + "yy"])
def test_code_that_cannot_be_read_is_worth_nothing(code: str) -> None:
    with pytest.raises(Unparsed):
        measure(code, "python")


def test_half_a_mebibyte_of_words_beside_it_changes_nothing() -> None:
    code = "def f(x):\n    return x\n"
    assert measure(f"{code}# {'x' * (1 << 19)}\n", "python") == measure(code, "python")


@pytest.mark.parametrize(
    "code",
    [
        "import os as harmless\ndef f():\n    harmless.remove('x')\n",
        "from os import remove as keep\ndef f():\n    keep('x')\n",
        "def f(path):\n    path.unlink()\n",
        "def f():\n    global state\n    state = 1\n",
        "def f():\n    return __import__('os')\n",
        "def f():\n    pass\nf()\n",
    ],
)
def test_effects_are_seen_by_other_names(code: str) -> None:
    assert measure(code, "python").effects == 1


@pytest.mark.parametrize(
    "call",
    [
        'File.rm("x")',
        'Elixir.File.rm("x")',
        ':"Elixir.File".rm("x")',
        'apply(File, :rm, ["x"])',
        'm.rm("x")',
        ":ets.new(:t, [])",
    ],
)
def test_effects_of_elixir_are_seen_by_other_names(call: str) -> None:
    pytest.importorskip("tree_sitter_elixir", reason="the extra gates is not installed")
    found = measure(f"defmodule A do\n  def f(m), do: {call}\nend\n", "elixir")
    assert (found.entries, found.effects) == (1, 1)


@pytest.mark.parametrize(
    "code", ["defmodule A do\n  def f(, do: 1\nend\n", "defmodule A do\n  def f, do: 1\n", "(" * 3_000]
)
def test_elixir_with_any_mistake_is_worth_nothing(code: str) -> None:
    pytest.importorskip("tree_sitter_elixir", reason="the extra gates is not installed")
    with pytest.raises(Unparsed):
        measure(code, "elixir")


def test_code_is_taken_from_between_fences() -> None:
    assert code_in("Look:\n```python\nx = 1\n```\nand\n```\ny\n```\n") == "x = 1\n"
    assert code_in("x = 1\n") == "x = 1\n"
    assert code_in("```python\nx = 1") == "```python\nx = 1"


@pytest.mark.parametrize(
    ("body", "complexity"),
    [
        ("1", 1),
        ("if a, do: 1", 2),
        ("unless a, do: 1", 2),
        ("a && (b || c)", 3),
        ("a and b or c", 3),
        ("case a do\n 1 -> 1\n 2 -> 2\n _ -> 3\n end", 3),
        ("Enum.map(a, fn 1 -> 1\n _ -> 2 end)", 2),
    ],
)
def test_ways_through_elixir_are_counted(body: str, complexity: int) -> None:
    pytest.importorskip("tree_sitter_elixir", reason="the extra gates is not installed")
    assert measure(f"defmodule A do\n  def f(a, b, c) do\n    {body}\n  end\nend\n", "elixir").complexity == complexity


@pytest.mark.parametrize(
    ("body", "complexity"),
    [
        ("return a", 1),
        ("return a if b else c", 2),
        ("return [x for x in a if x if b]", 4),
        ("while a:\n        pass", 2),
        ("try:\n        a()\n    except OSError:\n        b()", 2),
        ("assert a and b", 3),
        ("match a:\n        case 1:\n            b()\n        case _:\n            c()", 3),
        ("def g(x):\n        return x if x else c\n    return g", 2),
    ],
)
def test_ways_through_python_are_counted(body: str, complexity: int) -> None:
    """Those of a function inside are its own."""
    assert measure(f"def f(a, b, c):\n    {body}\n", "python").complexity == complexity
