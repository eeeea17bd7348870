"""In simulations, statements that come again take a short way to SQLite's driver and answer as SQLAlchemy does."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest
from sqlalchemy import Boolean, bindparam, insert, literal_column, select, update
from sqlalchemy.exc import MultipleResultsFound, NoResultFound

from scheduler.store import engine
from scheduler.store.engine import upgrade
from scheduler.store.errors import Refused
from scheduler.store.schema import due, jobs, lanes
from tests.lab.simulation.database import FastDatabase
from tests.lab.simulation.prepared import Rows

_STORE = Path(inspect.getfile(engine)).parent


@pytest.fixture
def local(tmp_path: Path) -> FastDatabase:
    """An empty SQLite database."""
    url = f"sqlite:///{tmp_path}/scheduler.db"
    upgrade(url)
    return FastDatabase(url)


def test_rows_are_the_same_the_first_and_every_other_time(local: FastDatabase) -> None:
    fresh = insert(due)
    everything = select(due.c.name, due.c.at).order_by(due.c.name)
    later = update(due).where(due.c.name == bindparam("b_name")).values(at=due.c.at + 1).returning(due.c.at)
    with local.write() as tx:
        for number in range(3):
            tx.execute(fresh, {"name": f"duty-{number}", "at": number})
        tx.execute(fresh, [{"name": "many-1", "at": 7}, {"name": "many-2", "at": 8}])
        assert [tx.execute(later, {"b_name": "duty-0"}).scalar_one() for _ in range(3)] == [1, 2, 3]
    with local.read() as tx:
        seen = [[(row.name, row[1], *row[1:]) for row in tx.execute(everything)] for _ in range(3)]
    assert seen[0] == seen[1] == seen[2]
    assert seen[0][-1] == ("many-2", 8, 8)


def test_values_are_converted_both_ways(local: FastDatabase) -> None:
    yes = select(literal_column("1", Boolean).label("yes"))
    unstorable = select(bindparam("text", type_=jobs.c.name.type).label("text"))
    with local.read() as tx:
        assert [tx.execute(yes).scalar() for _ in range(3)] == [True] * 3
        assert all(tx.execute(yes).scalar() is True for _ in range(2))
        assert [tx.execute(unstorable, {"text": "a\0b\ud800"}).scalar() for _ in range(3)] == ["a\ufffdb?"] * 3


def test_lists_of_values_still_work(local: FastDatabase) -> None:
    wanted = select(lanes.c.run).where(lanes.c.run.in_(bindparam("keys", expanding=True)))
    with local.read() as tx:
        for keys in (["a"], ["a", "b", "c"], ["a"]):
            assert tx.execute(wanted, {"keys": keys}).all() == []


def test_one_means_one(local: FastDatabase) -> None:
    rows = select(due.c.at.label("value")).order_by(due.c.at)
    none = rows.where(due.c.at > 2)
    with local.write() as tx:
        tx.execute(insert(due), [{"name": "first", "at": 1}, {"name": "second", "at": 2}])
    with local.read() as tx:
        for _ in range(3):
            assert tx.execute(rows).scalar() == 1
            assert tx.execute(rows).scalars().all() == [1, 2]
            with pytest.raises(MultipleResultsFound):
                tx.execute(rows).one()
            with pytest.raises(NoResultFound):
                tx.execute(none).scalar_one()
            assert tx.execute(none).one_or_none() is tx.execute(none).scalar() is None


def test_an_exception_rolls_back_what_took_the_short_way(local: FastDatabase) -> None:
    fresh = insert(due)
    with local.write() as tx:
        tx.execute(fresh, {"name": "first", "at": 1})
        tx.execute(fresh, {"name": "second", "at": 1})
    with pytest.raises(Refused), local.write() as tx:  # noqa: PT012 - the transaction is what fails
        tx.execute(fresh, {"name": "third", "at": 1})
        tx.execute(fresh, {"name": "third", "at": 2})
    with local.read() as tx:
        assert tx.execute(select(due.c.name).order_by(due.c.name)).scalars().all() == ["first", "second"]


def test_the_store_asks_nothing_of_its_rows_that_the_short_way_does_not_give() -> None:
    known = {name for name in vars(Rows) if not name.startswith("_")}
    used = set()
    for path in _STORE.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Call):
                call = node.value.func
                if isinstance(call, ast.Attribute) and ast.unparse(call) == "tx.execute":
                    used.add(node.attr)
    assert used <= known, f"tests/lab/simulation/prepared.py has no {used - known}"
    assert {"scalar_one", "rowcount"} <= used
