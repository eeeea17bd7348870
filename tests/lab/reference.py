"""Reference: the parts of the documents that are generated from the code, and the list of rooms.

A part of a page between ``<!-- NAME: make reference -->`` and ``<!-- end -->`` is generated here; a test compares it.
The names in the tables of events, messages and error classes come from the code. Their meanings are written by hand in
the page itself and are kept; a name without a meaning fails the test.
"""

from __future__ import annotations

import ast
import re
import tomllib
from dataclasses import MISSING, fields
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from config import section
from config.section import table_in
from config.settings import Settings
from jobs.definition import RANGES
from jobs.payload.lane.failure import ErrorClass
from platforms.options import Declared, declared_options
from platforms.registry import shipped
from scheduler.cli.root import COMMANDS, tree
from scheduler.cli.shell.command import CliCommand, load_command
from scheduler.cli.shell.exits import meanings
from scheduler.core import reasons
from scheduler.core.run import CONSEQUENCES
from tests.lab import emitted
from tests.lab.samples import samples

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

REPOSITORY = Path(__file__).resolve().parents[2]
_PART = re.compile(r"(?s)(<!-- (\w+): make reference -->\n)(.*?)(<!-- end -->)")
_MEANING = re.compile(r"^\| `([^`]+)` \|.* \| ([^|]*) \|$", re.MULTILINE)
_KEY = re.compile(r"(# )?([a-z_]+) = (.*)")
# Tables that people write by name; their keys stand in sections of their own.
_TABLES = ("pools[]", "targets[]", "rules[]", "webhooks[]", "corpus.rules[]", "corpus.weights[]")


def commands() -> Iterator[tuple[str, Any]]:
    """Yield every command that does something, with its words."""
    root = tree()
    for name in COMMANDS:
        found: Any = load_command(root.commands[name])
        inner = getattr(found, "commands", {})
        if not inner or found.invoke_without_command:
            yield f"schedctl {name}", found
        for word in inner:
            yield f"schedctl {name} {word}", load_command(inner[word])


def keys_of(table: Any, before: str = "") -> Iterator[str]:
    """Yield every key below a table as ``config show`` names it; of lists of tables ``[]`` stands for the place."""
    for label, (_, annotation) in section.keys_of(table).items():
        inner, key = table_in(annotation), f"{before}{label}"
        if inner is not None:
            yield from keys_of(inner, f"{key}." if inner is annotation else f"{key}[].")
        else:
            yield key


def setting_keys() -> set[str]:
    """Return the key of every setting but those of tables that people name."""
    return {key for key in keys_of(Settings) if not key.startswith(_TABLES)}


def _command_rows() -> Iterator[str]:
    shared = {param.name for param in CliCommand("x").params} | {"wide", "columns"}
    for words, command in commands():
        own = [param for param in command.params if param.name not in shared and not getattr(param, "hidden", False)]
        taken = [*map(_argument, _kind(own, "argument")), *map(_option, _kind(own, "option"))]
        usage = " ".join([words.removeprefix("schedctl "), *taken])
        first = re.split(r"(?<=[a-z)])\. ", " ".join((command.help or "").split("\n\n")[0].split()))[0]
        yield f"- `{usage}`: {first.removesuffix('.').replace('``', '`')}"


def _kind(params: list[Any], kind: str) -> list[Any]:
    return [param for param in params if param.param_type_name == kind]


def _argument(found: Any) -> str:
    name = (found.metavar or str(found.name).upper()).removesuffix("...")
    name += "..." if found.nargs == -1 else ""
    return name if found.required or name.startswith("[") else f"[{name}]"


def _option(found: Any) -> str:
    value = "" if found.is_flag or found.count else f" {found.metavar or str(found.name).upper()}"
    return f"[{found.opts[0]}{value}]" + ("..." if found.multiple else "")


def _exit_rows() -> Iterator[str]:
    yield from ("| code | name | meaning |", "|---|---|---|")
    for code, meaning in meanings().items():
        yield f"| {int(code)} | {code.name} | {meaning} |"


def _range_rows() -> Iterator[str]:
    for key, rule in RANGES.items():
        yield f"- `{key}`: {'1970 to 3000' if rule.unit == 'UTC seconds' else rule}"


def _pool_option_rows() -> Iterator[str]:
    """One line for each platform; what an option means is told on the platform's own page."""
    for platform in sorted(shipped()):
        module = import_module(f"platforms.{platform}.{'adapter' if platform in {'local', 'manual'} else 'settings'}")
        kinds = {name.lower(): kind for name, kind in vars(module).items()}
        options = declared_options(kinds[f"{platform}settings"])
        yield f"- {platform}: {', '.join(map(_pool_option, options))}"


def _pool_option(option: Declared) -> str:
    default, words = option.default, option.how.words or get_args(option.kind)
    if default is MISSING:
        return f"`{option.name}` (required)"
    if isinstance(default, bool):
        default = words[0] if default else words[1]
    elif isinstance(default, int | float):
        default = f"{default / option.how.units:g}" if option.how.units != 1 else f"{default:,}"
    elif isinstance(default, tuple):
        default = ", ".join(default)
    others = " or ".join(str(word) for word in words if isinstance(word, str) and word != default)
    told = f"{default}, else {others}" if others else default
    return f"`{option.name}` ({told})" if told else f"`{option.name}`"


def _setting_rows() -> Iterator[str]:
    """One line for the keys that share a comment of the defaults; ``# key = ...`` is a setting without a default."""
    known = setting_keys()
    section = ""
    comment: list[str] = []
    row: list[tuple[str, str]] = []
    told: list[str] = []
    for line in [*(REPOSITORY / "config/defaults.toml").read_text(encoding="utf-8").splitlines(), ""]:
        found = _KEY.fullmatch(line)
        key = f"{section}{found[2]}" if found else ""
        if found and key in known:
            row.append((key, "" if found[1] else _written(found[3])))
            told = comment or told
            comment = []
            continue
        if row:
            names, values = ", ".join(f"`{name}`" for name, _ in row), ", ".join(value for _, value in row)
            defaults = f" ({values})" if any(value for _, value in row) else ""
            yield f"- {names}{defaults}: {_meaning(told)}"
            row, told = [], []
        if line.startswith("# "):
            comment.append(line.removeprefix("# "))
        else:
            comment = []
        if line.startswith("["):
            section = f"{line.strip('[]')}."


def _written(text: str) -> str:
    value = tomllib.loads(f"x = {text}")["x"]
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _meaning(comment: list[str]) -> str:
    """Return a comment with links to the pages that it names, from a page of docs/reference."""
    return re.sub(r"docs/([\w/-]+)\.md", lambda found: f"[{Path(found[1]).name}](../{found[1]}.md)", " ".join(comment))


def _table(names: Iterable[tuple[str, str]], head: tuple[str, str, str], old: str) -> Iterator[str]:
    """Yield a table of names, each with what the code says of it and the meaning that the page has."""
    meanings = dict(_MEANING.findall(old))
    yield from (f"| {' | '.join(head)} |", "|---|---|---|")
    for name, facts in names:
        yield f"| `{name}` | {facts} | {meanings.get(name, '').strip()} |"


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))


def _event_rows(old: str) -> Iterator[str]:
    found = emitted.events(REPOSITORY)
    yield from _table(((name, _quoted(one.fields)) for name, one in found.items()), ("event", "data", "meaning"), old)


def _message_rows(old: str) -> Iterator[str]:
    found = ((name, one) for name, one in emitted.messages(REPOSITORY).items())
    rows = ((name, f"{', '.join(sorted(one.levels))}: {_quoted(one.fields)}") for name, one in found)
    yield from _table(rows, ("message", "level: fields", "meaning"), old)


def _outcome_rows(old: str) -> Iterator[str]:
    rows = (
        (
            str(outcome),
            f"{one.job}; {'' if one.charged else 'not '}billed; {'a' if one.counts_as_failure else 'no'} failure",
        )
        for outcome, one in CONSEQUENCES.items()
    )
    yield from _table(rows, ("outcome", "what follows for the job", "meaning"), old)


def _class_rows(old: str) -> Iterator[str]:
    meanings = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", old, re.MULTILINE))
    yield from ("| error class | meaning |", "|---|---|")
    yield from (f"| `{name}` | {meanings.get(name, '')} |" for name in get_args(ErrorClass))


def _reason_rows() -> Iterator[str]:
    yield from ("| code | the job waits because | fields |", "|---|---|---|")
    shared = [entry.name for entry in fields(reasons.Reason)]
    for kind in reasons._BY_CODE.values():
        first = " ".join((kind.__doc__ or "").split("\n\n")[0].split()).partition(". ")[0].removesuffix(".")
        names = [entry.name for entry in fields(kind) if entry.name not in shared]
        yield f"| `{kind.code}` | {first.replace('``', '`')} | {', '.join(f'`{name}`' for name in names)} |"


def _shared_rows() -> Iterator[str]:
    shared = [entry.name for entry in fields(reasons.Reason)]
    if shared:
        yield f"Every reason also has {', '.join(f'`{name}`' for name in shared)}, as far as they are known."


def _precondition_rows() -> Iterator[str]:
    yield from ("| precondition | meaning |", "|---|---|")
    yield from (f"| `{one}` | {one.words} |" for one in reasons.Precondition)


def _need_rows() -> Iterator[str]:
    yield from ("| action required | first command |", "|---|---|")
    yield from (f"| `{what}` | {f'`{remedy}`' if remedy else ''} |" for what, remedy in emitted.needs(REPOSITORY))


def _sample_rows() -> Iterator[str]:
    for words, text in samples():
        yield from (f"`schedctl --json {words}`", "", "```json", text, "```", "")


PARTS: dict[str, Callable[..., Iterator[str]]] = {
    "commands": _command_rows,
    "exits": _exit_rows,
    "settings": _setting_rows,
    "ranges": _range_rows,
    "options": _pool_option_rows,
    "events": _event_rows,
    "messages": _message_rows,
    "outcomes": _outcome_rows,
    "classes": _class_rows,
    "reasons": _reason_rows,
    "shared": _shared_rows,
    "preconditions": _precondition_rows,
    "needs": _need_rows,
    "samples": _sample_rows,
}


def written(page: str) -> str:
    """Return the text of a page with its parts as the code has them now."""
    return _PART.sub(lambda found: f"{found[1]}{chr(10).join(_rows(found[2], found[3]))}\n{found[4]}", page)


def _rows(part: str, old: str) -> Iterator[str]:
    """Return the rows of a part; a function with a parameter gets the rows that the page has."""
    rows = PARTS[part]
    return rows(old) if signature(rows).parameters else rows()


def rooms(repository: Path) -> Iterator[str]:
    """Yield every folder with code and the first line of what it says of itself, indented by depth."""
    for top in ("jobs", "platforms", "config", "scheduler", "tests/lab"):
        for file in sorted((repository / top).rglob("__init__.py")):
            place = file.parent.relative_to(repository)
            says = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
            name = f"{'  ' * (len(place.parts) - 1)}{place.name}/"
            yield f"{name:<24}{says.partition(chr(10))[0].removesuffix('.')}"
