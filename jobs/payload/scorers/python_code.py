"""Python code, counted by its syntax tree: entries, lines, complexity, effects, imports. Nothing of it is run."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from .atomicity import Measured, Unparsed

# What reaches outside of a component: by name, by the module that is called, or by method of anything.
_EFFECT_NAMES = {"open", "print", "input", "exec", "eval", "compile", "__import__", "breakpoint", "exit", "quit"}
_EFFECT_MODULES = {
    "os", "sys", "subprocess", "socket", "shutil", "requests", "urllib", "http", "smtplib", "ftplib", "sqlite3",
    "tempfile", "threading", "multiprocessing", "signal", "logging", "ctypes", "importlib", "asyncio",
}  # fmt: skip
_HARMLESS = {"os.path", "os.sep", "os.fspath", "urllib.parse", "logging.getLogger"}
_EFFECT_METHODS = {
    "write_text",
    "write_bytes",
    "unlink",
    "mkdir",
    "rmdir",
    "rename",
    "touch",
    "read_text",
    "read_bytes",
}
_BRANCHES = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.IfExp, ast.ExceptHandler, ast.Assert, ast.comprehension)


def measure_python(code: str) -> Measured:
    """Count a module. Raises Unparsed."""
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise Unparsed(f"does not parse: {error}"[:200]) from None
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return Measured(
        entries=len(_entries(tree)),
        lines=_lines(tree),
        complexity=max((_complexity(function) for function in functions), default=1),
        effects=_effects(tree),
        imports=len(_imports(tree)),
    )


def _entries(tree: ast.Module) -> list[str]:
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
    """Return the lines that statements stand on; docstrings and comments are none."""
    held: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            continue
        if isinstance(node, ast.stmt):
            end = node.end_lineno or node.lineno
            if not hasattr(node, "body"):
                held.update(range(node.lineno, end + 1))
            else:
                held.add(node.lineno)
    return len(held)


def _complexity(function: ast.AST) -> int:
    """Return the ways through a function, without those of functions inside it, which are counted by themselves."""
    count = 1
    for node in _own(function):
        if isinstance(node, _BRANCHES):
            count += 1 + (len(node.ifs) if isinstance(node, ast.comprehension) else 0)
        elif isinstance(node, ast.BoolOp):
            count += len(node.values) - 1
        elif isinstance(node, ast.Match):
            count += len(node.cases)
    return count


def _own(function: ast.AST) -> Iterator[ast.AST]:
    pending = list(ast.iter_child_nodes(function))
    while pending:
        node = pending.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            pending += ast.iter_child_nodes(node)


def _effects(tree: ast.Module) -> int:
    """Return how many calls reach outside, how many names are made global, and how much is run on import."""
    modules = _names_of_modules(tree)
    count = 0
    for node in ast.walk(tree):
        if isinstance(node, ast.Global):
            count += len(node.names)
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            first, _, rest = name.partition(".")
            full = modules.get(first, "") + (f".{rest}" if rest else "")
            module = full.split(".")[0]
            if (
                (first in _EFFECT_NAMES and not rest and first not in modules)
                or (module in _EFFECT_MODULES and not any(full == ok or full.startswith(f"{ok}.") for ok in _HARMLESS))
                or (isinstance(node.func, ast.Attribute) and node.func.attr in _EFFECT_METHODS)
            ):
                count += 1
    on_import = sum(isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) for node in tree.body)
    return count + on_import


def _names_of_modules(tree: ast.Module) -> dict[str, str]:
    """Return what each imported name stands for: ``p`` is ``os.path`` after ``import os.path as p``."""
    result: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                result[alias.asname or alias.name.split(".")[0]] = (
                    alias.name if alias.asname else alias.name.split(".")[0]
                )
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
