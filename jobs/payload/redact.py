"""Redaction: replace secrets in text, in their common encodings, and also where a text was cut inside a secret."""

import base64
import html
import json
import quopri
import re
import string
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from urllib.parse import quote, quote_plus

Redact = Callable[[str], str]
MARK = "[secret]"
# Shorter values are ordinary words: replacing them would change every line and protect nothing.
LENGTH_MIN = 6
_STRIDES = (27, 9, 3, 1)  # distances of examined positions: longer secrets need fewer positions

# How tools print bytes and characters as numbers: (format of a number, separator of numbers).
_HEX = [(form, between) for form in ("%02x", "%02X") for between in ("", " ", ":", "-", ",", ", ")]
_HEX += [("%%%02x", ""), ("%%%02X", ""), ("\\x%02x", ""), ("\\x%02X", "")]
_BYTES = [("0x%02x", ", "), ("0x%02X", ", "), ("0x%02x", ","), ("0x%02x", " "), ("\\%03o", ""), ("%03o", " ")]
_BYTES += [("%d", ", "), ("%d", ","), ("%d", " ")]
_CHARACTERS = [("\\u%04x", ""), ("\\u%04X", ""), ("&#%d;", ""), ("&#x%x;", ""), ("&#x%X;", "")]

_GO_ESCAPES = {ord(sign): f"\\u{ord(sign):04x}" for sign in "<>&"}

# Programs that shorten a text put these before or after it.
_BESIDE_A_CUT = string.whitespace + "\"'.…()[]{}="
_LINE_MIN = 57  # encoders that wrap a long text make lines longer than this
_BREAK = r"(?:\r?\n[ \t]*)?"


class Redactor:
    """Replaces secrets in text, also encoded for URLs, HTML, mail or JSON, in hex or in base64.

    Line breaks inside a secret do not hide it. If a text was cut, these are replaced too: the start of a secret at the
    end of the text, the end of a secret at its start, and a line from the middle of a secret.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self.know(secrets)

    def know(self, secrets: Iterable[str]) -> None:
        """Set the secrets to replace."""
        parts = {part for secret in secrets for part in (secret, *secret.splitlines())}
        # An accented character is one code point or two, depending on the system that wrote it.
        spelled = {unicodedata.normalize(nf, part) for part in parts for nf in ("NFC", "NFD", "NFKC", "NFKD")} | parts
        forms = {form for secret in spelled if len(secret) >= LENGTH_MIN for form in _forms(secret)}
        forms = {form for form in forms if len(_in_one_line(form)) >= LENGTH_MIN}
        # Longest first, so that no secret survives inside a longer one.
        self._words = sorted(forms, key=lambda form: (-len(form), form))
        self._backwards = [word[::-1] for word in self._words]
        self._begins = {word[:LENGTH_MIN] for word in self._words}
        self._ends = {word[:LENGTH_MIN] for word in self._backwards}
        self._inner: dict[int, set[str]] = {}  # pieces by stride; a text with the word has a piece at a multiple of it
        for word in map(_in_one_line, self._words):
            stride = next(each for each in _STRIDES if len(word) >= each + LENGTH_MIN - 1)
            self._inner.setdefault(stride, set()).update(_pieces(word[: stride + LENGTH_MIN - 1]))

    @property
    def longest(self) -> int:
        """The length of the longest form of a secret; zero if there are no secrets."""
        return len(self._words[0]) if self._words else 0

    def whole(self, text: str) -> str:
        """Return ``text`` with every complete secret replaced; parts of secrets at its ends stay."""
        # A search for pieces of all words at once is many times faster than one search per word or for the pattern.
        line = _in_one_line(text)
        if all(pieces.isdisjoint(_pieces(line, stride)) for stride, pieces in self._inner.items()):
            return text
        dense = "".join(line.split())
        words = [_BREAK.join(map(re.escape, word)) for word in self._words if "".join(word.split()) in dense]
        return re.sub("|".join(words), MARK, text) if words else text

    def __call__(self, text: str) -> str:
        """Return ``text`` with every secret, also one that was cut, replaced by ``[secret]``."""
        return self.each((text,))[0]

    def each(self, texts: Iterable[str]) -> list[str]:
        """Return the texts, each with every secret replaced; much faster than one call per text."""
        if not self._words:
            return list(texts)
        texts = list(texts)
        clean = {text: self._without_parts(self.whole(text)) for text in set(texts)}
        return [clean[text] for text in texts]

    def _without_parts(self, text: str) -> str:
        text = self._without_begun(text, self._words, self._begins, MARK)
        text = self._without_begun(text[::-1], self._backwards, self._ends, MARK[::-1])[::-1]
        line = text.strip()
        is_wrapped = _LINE_MIN <= len(line) <= self.longest and " " not in line
        return text.replace(line, MARK) if is_wrapped and any(line in word for word in self._words) else text

    def _without_begun(self, text: str, words: Sequence[str], begins: set[str], mark: str) -> str:
        end = len(text.rstrip(_BESIDE_A_CUT))
        if text.endswith(mark) or begins.isdisjoint(_pieces(text[max(0, end - self.longest) : end])):
            return text
        first = min((at for word in words if (at := _begun(word, text, end)) is not None), default=None)
        return text if first is None else f"{text[:first]}{mark}{text[end:]}"


def _in_one_line(text: str) -> str:
    return text.replace("\n", "").replace("\r", "")


def _pieces(text: str, stride: int = 1) -> Iterator[str]:
    return (text[at : at + LENGTH_MIN] for at in range(0, len(text) - LENGTH_MIN + 1, stride))


def _begun(word: str, text: str, end: int) -> int | None:
    """Return where the start of ``word`` begins that ends at ``end`` in ``text``; None if there is none."""
    at = text.find(word[:LENGTH_MIN], max(0, end - len(word) + 1), end)
    while at >= 0:
        if word.startswith(text[at:end]):
            return at
        at = text.find(word[:LENGTH_MIN], at + 1, end)
    return None


def _forms(secret: str) -> Iterator[str]:
    yield secret
    # UTF-7 encodes special characters together with special characters beside them, so its ends may differ.
    seven = secret.encode("utf-7", "replace").decode()
    yield from (seven, re.sub(r"^\+[\w/+]*-?|\+[\w/+]*-?$", "", seven))
    raw = secret.encode("utf-8", "surrogateescape")
    for form in (quote(secret, safe=""), quote(secret), quote_plus(secret)):
        for encoded in (form, re.sub("%[0-9A-F]{2}", lambda match: match[0].lower(), form)):
            yield encoded
            yield quote(encoded, safe="")
            yield quote(quote(encoded, safe=""), safe="")
    for ensure_ascii in (True, False):
        inner = secret
        for _ in range(3):  # JSON in JSON in JSON, also as Go and PHP write it
            inner = json.dumps(inner, ensure_ascii=ensure_ascii)[1:-1]
            yield from (inner, inner.translate(_GO_ESCAPES), inner.replace("/", r"\/"))
    yield from (repr(secret)[1:-1], ascii(secret)[1:-1], repr(raw)[2:-1])
    both = f"'\"{secret}"  # with both quotation marks in it, Python escapes one of them
    yield from (repr(both)[4:-1], ascii(both)[4:-1], repr(b"'\"" + raw)[5:-1])
    yield from (secret.replace("'", quoted) for quoted in ("'\"'\"'", r"'\''"))  # as a shell quotes it
    yield re.sub(r"([^\w@%+=:,./-])", r"\\\1", secret)  # as printf %q in Bash
    yield "".join(chr(byte) if byte < 128 else f"\\{byte:03o}" for byte in raw)  # as git and Bash
    escaped = html.escape(secret)
    for page in (escaped, escaped.replace("&quot;", "&#34;").replace("&#x27;", "&#39;")):
        yield from (page, page.replace("/", "&#x2F;").replace("=", "&#x3D;"), page.replace("+", "&#43;"))
        yield page.encode("ascii", "xmlcharrefreplace").decode()
    yield from (quopri.encodestring(raw, quotetabs=tabs).decode().replace("=\n", "") for tabs in (False, True))
    for once in {base64.b64encode(raw), *(form.encode() for form in _inside(raw, base64.b64encode))}:
        yield from _inside(once, base64.b64encode)
    yield from (_numbered(raw, *each) for each in _BYTES)
    units = secret.encode("utf-16-be", "surrogatepass")
    for codes in (list(map(ord, secret)), [high << 8 | low for high, low in zip(units[::2], units[1::2], strict=True)]):
        yield from (_numbered(codes, *each) for each in _CHARACTERS)
    # Without the zero bytes at its ends, UTF-16 of ASCII text is the same in both byte orders.
    wide = (secret.encode(f"utf-16-{order}", "surrogatepass").strip(b"\0") for order in ("le", "be"))
    for data in {raw, *wide}:
        yield from (_numbered(data, *each) for each in _HEX)
        for encode in (base64.b64encode, base64.b32encode, base64.b32hexencode, base64.b85encode, base64.a85encode):
            for form in _inside(data, encode):
                yield form
                yield form.lower() if form.isupper() else form.replace("+", "-").replace("/", "_")


def _numbered(codes: Sequence[int], form: str, between: str) -> str:
    return between.join([form] * len(codes)) % tuple(codes)


def _inside(data: bytes, encode: Callable[[bytes], bytes]) -> Iterator[str]:
    """Yield the encodings of ``data`` at each offset in a block, without characters that depend on bytes beside it."""
    for before in range(5):  # the largest block of an encoding, in bytes
        texts = (encode(other * before + data + other * 9) for other in (b"\0", b"\1", b"\xff"))
        alike = "".join(chr(each[0]) if len(set(each)) == 1 else " " for each in zip(*texts, strict=False))
        yield max(alike.split(" "), key=len)
