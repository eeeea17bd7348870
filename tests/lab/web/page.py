"""A page as a test reads it: its tags, its text, and whether it is whole."""

from __future__ import annotations

from html.parser import HTMLParser

VOID = {"meta", "link", "input", "img", "br", "hr"}


class Page(HTMLParser):
    """What a page holds: tags with their attributes, text, and whether every tag was closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.open: list[str] = []
        self.problems: list[str] = []
        self.feed(text)
        self.close()
        self.problems += [f"<{tag}> is not closed" for tag in self.open]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note a tag."""
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note a tag that closes itself."""
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        """Compare an end with what is open."""
        if not self.open or self.open.pop() != tag:
            self.problems.append(f"</{tag}> closes another")

    def handle_data(self, data: str) -> None:
        """Note text."""
        self.words.append(data)

    def all(self, name: str) -> list[dict[str, str | None]]:
        """Return the attributes of every tag of a name."""
        return [attributes for tag, attributes in self.tags if tag == name]

    @property
    def text(self) -> str:
        """The text of the page, spaces folded."""
        return " ".join(" ".join(self.words).split())
