"""How sources are read, for those who must know; the defaults suit text, code and episodes."""

from __future__ import annotations

from dataclasses import dataclass

from jobs.corpus.errors import BadParameter


@dataclass(frozen=True, slots=True)
class Options:
    """Reading rules; all of them are part of a corpus' version.

    `relevance`: a text gets a domain's tag when it holds at least this share (0..1] of its keywords.
    `document_characters`: longest document made from plain text; longer texts are cut at a pause.
    `max_record_bytes`: longest JSON record read; longer ones are findings.
    """

    relevance: float = 0.3
    document_characters: int = 16_384
    max_record_bytes: int = 4 << 20

    def __post_init__(self) -> None:
        """Refuse values that would make an empty or absurd corpus."""
        if not 0 < self.relevance <= 1:
            raise BadParameter("relevance", self.relevance, "above 0 and at most 1")
        for name in ("document_characters", "max_record_bytes"):
            if getattr(self, name) < 256:
                raise BadParameter(name, getattr(self, name), "at least 256")
