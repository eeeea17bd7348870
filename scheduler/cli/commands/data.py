"""`schedctl data`: show what a training will read of its data, before the training is submitted."""

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

from jobs.payload.trainers.tuning.data.documents import load_tokenizer, stop_tokens
from jobs.payload.trainers.tuning.data.preview import preview
from jobs.payload.trainers.tuning.data.reader import files, unread
from jobs.payload.trainers.tuning.data.tally import SKIP_AT_MOST, check
from jobs.payload.trainers.tuning.errors import TrainingRefused, UnreadableData
from jobs.problem import InvalidInput
from jobs.size import counted
from scheduler.cli.shell.command import argument, command, option
from scheduler.cli.shell.context import Cli


@command("schedctl data check texts", "schedctl data check texts/train-0.jsonl --length 2048")
def check_data(
    cli: Cli,
    path: Annotated[Path, argument("PATH", "The folder of --data, or one file of records.")],
    length: Annotated[int | None, option("--length N", "Tokens of a row: count the records it cuts.", min=1)] = None,
    model: Annotated[Path | None, option("--tokenizer FOLDER", "Count in its tokens (needs transformers).")] = None,
    skip_at_most: Annotated[float, option("--skip-at-most PERCENT", "As of the trainer.", min=0)] = SKIP_AT_MOST,
) -> None:
    """Show what a training reads of its data: records, what is left out, lengths, copies, examples.

    Files are read as the trainer reads them. Exits with 3 if a session would refuse the data. Without --tokenizer, a
    token counts as 4 characters, and checks of the tokenizer and its chat template are not made.
    """
    if not path.exists():
        raise InvalidInput(f"{path} cannot be checked", "there is no such file or folder", "Name the folder of --data")
    paths = files(path, "train-*") if path.is_dir() else [path]
    try:
        tokenizer, stops = _tokenizer(model)
        report, facts = preview(paths, tokenizer, stops, length)
        beside = unread(path, paths) if path.is_dir() else []
        facts["left_out"] += beside
        report["left_out"] += [{"why": why, "records": count, "places": [place]} for why, count, place in beside]
        report["files"] = [str(one) for one in paths]
        cli.out.data(report)
        _show(cli, report, length)
        if path not in files(path.parent, "train-*") and path.is_file():
            cli.out.warn(f"a training does not read {path.name} under this name: docs/fine-tuning.md has the names")
        check(facts, skip_at_most, str(path))
    except (TrainingRefused, UnreadableData) as error:
        raise InvalidInput(str(error)) from None
    if not sum(report["records"].values()):
        raise InvalidInput(f"{path} has nothing to learn", "it has no records", "docs/fine-tuning.md shows the files")


def _tokenizer(model: Path | None) -> tuple[Any, Any]:
    """Return the tokenizer in a folder and the tokens at which its model stops, or None. Raises InvalidInput."""
    if model is None:
        return None, None
    if find_spec("transformers") is None:
        raise InvalidInput("--tokenizer cannot be used", "transformers is not installed", "pip install transformers")
    tokenizer = load_tokenizer(str(model))
    return tokenizer, stop_tokens(str(model), tokenizer) if (model / "config.json").is_file() else None


def _show(cli: Cli, report: dict[str, Any], length: int | None) -> None:
    """Write the report as text; ``length`` is the length of a row in tokens, or None."""
    forms, unit, sizes = report["records"], report["unit"], report["sizes"]
    left_out = sum(one["records"] for one in report["left_out"])
    total = sum(forms.values()) + left_out
    longer = "" if length is None else f"{report['longer']:,} have more than {length:,} tokens"
    if longer and unit == "characters":
        longer += ", at 4 characters a token"
    cli.out.facts(
        ("files", str(len(report["files"]))),
        ("records", ", ".join(f"{count:,} of {form}" for form, count in forms.items())),
        ("left out", f"{left_out:,} of {counted(total, 'record')} ({100 * left_out / max(1, total):.3g} %)"),
        (unit, "median {median:,}, 90 % up to {p90:,}, largest {largest:,}".format(**sizes) if sizes else ""),
        ("cut", longer),
        ("exact copies", f"{report['copies']:,}"),
    )
    for one in report["left_out"]:
        cli.out.line(f"{one['records']:,} left out: {one['why']} (first: {', '.join(one['places'])})")
    for number, text in enumerate(report["samples"], 1):
        cli.out.line(f"record {number}, what is learned in white brackets:")
        for line in text.splitlines():
            cli.out.line(f"  {line}")
    if report["images"]:
        cli.out.say(f"{counted(report['images'], 'record')} with images: models that see no images leave them out.")
    if "preference" in forms:
        cli.out.say("Preferences are learned by --stage dpo or kto alone; shown is the chosen answer.")
