"""The command line of the scorers; docs/gates.md shows how to use it."""

import argparse
import importlib
import sys
from collections.abc import Iterator, Sequence

from .chat import NoChatAnswer
from .given import NotGiven, ScorerInput, find_inputs, output_path
from .items import BadItems, ScoreLine, write_scores
from .sandbox.confine import SandboxMissing

# The names of scorers on the command line, and their modules.
SCORERS = {
    "atomicity": "atomicity", "generation": "generation", "judge": "chat", "loads": "loads", "loss": "heldout_loss",
    "samples": "samples", "tank-building": "tank_building", "tiki": "tiki",
}  # fmt: skip
EXIT_GIVEN, EXIT_DATA, EXIT_MISSING = 2, 65, 69


def main(words: Sequence[str] | None = None) -> int:
    """Score a test set, and return 0. Otherwise print the reason, write no scores, and return another exit status."""
    options = _parser().parse_args(words)
    try:
        candidate = find_inputs(options)
        try:
            lines = list(_score_all(options.scorers, candidate))
        finally:
            if candidate.sandbox is not None:
                candidate.sandbox.close()
        path = output_path(options)
        path.parent.mkdir(parents=True, exist_ok=True)
        count = write_scores(path, candidate.header(), lines)
    except (NotGiven, SandboxMissing, BadItems, NoChatAnswer, OSError) as error:
        print(f"scorers: {error}", file=sys.stderr)
        return EXIT_GIVEN if isinstance(error, NotGiven) else EXIT_DATA if isinstance(error, BadItems) else EXIT_MISSING
    metrics = sorted({line.metric for line in lines})
    for metric in metrics:
        values = [line.value for line in lines if line.metric == metric]
        print(f"{metric}: {sum(values) / len(values):.4g} over {len(values)} items")
    print(f"{count} scores in {path}")
    return 0


def _score_all(words: Sequence[str], candidate: ScorerInput) -> Iterator[ScoreLine]:
    for word in words:
        name, _, domain = word.partition(":")
        module = importlib.import_module(f".{SCORERS[name]}", __package__)
        items = [item for item in candidate.item_set.items.values() if not domain or item.domain == domain]
        if not items:
            raise NotGiven(f"the test set has no item of domain {domain!r}; compare the domains of its items")
        yield from module.score(items, candidate, f"{module.METRIC}.{domain}" if domain else module.METRIC)


def _scorer(word: str) -> str:
    if word.partition(":")[0] not in SCORERS:
        raise argparse.ArgumentTypeError(f"there is no scorer {word}; known are {', '.join(SCORERS)}")
    return word


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="scorers", description="Give every item of a test set a number, and write scores.jsonl."
    )
    add = parser.add_argument
    add("scorers", nargs="+", type=_scorer, metavar="SCORER", help=f"{', '.join(SCORERS)}; tiki:docs for one domain")
    add("--items", metavar="FILE", help="the test set (in a session: the evaluation's)")
    add("--outputs", metavar="FILE", help="outputs of the model, one {id, output} per line")
    add("--checkpoint-dir", metavar="FOLDER", help="the checkpoint's files (in a session: the evaluated checkpoint)")
    add("--base", metavar="FOLDER", help="the base of an adapter, or input:NAME as in training")
    add("--probe", metavar="PROMPT", help="with loads: write the model's answer to it, which deployments compare")
    add("--out", metavar="FILE", help="scores file (in a session: its output)")
    add("--wall-seconds", type=float, default=10.0, metavar="S", help="time limit in the sandbox (%(default)s)")
    add("--samples", metavar="PATH", help="log of lm-eval or inspect-ai: a file, or a folder of them")
    add("--ask", metavar="ADDRESS", help="server like OpenAI's to ask for outputs; its key: MODEL_API_KEY")
    add("--ask-model", metavar="NAME", help="the model of --ask")
    add("--judge", metavar="ADDRESS", help="server like OpenAI's that judges, https://host/v1; its key: JUDGE_API_KEY")
    add("--judge-model", metavar="NAME", help="the model of --judge")
    return parser
