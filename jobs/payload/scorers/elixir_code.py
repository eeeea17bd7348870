"""Counts of Elixir code, from the syntax tree of tree-sitter and its Elixir grammar.

This is a measure, not a security check. Calls through a variable, by ``apply`` or after an import count as effects,
because their target is not visible.
"""

from collections.abc import Iterator
from typing import Any

from .atomicity import CodeCounts, Unparsed
from .given import NotGiven

_PUBLIC, _PRIVATE = {"def", "defmacro", "defdelegate"}, {"defp", "defmacrop"}
_EFFECT_MODULES = {
    "File", "IO", "System", "Port", "Node", "Process", "Task", "Agent", "GenServer", "Supervisor", "Code", "Logger",
    ":ets", ":dets", ":file", ":os", ":gen_tcp", ":gen_udp", ":httpc", ":erlang", ":persistent_term", ":code",
}  # fmt: skip
_EFFECT_CALLS = {"send", "spawn", "spawn_link", "exit", "raise", "throw", "apply"}
_IMPORTS = {"import", "alias", "require", "use"}
_BRANCHES = {"if", "unless"}
_OPERATORS = {"and", "or", "&&", "||"}


def measure_elixir(code: str) -> CodeCounts:
    """Return the counts of an Elixir module. Raises Unparsed for a syntax error, and NotGiven without tree-sitter."""
    root = _parse(code.encode(errors="replace"))
    if root.has_error:
        raise Unparsed("does not parse as Elixir")
    public: set[tuple[str, int]] = set()
    paths: dict[tuple[str, int], int] = {}
    effects, imports = 0, 0
    imported: set[str] = set()
    for node in _walk(root):
        name = _call_name(node)
        if name in _PUBLIC | _PRIVATE:
            function = _head(node)
            if function is not None:
                paths[function] = paths.get(function, 0) + 1 + _branches(node)
                if name in _PUBLIC:
                    public.add(function)
        elif name in _IMPORTS:
            imports += 1
            if name == "import":
                imported.update(map(_text, _arguments(node)[:1]))
        elif node.type == "call":
            effects += _is_effect(node, name)
    effects += len({module for module in imported if module in _EFFECT_MODULES})
    return CodeCounts(len(public), _lines(root), max(paths.values(), default=1), effects, imports)


def _parse(data: bytes) -> Any:
    try:
        import tree_sitter
        import tree_sitter_elixir
    except ImportError:
        raise NotGiven(
            "Elixir is read by tree-sitter, which is not installed here; add tree-sitter and tree-sitter-elixir to the "
            "requirements of the evaluation"
        ) from None
    return tree_sitter.Parser(tree_sitter.Language(tree_sitter_elixir.language())).parse(data).root_node


def _walk(root: Any) -> Iterator[Any]:
    """Yield every node. The walk is a loop, because a recursion would fail at a thousand nested brackets."""
    pending = [root]
    while pending:
        node = pending.pop()
        yield node
        pending += reversed(node.children)


def _call_name(node: Any) -> str:
    """Return the name of a call without a module, such as ``def`` or ``send``; "" for anything else."""
    target = node.child_by_field_name("target") if node.type == "call" else None
    return _text(target) if target is not None and target.type == "identifier" else ""


def _head(node: Any) -> tuple[str, int] | None:
    """Return name and arity of the function in a definition; None if the definition has no name."""
    arguments = _arguments(node)
    head = arguments[0] if arguments else None
    while head is not None and head.type == "binary_operator" and _operator(head) == "when":
        head = head.child_by_field_name("left")
    if head is None:
        return None
    if head.type == "identifier":
        return _text(head), 0
    target = head.child_by_field_name("target")
    return (_text(target), len(_arguments(head))) if head.type == "call" and target is not None else None


def _arguments(node: Any) -> list[Any]:
    for child in node.children:
        if child.type == "arguments":
            return list(child.named_children)
    return []


def _branches(definition: Any) -> int:
    count = 0
    for node in _walk(definition):
        if _call_name(node) in _BRANCHES:
            count += 1
        elif node.type in ("do_block", "anonymous_function", "else_block", "rescue_block", "catch_block"):
            count += max(0, sum(child.type == "stab_clause" for child in node.children) - 1)
        elif node.type == "binary_operator" and _operator(node) in _OPERATORS:
            count += 1
    return count


def _is_effect(node: Any, name: str) -> bool:
    if name:
        return name in _EFFECT_CALLS
    target = node.child_by_field_name("target")
    if target is None or target.type != "dot":
        return False
    left = target.child_by_field_name("left")
    if left is None or target.child_by_field_name("right") is None:
        return False  # fun.(...): the call of a value, not of a module's function
    module = _text(left).removeprefix("Elixir.")
    # A variable may hold any module. Without arguments it is a field of a map.
    unknown = left.type not in ("alias", "atom") and node.children[-1].type == "arguments"
    return module.split(".")[0] in _EFFECT_MODULES or module.startswith(':"Elixir.') or unknown


def _operator(node: Any) -> str:
    operator = node.child_by_field_name("operator")
    return _text(operator) if operator is not None else ""


def _lines(root: Any) -> int:
    """Return the number of lines with code; comments and documentation do not count."""
    line_numbers: set[int] = set()
    for node in _walk(root):
        if not node.children and node.type != "comment" and not _in_doc(node):
            line_numbers.update(range(node.start_point[0], node.end_point[0] + 1))
    return len(line_numbers)


def _in_doc(node: Any) -> bool:
    """Return whether a node is in documentation, whose attribute is at most six levels above the text."""
    ancestor = node
    for _ in range(6):
        ancestor = ancestor.parent
        if ancestor is None:
            return False
        if ancestor.type == "unary_operator" and _text(ancestor).startswith(("@doc", "@moduledoc", "@typedoc")):
            return True
    return False


def _text(node: Any) -> str:
    return str(node.text.decode(errors="replace"))
