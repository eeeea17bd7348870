"""A secret is replaced in every usual encoding, whatever stands around it."""

from __future__ import annotations

import base64
import binascii
import html
import json
import quopri
import re
import unicodedata
from collections.abc import Callable
from urllib.parse import quote, quote_plus

from hypothesis import example, given
from hypothesis import strategies as st

from jobs.payload.redact import MARK, Redactor

Encode = Callable[[str], str]


def _json(text: str) -> str:
    return json.dumps(text)


def _twice(encode: Encode) -> Encode:
    return lambda text: encode(encode(text))


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
    "small percent, twice": lambda text: quote(quote(text, safe="").replace("%2F", "%2f"), safe=""),
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
}
_TEXT = st.text(st.characters(codec="utf-8", categories=("L", "N", "P", "S")), max_size=12)


@example(secret="p'q\\w/e\u20ac&rty<12>", before="", after="", name="UTF-16 of the other order in base64")
@given(
    secret=st.text(st.characters(codec="utf-8", categories=("L", "N", "P", "S")), min_size=10, max_size=40),
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
