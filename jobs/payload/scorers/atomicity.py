"""Component atomicity: how close a piece of code is to one small component, from 0 to 1. See docs/gates.md.

The score is a weighted mean of five parts. Each part is 1 up to a good value, and falls linearly to 0 at a bad value.
"""

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .given import ScorerInput
from .items import Item, ScoreLine, code_in

METRIC = "component_atomicity"
CODE_BYTES_MAX = 1 << 20


class Unparsed(ValueError):
    """Code that cannot be parse_python; its score is 0."""


@dataclass(frozen=True, slots=True)
class CodeCounts:
    """Counts of a component: public names, lines of code, highest complexity of a function, outside calls, imports."""

    entries: int
    lines: int
    complexity: int
    effects: int
    imports: int


# By part: weight, largest good value, smallest bad value.
PARTS = {
    "entries": (0.30, 1, 5),
    "lines": (0.20, 80, 400),
    "complexity": (0.20, 10, 30),
    "effects": (0.20, 0, 5),
    "imports": (0.10, 6, 18),
}


def atomicity(counts: CodeCounts) -> float:
    """Return the score of a component; 0 without a public entry."""
    if not counts.entries:
        return 0.0
    total = 0.0
    for part, (weight, good, bad) in PARTS.items():
        excess = (getattr(counts, part) - good) / (bad - good)
        total += weight * (1 - min(1.0, max(0.0, excess)))
    return round(total, 9)


def measure(code: str, language: str) -> CodeCounts:
    """Return the counts of Python or Elixir code. Raises Unparsed, and NotGiven without the parser of the language."""
    if len(code.encode(errors="replace")) > CODE_BYTES_MAX:
        raise Unparsed(f"more than {CODE_BYTES_MAX:,} bytes")
    if language == "elixir":
        from .elixir_code import measure_elixir

        return measure_elixir(code)
    return measure_python(code)


def score(items: Sequence[Item], candidate: ScorerInput, metric: str) -> Iterator[ScoreLine]:
    """Score the first output of each item. The item's ``language`` is python, the default, or elixir."""
    for item in items:
        try:
            counts = measure(code_in(candidate.texts(item.id)[0]), str(item.task.get("language", "python")))
        except Unparsed as error:
            yield ScoreLine(item.id, item.cluster, metric, 0.0, str(error))
            continue
        listing = ", ".join(f"{part} {getattr(counts, part)}" for part in PARTS)
        yield ScoreLine(item.id, item.cluster, metric, atomicity(counts), listing)


# Python code is counted by its syntax tree, and never run.
# Calls that reach outside a component: by name, by module, or by the method of any object.
_EFFECT_NAMES = {"open", "print", "input", "exec", "eval", "compile", "__import__", "breakpoint", "exit", "quit"}
_EFFECT_MODULES = {
    "os", "sys", "subprocess", "socket", "shutil", "requests", "urllib", "http", "smtplib", "ftplib", "sqlite3",
    "tempfile", "threading", "multiprocessing", "signal", "logging", "ctypes", "importlib", "asyncio",
}  # fmt: skip
_SAFE = {"os.path", "os.sep", "os.fspath", "urllib.parse", "logging.getLogger"}
_EFFECT_METHODS = {
    "write_text", "write_bytes", "unlink", "mkdir", "rmdir", "rename", "touch", "read_text", "read_bytes",
}  # fmt: skip
_BRANCHES = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.IfExp, ast.ExceptHandler, ast.Assert, ast.comprehension)


def measure_python(code: str) -> CodeCounts:
    """Return the counts of a Python module. Raises Unparsed."""
    tree = parse_python(code)
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return CodeCounts(
        entries=len(_entries(tree)),
        lines=_lines(tree),
        complexity=max((_complexity(function) for function in functions), default=1),
        effects=_effects(tree),
        imports=len(_imports(tree)),
    )


def parse_python(code: str) -> ast.Module:
    """Return the syntax tree of Python code. Raises Unparsed."""
    try:
        return ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise Unparsed(f"does not parse: {error}"[:200]) from None


def _entries(tree: ast.Module) -> list[str]:
    """Return the public names of a module: those of ``__all__``, else functions and classes without underscore."""
    defined = []
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            defined.append(node.name)
        elif isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["__all__"]:
            try:
                return [str(name) for name in ast.literal_eval(node.value)]
            except (ValueError, TypeError):
                continue
    return [name for name in defined if not name.startswith("_")]


def _lines(tree: ast.Module) -> int:
    """Return the number of lines with statements; docstrings and comments do not count."""
    line_numbers: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            continue
        if isinstance(node, ast.stmt):
            end = node.end_lineno or node.lineno
            if not hasattr(node, "body"):
                line_numbers.update(range(node.lineno, end + 1))
            else:
                line_numbers.add(node.lineno)
    return len(line_numbers)


def _complexity(function: ast.AST) -> int:
    """Return the number of paths through a function, without the paths of functions inside it."""
    count = 1
    for node in _own_nodes(function):
        if isinstance(node, _BRANCHES):
            count += 1 + (len(node.ifs) if isinstance(node, ast.comprehension) else 0)
        elif isinstance(node, ast.BoolOp):
            count += len(node.values) - 1
        elif isinstance(node, ast.Match):
            count += len(node.cases)
    return count


def _own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a function, without those of functions inside it."""
    pending = list(ast.iter_child_nodes(function))
    while pending:
        node = pending.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            pending += ast.iter_child_nodes(node)


def _effects(tree: ast.Module) -> int:
    """Return the number of calls that reach outside, ``global`` names, and calls that an import runs."""
    modules = _names_of_modules(tree)
    count = 0
    for node in ast.walk(tree):
        if isinstance(node, ast.Global):
            count += len(node.names)
        elif isinstance(node, ast.Call):
            first, _, rest = ast.unparse(node.func).partition(".")
            full = modules.get(first, "") + (f".{rest}" if rest else "")
            module = full.split(".")[0]
            if (
                (first in _EFFECT_NAMES and not rest and first not in modules)
                or (module in _EFFECT_MODULES and not any(full == ok or full.startswith(f"{ok}.") for ok in _SAFE))
                or (isinstance(node.func, ast.Attribute) and node.func.attr in _EFFECT_METHODS)
            ):
                count += 1
    on_import = sum(isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) for node in tree.body)
    return count + on_import


def _names_of_modules(tree: ast.Module) -> dict[str, str]:
    """Return the full name of each imported name: ``p`` is ``os.path`` after ``import os.path as p``."""
    result: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                package = alias.name.split(".")[0]
                result[alias.asname or package] = alias.name if alias.asname else package
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                result[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return result


def _imports(tree: ast.Module) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add("." * node.level + (node.module or ""))
    return names - {"__future__", "typing"}
