"""Code generation: the share of a task's samples that pass all hidden tests (pass@1), in the sandbox."""

from collections.abc import Iterator, Sequence

from .given import NotGiven, ScorerInput
from .items import Item, ScoreLine, code_in

METRIC = "pass@1"


def score(items: Sequence[Item], candidate: ScorerInput, metric: str) -> Iterator[ScoreLine]:
    """Score each item by its ``tests`` of the function ``entry``; ``prefix`` is put before the model's code."""
    from .sandbox.hidden_tests import run_hidden_tests

    sandbox = candidate.needs_sandbox()
    for item in items:
        tests, entry = item.task.get("tests"), item.task.get("entry", "")
        if not isinstance(tests, str) or not isinstance(entry, str):
            raise NotGiven(f"item {item.id} has no tests; each item needs the source of its hidden tests")
        prefix = str(item.task.get("prefix", ""))
        samples = candidate.texts(item.id)
        passed, why = 0, ""
        for text in samples:
            try:
                exam = run_hidden_tests(sandbox, prefix + code_in(text), tests, entry)
            except ValueError as error:
                raise NotGiven(f"item {item.id}: {error}") from None
            passed += exam.green
            why = why or exam.why
        yield ScoreLine(item.id, item.cluster, metric, passed / len(samples), why)
