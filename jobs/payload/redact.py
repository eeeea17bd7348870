"""Redact: text is cleaned of the values of secrets, however they were encoded or cut."""

from __future__ import annotations

import base64
import html
import json
import quopri
import re
import string
from collections.abc import Callable, Iterable, Iterator
from urllib.parse import quote, quote_plus

Redact = Callable[[str], str]
MARK = "[secret]"
# Shorter values are words: hiding them would blacken every line and protect nothing.
LENGTH_MIN = 6

_GO = {ord(sign): f"\\u{ord(sign):04x}" for sign in "<>&"}

# What shortens a text may put these before or behind it.
_BESIDE_A_CUT = string.whitespace + "\"'.…()[]{}="


class Redactor:
    """Replaces secrets in text, also where they were encoded for a URL, a page, a mail or JSON, in hex or in base64.

    A text that was cut before it came here may end in the beginning of a secret, or begin with the end of one, which
    is replaced as well.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self.know(secrets)

    def know(self, secrets: Iterable[str]) -> None:
        """Replace these, and no others, from now on."""
        found = {part for secret in secrets for part in (secret, *secret.splitlines())}
        forms = {form for secret in found if len(secret) >= LENGTH_MIN for form in _forms(secret)}
        # Longest first, so that no secret survives inside a longer one.
        self._words = sorted(forms, key=lambda form: (-len(form), form))
        self._pattern = re.compile("|".join(map(re.escape, self._words))) if self._words else None
        self._begins = [*{word[:LENGTH_MIN] for word in self._words}]
        self._ends = [*{word[-LENGTH_MIN:] for word in self._words}]

    @property
    def longest(self) -> int:
        """How many characters the longest form of a secret has; zero: none is known."""
        return len(self._words[0]) if self._words else 0

    def whole(self, text: str) -> str:
        """Return ``text`` with every secret replaced that stands in it from its beginning to its end."""
        # Looking for each word is many times as fast as asking the pattern at every character.
        if self._pattern is not None and self._has_begin(text) and any(word in text for word in self._words):
            return self._pattern.sub(MARK, text)
        return text

    def _has_begin(self, text: str) -> bool:
        return any(begin in text for begin in self._begins)

    def __call__(self, text: str) -> str:
        """Return ``text`` with every secret replaced by ``[secret]``."""
        return self._without_halves(self.whole(text)) if self._words else text

    def _without_halves(self, text: str) -> str:
        if not self._has_begin(text) and not any(end in text for end in self._ends):
            return text
        end = len(text.rstrip(_BESIDE_A_CUT))
        first = min((found for word in self._words if (found := _begun(word, text, end)) is not None), default=None)
        if first is not None and not text.endswith(MARK):
            text = f"{text[:first]}{MARK}{text[end:]}"
        begin = len(text) - len(text.lstrip(_BESIDE_A_CUT))
        last = max((found for word in self._words if (found := _over(word, text, begin)) is not None), default=None)
        return text if last is None or text.startswith(MARK) else f"{text[:begin]}{MARK}{text[last:]}"


def _begun(word: str, text: str, end: int) -> int | None:
    """Return where the beginning of ``word`` stands that ``text`` was cut in, None where it was not."""
    found = text.find(word[:LENGTH_MIN], max(0, end - len(word) + 1), end)
    while found >= 0:
        if word.startswith(text[found:end]):
            return found
        found = text.find(word[:LENGTH_MIN], found + 1, end)
    return None


def _over(word: str, text: str, begin: int) -> int | None:
    """Return where the end of ``word`` stands that ``text`` was cut in, None where it was not."""
    end = word[-LENGTH_MIN:]
    found = text.find(end, begin, begin + len(word) - 1)
    while found >= 0:
        if word.endswith(text[begin : found + LENGTH_MIN]):
            return found + LENGTH_MIN
        found = text.find(end, found + 1, begin + len(word) - 1)
    return None


def _forms(secret: str) -> Iterator[str]:
    yield secret
    raw = secret.encode("utf-8", "surrogateescape")
    for form in (quote(secret, safe=""), quote(secret), quote_plus(secret)):
        for encoded in (form, re.sub("%[0-9A-F]{2}", lambda found: found[0].lower(), form)):
            yield encoded
            yield quote(encoded, safe="")
            yield quote(quote(encoded, safe=""), safe="")
    for ensure_ascii in (True, False):
        inner = secret
        for _ in range(3):  # JSON in JSON in JSON, also as Go and PHP write it
            inner = json.dumps(inner, ensure_ascii=ensure_ascii)[1:-1]
            yield from (inner, inner.translate(_GO), inner.replace("/", r"\/"))
    yield from (repr(secret)[1:-1], ascii(secret)[1:-1], repr(raw)[2:-1])
    yield from (secret.replace("'", quoted) for quoted in ("'\"'\"'", r"'\''"))  # of a shell
    escaped = html.escape(secret)
    for page in (escaped, escaped.replace("&quot;", "&#34;").replace("&#x27;", "&#39;")):
        yield from (page, page.replace("/", "&#x2F;").replace("=", "&#x3D;"), page.replace("+", "&#43;"))
        yield page.encode("ascii", "xmlcharrefreplace").decode()
    yield from (quopri.encodestring(raw, quotetabs=tabs).decode().replace("=\n", "") for tabs in (False, True))
    yield from _inside(base64.b64encode(raw), base64.b64encode, 6)
    # Without the zero bytes at its ends, UTF-16 of ASCII is the same in both orders.
    wide = (secret.encode(f"utf-16-{order}", "surrogatepass").strip(b"\0") for order in ("le", "be"))
    for data in {raw, *wide}:
        pairs = data.hex(" ")
        for separator in ("", " ", ":", "%", "\\x"):
            yield from (pairs.replace(" ", separator), pairs.upper().replace(" ", separator))
        for form in (*_inside(data, base64.b64encode, 6), *_inside(data, base64.b32encode, 5)):
            yield form
            yield form.lower() if form.isupper() else form.replace("+", "-").replace("/", "_")


def _inside(data: bytes, encode: Callable[[bytes], bytes], bits: int) -> Iterator[str]:
    """Return how ``data`` looks inside a longer text of ``bits`` a character, for each place that it may begin at.

    Characters that also depend on its neighbours are left out.
    """
    for before in range(3 if bits == 6 else 5):
        encoded = encode(b"\0" * before + data).decode()
        form = encoded[-(-before * 8 // bits) : (before + len(data)) * 8 // bits]
        if len(form) >= LENGTH_MIN:
            yield form
