"""Counts of the records of training data: learned, or left out for a reason, with the place of the first one."""

from collections import Counter
from typing import Any

from ..errors import UnreadableData

_REASONS_MAX = 20  # further reasons are counted together
MORE = "another reason"
_EXAMPLES = 5
SKIP_AT_MOST = 1.0  # percent of the records


class Tally:
    """Counts the records of one reading."""

    def __init__(self) -> None:
        self.forms: Counter[str] = Counter()
        self.left_out: dict[str, list[Any]] = {}  # by reason: count and first place
        self.tokens = 0  # of stages whose rows are counted while they are read
        self.cut = 0  # documents longer than a row
        self.lost: list[str] = []  # places after which the rest of a file, of unknown size, is not read
        self.newer = 0  # the oldest row format that reads all of this data in the same way

    def take(self, form: str) -> None:
        """Count a record that is learned."""
        self.forms[form] += 1

    def leave(self, place: str, cause: str, form: str | None = None) -> None:
        """Count a record that is left out; with ``form`` it was counted as learned before."""
        if form is not None:
            self.forms[form] -= 1
        if cause not in self.left_out and len(self.left_out) >= _REASONS_MAX:
            cause = MORE  # reasons that quote a value could otherwise become many
        self.left_out.setdefault(cause, [0, place])[0] += 1

    def lose(self, place: str, cause: str) -> None:
        """Count the rest of a file from ``place`` on as one record left out: its number of records is unknown."""
        self.leave(place, cause)
        self.lost.append(place)

    def since(self, version: int, *, changed: object) -> None:
        """If ``changed``, record that row formats before ``version`` read a part of this data in another way."""
        self.newer = max(self.newer, version * bool(changed))

    def facts(self) -> dict[str, Any]:
        """Return the counts for JSON."""
        forms = {form: count for form, count in sorted(self.forms.items()) if count}
        left = [[why, count, place] for why, (count, place) in self.left_out.items()]
        facts = {"records": forms, "left_out": left, "cut": self.cut, "newer": self.newer}
        return {**facts, "lost": self.lost} if self.lost else facts


def left_out(facts: dict[str, Any]) -> str:
    """Return how many records are left out, by reason, as text; "" if none."""
    left = sorted(facts["left_out"], key=lambda part: -part[1])
    reasons = [f"{count:,}: {why} (first: {place})" for why, count, place in left[:_EXAMPLES]]
    return "; ".join(reasons + ["..."] * (len(left) > _EXAMPLES))


def check(facts: dict[str, Any], skip_at_most: float, where: str) -> None:
    """Raise UnreadableData if more than ``skip_at_most`` percent of the records, or an unknown number, are left out."""
    dropped = sum(count for _, count, _ in facts["left_out"])
    total = dropped + sum(facts["records"].values())
    if facts.get("lost") and skip_at_most < 100:
        places = ", ".join(facts["lost"][:_EXAMPLES])
        raise UnreadableData(
            f"{where} cannot be read whole: an unknown number of records follows {places}. {left_out(facts)}. Copy or "
            "create the file again, or train without the rest: --skip-at-most 100"
        )
    if total and 100 * dropped > skip_at_most * total:
        share = 100 * dropped / total
        raise UnreadableData(
            f"{dropped:,} of {total:,} records of {where} would be left out ({share:.3g} %; --skip-at-most is "
            f"{skip_at_most:g} %). {left_out(facts)}. Repair or remove them, or allow it: "
            f"--skip-at-most {min(100, -(-share // 1)):g}"
        )


def training_data(facts: dict[str, Any], size: tuple[int, int], places: int) -> dict[str, Any]:
    """Return a session's report of its data. ``size``: rows, tokens; ``places``: tokens with padding (0: unknown)."""
    most = sorted(facts["left_out"], key=lambda part: -part[1])
    reasons = [list(part) for part in most[:_EXAMPLES]]
    if rest := most[_EXAMPLES:]:
        reasons.append([MORE, sum(count for _, count, _ in rest), rest[0][2]])
    rows, tokens = size
    padding = round(1 - tokens / places, 4) if places else None
    summary = {"records": facts["records"], "left_out": reasons, "cut": facts["cut"]}
    return {**summary, "rows": rows, "tokens": tokens, "padding": padding}


def facts_told(data: dict[str, Any]) -> str:
    """Return the report as text: records by form, records left out, tokens and padding."""
    forms = ", ".join(f"{count:,} of {form}" for form, count in data["records"].items()) or "none"
    padding = "" if data["padding"] is None else f", {100 * data['padding']:.0f} % of it padding"
    cut = f", {data['cut']:,} longer than a row and cut" if data["cut"] else ""
    left = f"; left out: {why}" if (why := left_out(data)) else "; none left out"
    return f"records: {forms}{cut}{left}; {data['tokens']:,} tokens in {data['rows']:,} rows{padding}"


def shortened(text: str, most: int) -> str:
    """Return a text with its middle left out if it has more than ``most`` characters."""
    half = most // 2
    return text if len(text) <= most else f"{text[:half]} [...] {text[-half:]}"
