"""Options for reading and tagging the sources of a corpus; the defaults suit text, code and episodes."""

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Annotated, Any, ClassVar

from jobs.corpus.errors import BadParameter
from jobs.nouns.values import TABLE, BadValue, Before, Bounds, PositiveSeconds, at_most

STAGES = ("stage_1", "stage_2", "stage_3", "stage_4")
SHINGLE_WORDS = 5  # consecutive words in one run; texts are compared by their runs
VALUE = "{value}"  # in a rule's stage or domains: replaced by the value of the rule's key


def _text(value: object) -> object:
    """Return an integer as text, because rules compare the values of records as text."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _bad_rule(requirement: str, subject: str = "this rule") -> BadValue:
    return BadValue(f"{subject} must {requirement}", "docs/corpus.md has examples")


@dataclass(frozen=True, slots=True)
class CorpusRule:
    """A rule written by a person: texts that match get a `stage`, `domains`, or both.

    `path` is a pattern for a text's source (`*` any characters, also `/`; `?` one; `[ab]` one of these). `key` is a
    dotted key of a JSON record, and `equals` its value as text. Without `equals`, any text or integer matches, and
    `{value}` stands for it. A `command` returns the tags of all texts within `limit_seconds`; see
    `jobs/corpus/build/rules.py`. `domains` None sets nothing; an empty tuple sets no domains.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = TABLE

    path: Annotated[str, Bounds(min_length=1)] | None = None
    key: Annotated[str, Bounds(min_length=1)] | None = None
    equals: Annotated[str | None, Before(_text)] = None
    command: tuple[str, ...] = ()
    stage: str | None = None
    domains: tuple[str, ...] | None = None
    limit_seconds: Annotated[PositiveSeconds, at_most("7d")] = 3_600

    def __post_init__(self) -> None:
        """Raise BadValue for rules that match nothing or set nothing."""
        tags = self.stage is not None or self.domains is not None
        if self.command and (tags or self.key is not None or self.equals is not None):
            raise _bad_rule("have only a command and, if needed, a path: the command sets stage and domains itself")
        if not self.command and (not tags or (self.path is None and self.key is None)):
            raise _bad_rule("have a path or a key together with a stage or domains, or a command")
        if self.equals is not None and self.key is None:
            raise _bad_rule("have a key, because it has equals")
        if self.command and "/" in self.command[0] and not self.command[0].startswith("/"):
            raise _bad_rule("be a program's name without a folder, or its absolute path", "command")
        words = [self.stage or "", *(self.domains or ())]
        if any(VALUE in word for word in words) and (self.key is None or self.equals is not None):
            raise _bad_rule(f"have a key and no equals, because it uses {VALUE}")
        if self.stage is not None and VALUE not in self.stage and self.stage not in STAGES:
            raise _bad_rule(f"be one of {', '.join(STAGES)}", "stage")


@dataclass(frozen=True, slots=True)
class SourceWeight:
    """How often a job reads the texts whose source matches ``path``, and how many bytes of these it uses at most.

    A weight of 0.25 keeps a quarter of these texts; with a weight of 2, every job reads each of them twice.
    ``max_bytes`` counts each kept text once; None means no limit.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = TABLE

    path: Annotated[str, Bounds(min_length=1)]
    weight: Annotated[float, Bounds(ge=0, le=8)] = 1.0  # a text that is read more than 8 times is only memorised
    max_bytes: Annotated[int, Bounds(ge=0, le=1 << 50)] | None = None


def weight_of(source: str, weights: Sequence[SourceWeight]) -> SourceWeight | None:
    """Return the first weight that matches the source of a text; None if there is none."""
    return next((weight for weight in weights if fnmatchcase(source, weight.path)), None)


@dataclass(frozen=True, slots=True)
class CorpusOptions:
    """Options for reading and tagging; all of them are part of a corpus' version.

    `relevance` (0..1] and `rarity` (above 1): a text gets a domain's tag if its keywords weigh at least this share of
    all, or as much as one keyword that only one text in `rarity` has; `docs/corpus.md` has the formula.
    `document_characters`: maximum of a document from plain text; longer texts are split at a pause. `max_record_bytes`:
    maximum of a JSON record; longer ones are findings. `rules` override all other tags. The first of the `weights` that
    matches a text counts.
    """

    relevance: float = 0.5
    rarity: float = 30.0
    document_characters: int = 16_384
    max_record_bytes: int = 4 << 20
    rules: tuple[CorpusRule, ...] = ()
    weights: tuple[SourceWeight, ...] = ()

    def __post_init__(self) -> None:
        """Raise BadParameter for values that would make an empty or absurd corpus."""
        if not 0 < self.relevance <= 1:
            raise BadParameter("relevance", self.relevance, "above 0 and at most 1")
        if not self.rarity > 1:
            raise BadParameter("rarity", self.rarity, "above 1")
        for name in ("document_characters", "max_record_bytes"):
            if getattr(self, name) < 256:
                raise BadParameter(name, getattr(self, name), "at least 256")
