"""TIKI compliance: how well a component's specification follows the format and matches its code.

A specification is a YAML table with id, name, version, module, functions, code_ref, metadata and children; a child is
such a table too. The score is the share of checks that pass; invalid YAML scores 0.
"""

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .atomicity import Unparsed, parse_python
from .given import NotGiven, ScorerInput
from .items import Item, ScoreLine, code_in

METRIC = "tiki_compliance"
TEXTS = ("id", "name", "version", "module", "code_ref")
METADATA = {
    "dependencies": list, "performance": dict, "inputs": list, "outputs": list, "failure_modes": list, "tags": list,
}  # fmt: skip
KEYS = (*TEXTS, "functions", "metadata", "children")
_VERSION = re.compile(r"\d+\.\d+(\.\d+)?([-+][\w.]+)?")
_FAULTS_SHOWN = 3


@dataclass(slots=True)
class Checks:
    """The number of checks, and the failed ones with their places."""

    total: int = 0
    faults: list[str] = field(default_factory=list)

    def check(self, holds: object, where: str, fault: str) -> bool:
        """Count a check and record its fault if it fails; return whether it passes."""
        self.total += 1
        if not holds:
            self.faults.append(f"{where}: {fault}")
        return bool(holds)

    @property
    def score(self) -> float:
        """The share of checks that pass."""
        return 1 - len(self.faults) / self.total if self.total else 0.0


def check_spec(text: str, code: Mapping[str, str], names: Sequence[str] = ()) -> Checks:
    """Check a specification; ``code`` has sources by the path of a code_ref, ``names`` the ids of other components."""
    checks = Checks()
    try:
        document = read_yaml(text)
    except BadYaml as error:
        checks.check(holds=False, where="document", fault=str(error))
        return checks
    if not checks.check(isinstance(document, dict), "document", "is not a table"):
        return checks
    components = list(_components(document, "document", checks))
    ids = [component.get("id") for _, component in components]
    for where, component in components:
        _check_form(where, component, checks)
        checks.check(ids.count(component.get("id")) == 1, f"{where}.id", "is the id of another component too")
        _check_references(where, component, {*map(str, ids), *names}, checks)
        if code:
            _check_code(where, component, code, checks)
    return checks


def score(items: Sequence[Item], candidate: ScorerInput, metric: str) -> Iterator[ScoreLine]:
    """Score each item's first output; an item may have ``code`` (sources by path) and ``known`` ids of components."""
    for item in items:
        code, names = item.task.get("code"), item.task.get("known")
        checks = check_spec(
            code_in(candidate.texts(item.id)[0]),
            {str(path): str(text) for path, text in code.items()} if isinstance(code, dict) else {},
            [str(name) for name in names] if isinstance(names, list) else (),
        )
        yield ScoreLine(item.id, item.cluster, metric, checks.score, "; ".join(checks.faults[:_FAULTS_SHOWN]))


def _components(document: Mapping[str, Any], where: str, checks: Checks) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield a component and all its children, with their places in the document."""
    yield where, document
    children = document.get("children", [])
    # An empty value in YAML is an empty text here.
    if children == "":
        return
    if checks.check(isinstance(children, list), f"{where}.children", "is not a list"):
        for index, child in enumerate(children):
            inner = f"{where}.children[{index}]"
            if checks.check(isinstance(child, dict), inner, "is not a table"):
                yield from _components(child, inner, checks)


def _check_form(where: str, component: Mapping[str, Any], checks: Checks) -> None:
    for key in TEXTS:
        value = component.get(key)
        checks.check(isinstance(value, str) and value.strip(), f"{where}.{key}", "is missing or not a text")
    version = component.get("version")
    is_version = isinstance(version, str) and _VERSION.fullmatch(version)
    checks.check(is_version, f"{where}.version", "is not like 1.10 or 1.2.3")
    functions = component.get("functions")
    are_names = isinstance(functions, list) and functions and all(_function(function) for function in functions)
    checks.check(are_names, f"{where}.functions", "is not a list of names")
    unknown = sorted(set(component) - set(KEYS))
    checks.check(not unknown, where, f"has keys that TIKI does not know: {', '.join(unknown)[:100]}")
    metadata = component.get("metadata")
    if checks.check(isinstance(metadata, dict), f"{where}.metadata", "is missing or not a table"):
        assert isinstance(metadata, dict)  # noqa: S101 - checked above
        for key, kind in METADATA.items():
            part: Any = metadata.get(key)
            fits = part == "" or isinstance(part, kind)
            checks.check(fits, f"{where}.metadata.{key}", f"is missing or not a {'table' if kind is dict else 'list'}")


def _check_references(where: str, component: Mapping[str, Any], names: set[str], checks: Checks) -> None:
    metadata = component.get("metadata")
    dependencies = metadata.get("dependencies") if isinstance(metadata, dict) else None
    for name in dependencies if isinstance(dependencies, list) else ():
        checks.check(
            isinstance(name, str) and name in names, f"{where}.metadata.dependencies", f"{name!s:.50} is not known"
        )


def _check_code(where: str, component: Mapping[str, Any], code: Mapping[str, str], checks: Checks) -> None:
    """Check that the code exists and has the functions. In a code_ref, a place in the file follows # or :."""
    path = re.split(r"[#:]", str(component.get("code_ref", "")), maxsplit=1)[0]
    if not checks.check(path in code, f"{where}.code_ref", f"{path[:100]!r} does not exist"):
        return
    functions = component.get("functions")
    try:
        defined = _defined(path, code[path])
    except Unparsed as error:
        checks.check(holds=False, where=f"{where}.code_ref", fault=f"{path[:100]} {error}")
        return
    for function in functions if isinstance(functions, list) else ():
        name = _function(function)
        if name:
            checks.check(name in defined, f"{where}.functions", f"{name[:50]} is not in {path[:100]}")


def _function(value: Any) -> str:
    """Return the name of a function, given as a table or as text like ``put/2`` or ``put(values, value)``."""
    text = value.get("name", "") if isinstance(value, dict) else value
    match = re.match(r"[A-Za-z_]\w*[?!]?", text) if isinstance(text, str) else None
    return match[0] if match else ""


def _defined(path: str, code: str) -> set[str]:
    """Return the names that Elixir or Python code defines. Raises Unparsed."""
    if path.endswith((".ex", ".exs")):
        return set(re.findall(r"^\s*def(?:macro|delegate)?\s+([a-z_]\w*[?!]?)", code, re.MULTILINE))
    definitions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return {node.name for node in ast.walk(parse_python(code)) if isinstance(node, definitions)}


# A safe subset of YAML, for documents that a model wrote.
#
# Scalars stay texts: 1.10, ``on`` and dates are not converted. Duplicate keys, anchors, aliases, tags, and large or
# deep documents are refused: they may expand without limit, or YAML parsers disagree about their meaning.
BYTES_MAX = 1 << 20
DEPTH_MAX = 50


class BadYaml(ValueError):
    """A document is refused; the message says where and why."""


def read_yaml(text: str) -> Any:
    """Return a document of texts, lists and tables. Raises BadYaml, and NotGiven without PyYAML."""
    try:
        import yaml
    except ImportError:
        remedy = "add pyyaml to the requirements of the evaluation"
        raise NotGiven(f"YAML is read by PyYAML, which is not installed here; {remedy}") from None
    if len(text.encode(errors="replace")) > BYTES_MAX:
        raise BadYaml(f"more than {BYTES_MAX:,} bytes")
    # Events are handled one by one, so that the depth is checked before a recursive parser could exhaust the stack.
    reader = _Reader()
    try:
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            reader.add(event)
    except yaml.YAMLError as error:
        raise BadYaml(f"not YAML: {' '.join(str(error).split())[:200]}") from None
    except (RecursionError, ValueError) as error:
        if isinstance(error, BadYaml):
            raise
        raise BadYaml(f"not YAML: {error}"[:200]) from None
    return reader.document


class _Reader:
    """Builds a document from events. ``_open`` has the unclosed lists and tables, each with its pending key."""

    def __init__(self) -> None:
        self.document: Any = None
        self._documents = 0
        self._open: list[tuple[Any, list[str]]] = []

    def add(self, event: Any) -> None:
        """Add the next event to the document. Raises BadYaml."""
        kind = type(event).__name__
        where = f"line {event.start_mark.line + 1}"
        if kind == "AliasEvent" or getattr(event, "anchor", None):
            raise BadYaml(f"{where}: anchors and aliases are not read; write the text out")
        if getattr(event, "tag", None):
            raise BadYaml(f"{where}: the tag {event.tag} is not read; leave it out")
        if kind == "DocumentStartEvent":
            self._documents += 1
            if self._documents > 1:
                raise BadYaml(f"{where}: a second document; write one")
        elif kind == "ScalarEvent":
            self._store(event.value, where)
        elif kind in ("SequenceStartEvent", "MappingStartEvent"):
            value: Any = [] if kind == "SequenceStartEvent" else {}
            self._store(value, where)
            self._open.append((value, []))
            if len(self._open) > DEPTH_MAX:
                raise BadYaml(f"{where}: nested deeper than {DEPTH_MAX}")
        elif kind in ("SequenceEndEvent", "MappingEndEvent"):
            self._open.pop()

    def _store(self, value: Any, where: str) -> None:
        if not self._open:
            self.document = value
            return
        container, key = self._open[-1]
        if isinstance(container, list):
            container.append(value)
        elif not key:
            if not isinstance(value, str):
                raise BadYaml(f"{where}: a key is a text, not a list or a table")
            if value in container:
                raise BadYaml(f"{where}: the key {value[:50]!r} occurs twice")
            key.append(value)
        else:
            container[key.pop()] = value
