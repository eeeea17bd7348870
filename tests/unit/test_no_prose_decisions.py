"""No code decides by a sentence: a cause is data, and what stands beside it is for people."""

import ast
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGES = ("scheduler", "platforms", "config", "jobs")
SENTENCES = {"why", "closed_why", "message", "sentence", "reason", "remedy", "detail", "error", "evidence"}
OF_TEXT = {"startswith", "endswith", "partition", "rpartition", "removeprefix", "find", "index", "count"}
OF_PATTERN = {"match", "search", "fullmatch", "findall", "finditer"}
UNCHANGING = {"lower", "upper", "strip", "casefold"}

# Where another program gives a sentence and nothing else, or where a text is compared with what it was before.
ALLOWED = {
    "jobs/problem.py": "punctuation",
    "jobs/payload/lane/failure.py": "programs of users end with words alone",
    "jobs/payload/lane/lane.py": "logs a trouble only when it is another one",
    "jobs/payload/trainers/trainer_kit.py": "torch.save has no error of its own for a full disk",
    "jobs/payload/trainers/tuning/attention.py": "shows the first line",
    "jobs/payload/trainers/tuning/memory.py": "torch raises RuntimeError for some kinds of full memory",
    "platforms/kaggle/adapter.py": "Kaggle refuses a push by a sentence alone; and a stored word of two",
    "platforms/kaggle/kernel/packing.py": "Kaggle says in a sentence alone that a name is in use",
    "platforms/sagemaker/answers.py": "AWS writes the limit into its sentence alone, and the class before it",
    "platforms/slurm/checkup.py": "sinfo prints none for nodes without a reason, which is only shown",
    "platforms/slurm/judge.py": "Slurm's reasons are words of a fixed list",
    "scheduler/cli/shell/parser_words.py": "the parser says in its sentence alone what is wrong",
    "scheduler/host/acceptance.py": "whether a kernel was cancelled or deleted stands in its last status alone",
    "scheduler/service/versions/model_sync.py": "writes a text only when it is another one",
    "scheduler/store/migrations.py": "reads what older versions wrote, once",
    "scheduler/store/errors.py": "a failed connection to PostgreSQL has no code",
}


def text_named(node: ast.expr) -> str:
    """Return the name of what an expression reads, through str() and methods that keep the words."""
    match node:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
        case ast.Subscript(slice=ast.Constant(value=str(key))):
            return key
        case ast.Subscript(value=value):
            return text_named(value)
        case ast.Call(func=ast.Name(id="str"), args=[value, *_]):
            return text_named(value)
        case ast.Call(func=ast.Attribute(attr="get"), args=[ast.Constant(value=str(key)), *_]):
            return key
        case ast.Call(func=ast.Attribute(attr=method, value=value)) if method in UNCHANGING:
            return text_named(value)
    return ""


def is_sentence(node: ast.expr) -> bool:
    name = text_named(node)
    return name in SENTENCES or name.endswith("_why")


def decides(node: ast.AST) -> bool:
    """Tell whether an expression compares or searches a sentence. Whether there is one may be asked."""
    match node:
        case ast.Compare(left=left, ops=ops, comparators=others):
            sides = [left, *others]
            whether = any(isinstance(side, ast.Constant) and side.value in {"", None} for side in sides)
            compares = all(isinstance(op, ast.Eq | ast.NotEq | ast.In | ast.NotIn) for op in ops)
            return compares and not whether and any(map(is_sentence, sides))
        case ast.Call(func=ast.Attribute(attr=method, value=value)) if method in OF_TEXT:
            return is_sentence(value)
        case ast.Call(func=ast.Attribute(attr=method), args=args) if method in OF_PATTERN:
            return any(map(is_sentence, args))
        case ast.Match(subject=subject, cases=cases):
            return is_sentence(subject) and any(isinstance(case.pattern, ast.MatchValue) for case in cases)
    return False


def decisions(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if decides(node):
            yield f"{getattr(node, 'lineno', 0)}: {ast.unparse(node)[:120]}"


def test_no_code_decides_by_a_sentence(repository: Path) -> None:
    broken = {
        path.relative_to(repository).as_posix(): found
        for package in PACKAGES
        for path in sorted((repository / package).rglob("*.py"))
        if (found := list(decisions(ast.parse(path.read_text(encoding="utf-8")))))
    }
    assert {name: found for name, found in broken.items() if name not in ALLOWED} == {}
    assert set(ALLOWED) - broken.keys() - {"jobs/payload/lane/failure.py"} == set(), "an exception that nobody needs"


@pytest.mark.parametrize(
    "code",
    [
        "WAITS in limits.closures(tx).get(pool)[1] or WAITS in closure.why",
        "closure.why.startswith(UNREADABLE)",
        'event.data["why"] == "no answer"',
        'str(event.data.get("why")).lower().startswith("no")',
        'before.why.partition(":")[0]',
        "_PATTERN.search(said.message)",
        're.match("a", str(error))',
        'known_why != "x"',
        'match lane.why:\n    case "deadline":\n        pass',
    ],
)
def test_the_rule_finds_such_code(code: str) -> None:
    assert list(decisions(ast.parse(textwrap.dedent(code))))


@pytest.mark.parametrize(
    "code", ["if why: pass", 'why == ""', "error is None", "closure.cause is Cause.PERSON", 'f"{why}."', "len(why) > 3"]
)
def test_whether_there_is_a_sentence_may_be_asked(code: str) -> None:
    assert not list(decisions(ast.parse(code)))
