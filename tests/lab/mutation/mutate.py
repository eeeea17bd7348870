"""Mutants of one file: what a hurried hand gets wrong, each a change of one place in the text."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_COMPARED: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
_COMPUTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}
_OTHER_NAME = {"min": "max", "max": "min", "any": "all", "all": "any"}
_SMALL = 10  # up to here a number counts something, and one more or less is a bug; beyond, it is a measure


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change: bytes ``start`` to ``end`` of the file ``path`` become ``new``.

    ``where`` is the outermost function around it, with its class; empty outside functions.
    """

    path: str
    where: str
    line: int
    start: int
    end: int
    old: str
    new: str

    def applied(self, source: bytes) -> bytes:
        """Return the file with the change."""
        return source[: self.start] + self.new.encode() + source[self.end :]

    @property
    def key(self) -> str:
        """What names it for a person, whatever line it has moved to."""
        old, new = (" ".join(text.split()) for text in (self.old, self.new))
        return f"{self.path}::{self.where}  {old}  ->  {new}"

    def __str__(self) -> str:
        return f"line {self.line} of {self.key}"


def mutants_of(path: str, source: bytes) -> list[Mutant]:
    """Return all mutants of a file, in the order of its lines."""
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found = []
    for node, where, new in _changes(ast.parse(source), ()):
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)
        found.append(Mutant(path, where, node.lineno, start, end, source[start:end].decode(), new))
    return sorted(found, key=lambda one: (one.start, one.end, one.new))


def _changes(node: ast.AST, names: tuple[str, ...]) -> Iterator[tuple[ast.expr | ast.stmt, str, str]]:
    """Yield places, the functions around them and what may stand there instead."""
    if isinstance(node, ast.expr | ast.stmt):
        where = ".".join(names[: names.index("<locals>")]) if "<locals>" in names else ""
        for new in _instead(node, inside=bool(where)):
            yield node, where, new
    for child in _children(node):
        within = names
        if isinstance(node, ast.ClassDef):
            within = (*names, node.name)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and isinstance(child, ast.stmt):
            within = (*names, node.name, "<locals>")  # anything but a statement is a default, computed outside
        yield from _changes(child, within)


def _children(node: ast.AST) -> list[ast.AST]:
    """Return what may be changed inside: no annotations, decorators, messages, nor what only type checkers read."""
    match node:
        case ast.JoinedStr() | ast.Raise() | ast.Assert() | ast.MatchValue() | ast.If(test=ast.Name("TYPE_CHECKING")):
            return []
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            return [*node.args.defaults, *(one for one in node.args.kw_defaults if one), *node.body]
        case ast.ClassDef():
            return [*node.body]
        case ast.AnnAssign():
            return [node.value] if node.value else []
        case ast.Expr() if _is_log(node):
            return []
        case ast.Subscript(slice=ast.Constant(0)):
            return [node.value]
        case _:
            return [*ast.iter_child_nodes(node)]


def _instead(node: ast.expr | ast.stmt, *, inside: bool) -> Iterator[str]:
    """Yield what may stand in place of one node; statements are left out ``inside`` functions only."""
    if isinstance(node, ast.stmt):
        yield from _statement(node, inside=inside)
    elif isinstance(node, ast.Compare):
        for at, operator in {*enumerate(node.ops[:1]), (len(node.ops) - 1, node.ops[-1])}:
            for other in _COMPARED[type(operator)]:
                operators = [*node.ops[:at], other(), *node.ops[at + 1 :]]
                yield _text(ast.Compare(node.left, operators, node.comparators))
    else:
        yield from _expression(node)


def _expression(node: ast.expr) -> Iterator[str]:
    match node:
        case ast.Constant(bool() as value):
            yield str(not value)
        case ast.Subscript(slice=ast.Constant(0)):
            yield f"{ast.unparse(node.value)}[1]"  # the last of what may be one is the first
        case ast.Constant(int() | float() as value):
            others = (value + 1, value - 1) if value < _SMALL else (value * 2, value // 2)
            yield from (f"({other!r})" for other in others)
        case ast.BoolOp(operator, values):
            yield _text(ast.BoolOp(ast.Or() if isinstance(operator, ast.And) else ast.And(), values))
        case ast.UnaryOp(ast.Not() | ast.USub(), operand):
            yield _text(operand)
        case ast.BinOp(left, operator, right) if type(operator) in _COMPUTED and not _are_words(left, right):
            yield _text(ast.BinOp(left, _COMPUTED[type(operator)](), right))
        case ast.IfExp(test, body, otherwise):
            yield _text(ast.IfExp(ast.UnaryOp(ast.Not(), test), body, otherwise))
        case ast.Name(name) if name in _OTHER_NAME:
            yield _OTHER_NAME[name]


def _statement(node: ast.stmt, *, inside: bool) -> Iterator[str]:
    match node:
        case ast.Return(ast.expr() as value) if not (isinstance(value, ast.Constant) and value.value is None):
            yield "return None"
        case ast.Continue() | ast.Break():
            yield "pass"
        case ast.Expr(ast.Call() | ast.YieldFrom() | ast.Await()) | ast.AugAssign() | ast.Raise() if inside:
            if not _is_log(node):
                yield "pass"
        case ast.Assign([ast.Attribute() | ast.Subscript()]) if inside:
            yield "pass"


def _text(node: ast.expr) -> str:
    return f"({ast.unparse(node)})"


def _are_words(*sides: ast.expr) -> bool:
    """Return whether an operator joins texts, sequences or types, where the other one could only be a TypeError."""
    plain = (ast.JoinedStr, ast.Tuple, ast.List)
    return any(
        isinstance(side, plain)
        or (isinstance(side, ast.Constant) and not isinstance(side.value, int | float))
        or (isinstance(side, ast.Name) and side.id[:1].isupper() and not side.id.isupper())
        for side in sides
    )


def _is_log(node: ast.stmt) -> bool:
    """Return whether a statement writes to a log, or is there for type checkers alone."""
    words = re.split(r"[._(]+", ast.unparse(node), maxsplit=3)[:3]
    return isinstance(node, ast.Expr) and ("log" in words or words[:2] == ["assert", "never"])
