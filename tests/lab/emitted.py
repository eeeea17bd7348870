"""Emitted: the kinds of events and the log messages that the program can write, read from the syntax of its code.

The reference of events and of the log is generated from here. A name that is not a literal is followed through
constants, local variables and the parameters of the function that it stands in.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from scheduler.core.run import Outcome
from scheduler.store.conditions import CLOSED_BY

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

OUTCOMES = tuple(str(outcome) for outcome in Outcome)
# Events whose second word is a value: the words that it can be.
FAMILIES: dict[str, tuple[str, ...]] = {
    "lane": OUTCOMES,
    "job": ("code", "requirements"),
    "evaluation": ("scored", "failed"),
    "deployment": ("serving", "returned", "failed", "replaced"),
    "model": ("promote", "rollback"),
}
# Messages whose second word is a state (scheduler/service/cycle/endings.py, deploy/look.py): their fields.
OF_STATES: dict[str, tuple[str, ...]] = {
    "session.ended": ("run", "pool", "outcome", "why", "seconds", "jobs"),
    "job.queued": ("job", "by", "run", "outcome", "why", "retry_at"),
    **{f"job.{state}": ("job", "by", "run", "why") for state in ("done", "failed", "held", "cancelled")},
    **{f"deployment.{state}": ("version", "target", "why") for state in FAMILIES["deployment"]},
}
# Functions that write the event ``<noun>.<arrow>``, by module and name: the noun, and which argument is the arrow.
ARROWS = {
    "jobs.change_state": ("job", 4),
    "change_state": ("job", 4),
    "_change": ("job", 2),
    "_changed": ("job", 2),
    "runs.change_state": ("run", 4),
    "versions.move": ("version", 2),
}
_LEVELS = {"debug", "info", "warning", "error", "exception"}
_DEPTH = 4


@dataclass(slots=True)
class Written:
    """One kind of event or one message: the names of its fields, and for a message its levels."""

    fields: set[str] = field(default_factory=set)
    levels: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Scope:
    """Where an expression stands: its module, and its function unless it stands outside of any."""

    file: Path
    function: ast.FunctionDef | None


class Sources:
    """The modules of the program as syntax trees, with their constants and the calls of every function."""

    def __init__(self, repository: Path) -> None:
        files = [file for top in ("scheduler", "platforms", "config") for file in (repository / top).rglob("*.py")]
        self.constants: dict[str, list[tuple[Scope, ast.expr]]] = defaultdict(list)
        self.calls: dict[str, list[tuple[ast.Call, Scope]]] = defaultdict(list)
        for file in sorted(files):
            self._read(ast.parse(file.read_text(encoding="utf-8")), Scope(file, None))

    def _read(self, tree: ast.AST, scope: Scope) -> None:
        for node in ast.iter_child_nodes(tree):
            if scope.function is None:
                for name, value in _assignments(node):
                    self.constants[name].append((scope, value))
            if isinstance(node, ast.Call):
                self.calls[ast.unparse(node.func).rpartition(".")[2]].append((node, scope))
            self._read(node, Scope(scope.file, node) if isinstance(node, ast.FunctionDef) else scope)

    def _constants(self, name: str, scope: Scope) -> list[tuple[Scope, ast.expr]]:
        """Return the constants of this name that the module has, else those of every module."""
        known = self.constants.get(name, [])
        return [one for one in known if one[0].file == scope.file] or known

    def texts(self, value: ast.expr, scope: Scope, depth: int = _DEPTH) -> Iterator[str]:
        """Yield every text that an expression can be, as far as the syntax shows it."""
        if depth == 0:
            return
        match value:
            case ast.Constant(value=str(text)):
                yield text
            case ast.IfExp():
                yield from self.texts(value.body, scope, depth)
                yield from self.texts(value.orelse, scope, depth)
            case ast.JoinedStr(values=[ast.Constant(value=str(start)), *_]) if start == "end_":
                yield from (f"{start}{outcome}" for outcome in OUTCOMES)
            case ast.Subscript(value=ast.Name(id=name)):
                for where, table in self._constants(name, scope):
                    for entry in table.values if isinstance(table, ast.Dict) else ():
                        yield from self.texts(entry, where, depth - 1)
            case ast.Attribute(attr=name):  # of another module
                for where, constant in [one for one in self.constants.get(name, []) if one[0].file != scope.file]:
                    yield from self.texts(constant, where, depth - 1)
            case ast.Name(id=name):
                yield from self._of_name(name, scope, depth - 1)
            case _:
                pass

    def _of_name(self, name: str, scope: Scope, depth: int) -> Iterator[str]:
        function = scope.function
        if function is not None:
            for node in ast.walk(function):
                for target, value in _assignments(node):
                    if target == name:
                        yield from self.texts(value, scope, depth)
            places = [argument.arg for argument in function.args.args if argument.arg != "self"]
            if name in places:
                for call, caller in self.calls[function.name]:
                    if function.name.startswith("_") and caller.file != scope.file:
                        continue
                    if places.index(name) < len(call.args):
                        yield from self.texts(call.args[places.index(name)], caller, depth)
                return
        for where, constant in self._constants(name, scope):
            yield from self.texts(constant, where, depth)


def _assignments(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(node, ast.ImportFrom):
        yield from ((name.asname, ast.Name(name.name)) for name in node.names if name.asname)
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
        yield node.target.id, node.value
    if not isinstance(node, ast.Assign):
        return
    for target in node.targets:
        if isinstance(target, ast.Name):
            yield target.id, node.value
        elif isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            for name, value in zip(target.elts, node.value.elts, strict=False):
                if isinstance(name, ast.Name):
                    yield name.id, value


def events(repository: Path) -> dict[str, Written]:
    """Return every kind of event, by name, with the fields of its ``data``."""
    sources = Sources(repository)
    kinds: dict[str, Written] = defaultdict(Written)
    for name in (*CLOSED_BY, *(closing for closings in CLOSED_BY.values() for closing in closings)):
        kinds[name].fields |= set()
    for call, scope in [*sources.calls["append"], *sources.calls["write"]]:
        if not ast.unparse(call.func).rpartition(".")[0].endswith("events") or len(call.args) < 3:
            continue
        for name in sources.texts(call.args[1], scope):
            kinds[name].fields |= _fields(call, scope)
        match call.args[1]:
            case ast.JoinedStr(values=[ast.Constant(value=str(start)), *_]) if start[:-1] in FAMILIES:
                for word in FAMILIES[start[:-1]]:
                    kinds[f"{start}{word}"].fields |= _fields(call, scope)
            case _:
                pass
    for words, (noun, place) in ARROWS.items():
        for call, scope in sources.calls[words.rpartition(".")[2]]:
            if ast.unparse(call.func) == words and len(call.args) > place:
                for arrow in sources.texts(call.args[place], scope):
                    kinds[f"{noun}.{arrow}"].fields |= _fields(call, scope) | {"from", "to"}
    return {name: kinds[name] for name in sorted(kinds) if "." in name}


def messages(repository: Path) -> dict[str, Written]:
    """Return every message of the log, by name, with its fields and levels."""
    sources = Sources(repository)
    names: dict[str, Written] = defaultdict(Written)
    for name, fields in OF_STATES.items():
        names[name] = Written(set(fields), {"info", "warning"})
    for level in _LEVELS:
        for call, scope in sources.calls[level]:
            if not ast.unparse(call.func).rpartition(".")[0].endswith("log") or not call.args:
                continue
            for name in sources.texts(call.args[0], scope):
                names[name].fields |= _fields(call, scope)
                names[name].levels.add("error" if level == "exception" else level)
    for call, scope in sources.calls["partial"]:  # of what logs what failed beside the cycle, in isolation.py
        if len(call.args) > 2 and ast.unparse(call.args[0]) in {"apart", "succeeds"}:
            for name in sources.texts(call.args[2], scope):
                names[name].fields |= _fields(call, scope) | {"why", "next"}
                names[name].levels.add("warning")
    for call, scope in sources.calls["gather_apart"]:
        for name in sources.texts(call.args[2], scope):
            names[name].fields |= {ast.literal_eval(call.args[5]), "why", "next"}
            names[name].levels.add("warning")
    return {name: names[name] for name in sorted(names) if "." in name}


def needs(repository: Path) -> list[tuple[str, str]]:
    """Return every kind of action required, with the command that its line offers first."""
    sources = Sources(repository)
    found: dict[str, str] = {}
    for call, scope in sources.calls["Need"]:
        if len(call.args) > 3:
            for name in sources.texts(call.args[0], scope):
                found.setdefault(name, _command(call.args[3], call.lineno, scope))
        for loop in (
            ast.walk(scope.function) if scope.function else ()
        ):  # a table of (condition, what, command, subjects)
            for row in loop.iter.elts if isinstance(loop, ast.For) and isinstance(loop.iter, ast.Tuple) else ():
                match row:
                    case ast.Tuple(elts=[_, ast.Constant(value=str(what)), ast.Constant(value=str(command)), _]):
                        found.setdefault(what, command.replace("{}", "NAME"))
    return sorted(found.items())


def _command(value: ast.expr, line: int, scope: Scope) -> str:
    """Return a command as the reader types it: what the code fills in becomes the word NAME."""
    match value:
        case ast.Constant(value=str(text)):
            return text
        case ast.IfExp():
            return _command(value.body, line, scope)
        case ast.JoinedStr():
            return "".join(_command(part, line, scope) for part in value.values)
        case ast.FormattedValue():
            return _command(value.value, line, scope)
        case ast.Name(id=name) if scope.function is not None:
            inside = (node for node in ast.walk(scope.function) if isinstance(node, ast.stmt) and node.lineno <= line)
            given = [found for node in inside for target, found in _assignments(node) if target == name]
            nearest = max(given, key=lambda found: found.lineno, default=None)
            return "NAME" if nearest is None else _command(nearest, nearest.lineno, scope)
        case _:
            return "NAME"


def _fields(call: ast.Call, scope: Scope) -> set[str]:
    """Return the names of the fields that a call gives, those of a local dictionary among them."""
    found = {keyword.arg for keyword in call.keywords if keyword.arg} - {"by"}
    for argument in [*call.args, *(keyword.value for keyword in call.keywords if not keyword.arg)]:
        tables = [argument]
        if isinstance(argument, ast.Name) and scope.function is not None:
            inside = [pair for node in ast.walk(scope.function) for pair in _assignments(node)]
            tables = [value for name, value in inside if name == argument.id]
        for table in tables:
            keys = table.keys if isinstance(table, ast.Dict) else []
            found |= {key.value for key in keys if isinstance(key, ast.Constant) and isinstance(key.value, str)}
    return found
