"""A secret is replaced in every usual encoding, whatever stands around it."""

from __future__ import annotations

import base64
import binascii
import hashlib
import html
import json
import quopri
import re
import unicodedata
from collections.abc import Callable
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from jobs.payload.redact import MARK, Redactor

Encode = Callable[[str], str]


def _json(text: str) -> str:
    return json.dumps(text)


def _twice(encode: Encode) -> Encode:
    return lambda text: encode(encode(text))


def _units(text: str) -> list[int]:
    """The numbers of UTF-16, of which JSON writes a character outside the first plane as two."""
    data = text.encode("utf-16-be")
    return [int.from_bytes(data[at : at + 2]) for at in range(0, len(data), 2)]


def _wrapped(text: str, columns: int, end: str = "\n") -> str:
    return end.join(text[at : at + columns] for at in range(0, len(text), columns))


ENCODINGS: dict[str, Encode] = {
    "plain": str,
    "hex": lambda text: text.encode().hex(),
    "capital hex": lambda text: text.encode().hex().upper(),
    "base64": lambda text: base64.b64encode(text.encode()).decode(),
    "base64 for addresses": lambda text: base64.urlsafe_b64encode(text.encode()).decode(),
    "base32": lambda text: base64.b32encode(text.encode()).decode(),
    "small base32": lambda text: base64.b32encode(text.encode()).decode().lower(),
    "base32 by the order of hex": lambda text: base64.b32hexencode(text.encode()).decode(),
    "base85": lambda text: base64.b85encode(text.encode()).decode(),
    "Ascii85": lambda text: base64.a85encode(text.encode()).decode(),
    "UTF-16 in base85": lambda text: base64.b85encode(text.encode("utf-16-le")).decode(),
    "decomposed": lambda text: unicodedata.normalize("NFD", text),
    "composed, in base64": lambda text: base64.b64encode(unicodedata.normalize("NFC", text).encode()).decode(),
    "UTF-16 in base64": lambda text: base64.b64encode(text.encode("utf-16")).decode(),
    "UTF-16 of the other order in base64": lambda text: base64.b64encode(text.encode("utf-16-be")).decode(),
    "UTF-16 in hex": lambda text: text.encode("utf-16-le").hex(),
    "percent": lambda text: quote(text, safe=""),
    "form": quote_plus,
    "percent, twice": _twice(lambda text: quote(text, safe="")),
    "small percent, twice": lambda text: quote(
        re.sub("%..", lambda code: code[0].lower(), quote(text, safe="")), safe=""
    ),
    "JSON": _json,
    "JSON in JSON": _twice(_json),
    "JSON in JSON in JSON": lambda text: _json(_json(_json(text))),
    "Go's JSON": lambda text: _json(text).replace("&", r"\u0026").replace("<", r"\u003c").replace(">", r"\u003e"),
    "PHP's JSON": lambda text: _json(text).replace("/", r"\/"),
    "HTML": html.escape,
    "HTML with slashes": lambda text: html.escape(text).replace("/", "&#x2F;").replace("=", "&#x3D;"),
    "repr": repr,
    "ascii": ascii,
    "repr of bytes": lambda text: repr(text.encode()),
    "shell": lambda text: text.replace("'", r"'\''"),
    "bytes": lambda text: text.encode().hex(" "),
    "fingerprint": lambda text: text.encode().hex(":").upper(),
    "escapes": lambda text: "".join(f"\\x{byte:02x}" for byte in text.encode()),
    "percent everywhere": lambda text: "".join(f"%{byte:02X}" for byte in text.encode()),
    "percent, three times": lambda text: quote(quote(quote(text, safe=""), safe=""), safe=""),
    "base64, twice": lambda text: base64.b64encode(base64.b64encode(text.encode())).decode(),
    "quoted-printable": lambda text: quopri.encodestring(text.encode()).decode().replace("=\n", ""),
    "base64 by lines": lambda text: binascii.b2a_base64(text.encode()).decode(),
    "hex with commas": lambda text: text.encode().hex(","),
    "capital hex with dashes": lambda text: text.encode().hex("-").upper(),
    "hex of a list": lambda text: ", ".join(f"{byte:02x}" for byte in text.encode()),
    "C's bytes": lambda text: ", ".join(f"0x{byte:02x}" for byte in text.encode()),
    "list of bytes": lambda text: str(list(text.encode())),
    "list of bytes in JSON": lambda text: json.dumps(list(text.encode()), separators=(",", ":")),
    "Go's bytes": lambda text: f"[{' '.join(map(str, text.encode()))}]",
    "octal": lambda text: "".join(f"\\{byte:03o}" for byte in text.encode()),
    "od -An -b": lambda text: " ".join(f"{byte:03o}" for byte in text.encode()),
    "octal beyond ASCII": lambda text: "".join(chr(b) if b < 128 else f"\\{b:03o}" for b in text.encode()),
    "JSON, everything escaped": lambda text: "".join(f"\\u{unit:04x}" for unit in _units(text)),
    "the same in capitals": lambda text: "".join(f"\\u{unit:04X}" for unit in _units(text)),
    "HTML by numbers": lambda text: "".join(f"&#{ord(character)};" for character in text),
    "HTML by hex numbers": lambda text: "".join(f"&#x{ord(character):x};" for character in text),
    "printf %q": lambda text: re.sub(r"([^\w@%+=:,./-])", r"\\\1", text),
    "base64 at 76 columns": lambda text: _wrapped(base64.b64encode(text.encode()).decode(), 76),
    "base64 at 64 columns, indented": lambda text: _wrapped(base64.b64encode(text.encode()).decode(), 64, "\r\n  "),
    "xxd -p": lambda text: _wrapped(text.encode().hex(), 60),
    "od -An -tx1": lambda text: _wrapped("".join(f" {byte:02x}" for byte in text.encode()), 48),
    "list of bytes, one a line": lambda text: json.dumps(list(text.encode()), indent=0),
}
_TEXT = st.text(st.characters(codec="utf-8", categories=("L", "N", "P", "S")), max_size=12)


@example(secret="p'q\\w/e\u20ac&rty<12>", before="", after="", name="UTF-16 of the other order in base64")
@given(
    secret=st.text(st.characters(codec="utf-8", categories=("L", "N", "P", "S")), min_size=10, max_size=90),
    before=_TEXT,
    after=_TEXT,
    name=st.sampled_from(sorted(ENCODINGS)),
)
def test_an_encoded_secret_is_replaced(secret: str, before: str, after: str, name: str) -> None:
    encode = ENCODINGS[name]
    text = encode(f"{before}{secret}{after}")
    redacted = Redactor([secret])(text)
    assert MARK in redacted
    alone = encode(secret).strip("\"'=\n")
    assert alone not in redacted


@pytest.mark.parametrize("columns", [60, 64, 72, 76])
@pytest.mark.parametrize(
    "encode", [base64.b64encode, base64.b16encode, base64.b32encode], ids=lambda each: each.__name__
)
def test_each_line_of_a_wrapped_secret_is_replaced_though_the_others_are_not_there(
    encode: Callable[[bytes], bytes], columns: int
) -> None:
    secret = "".join(hashlib.sha256(bytes([each])).hexdigest() for each in range(4))
    lines = _wrapped(encode(secret.encode()).decode(), columns).splitlines()
    assert len(lines) > 4
    assert set(Redactor([secret]).each(lines[:-1])) == {MARK}
    assert Redactor([secret])("\n".join(lines)).startswith(MARK)


def test_a_secret_of_line_breaks_hides_nothing_and_fails_nothing() -> None:
    assert Redactor(["a\n\n\n\n\n\n\nb"])("a b\n\n") == "a b\n\n"


@given(
    secret=st.text(st.characters(codec="utf-8", categories=("L", "N", "P", "S")), min_size=10, max_size=40),
    plain=st.from_regex(r"[a-z]{6,9}", fullmatch=True),
    beside=st.sampled_from(" ~é"),
)
def test_a_secret_in_utf_7_is_replaced(secret: str, plain: str, beside: str) -> None:
    """As a word for itself; and what of it are plain letters, beside others that are none."""
    assert Redactor([secret])(f"x {secret.encode('utf-7').decode()} y") == f"x {MARK} y"
    assert plain not in Redactor([f"~{plain}~"])(f"{beside}~{plain}~{beside}".encode("utf-7").decode())


@given(
    secrets=st.lists(st.text("ab1-", min_size=6, max_size=60), min_size=1, max_size=4),
    beside=st.lists(st.text("ab1- ", max_size=70), min_size=5, max_size=5),
)
def test_all_places_of_all_secrets_are_found_whatever_their_lengths(secrets: list[str], beside: list[str]) -> None:
    """As by a search for each word at each place, though only some places are looked at."""
    text = beside[0] + "".join(f"{secret}{around}" for secret, around in zip(secrets, beside[1:], strict=False))
    redactor = Redactor(secrets)
    every_form = sorted(
        {word for secret in secrets for word in Redactor([secret])._words}, key=lambda word: (-len(word), word)
    )
    assert redactor.whole(text) == re.sub("|".join(map(re.escape, every_form)), MARK, text)
    assert redactor.each([text, "", text]) == [redactor(text), "", redactor(text)]
