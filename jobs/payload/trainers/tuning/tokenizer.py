"""A model's tokenizer, proven to give back what it was given.

transformers 5.10 to 5.20 rebuild tokenizers of the class Llama with that model's own treatment of white space, and drop
all of it where the folder's tokenizer.json treats it as DeepSeek-Coder's does. Nothing fails then, and a model is
trained on text without spaces or line ends. So text is encoded and decoded before anything is trained.
"""

from __future__ import annotations

import functools
import hashlib
import json
import sys
import unicodedata
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .errors import TrainingRefused, UnreadableData

# Indents, tabs, several line ends, words of two scripts and an emoji: what code is made of.
PROBES = (
    "def f(x):\n    return x + 1\n",
    "\tif a  ==  b:\n\n\n\t\tpass  # two  spaces\n",
    "  leading, trailing  ",
    "äöü ß 漢字 \U0001f600 → x_1 <- {y: [1.5, 'a\"b']}",
)

_WHY_MAX = 300
# The day that Llama 3.1's template has where no date is given, as the macro of a template.
_DAY = {"%d": "26", "%-d": "26", "%m": "07", "%b": "Jul", "%B": "July", "%y": "24", "%Y": "2024", "%A": "Friday"}
_DAY |= {"%H": "12", "%M": "00", "%S": "00"}
_REPLACED = "".join(f".replace('{name}', '{value}')" for name, value in _DAY.items())
_ONE_DAY = f"{{%- macro strftime_now(format) -%}}{{{{ format{_REPLACED} }}}}{{%- endmacro -%}}"


def load_tokenizer(source: str) -> Any:
    """Return the tokenizer of a folder or a name, as transformers loads it, or else as its own file says.

    Raises TrainingRefused when neither gives back what it was given, or there is none.
    """
    from transformers import AutoTokenizer, PreTrainedTokenizerFast, __version__

    try:
        tokenizer = AutoTokenizer.from_pretrained(source)
    except (OSError, ValueError) as error:  # no such name, no way to the Hub, or a folder without one
        why = " ".join(str(error).split())[:_WHY_MAX]
        raise TrainingRefused(
            f"{source} has no tokenizer that can be loaded: {why} Name a folder with tokenizer.json beside the model, "
            "such as an input of the job"
        ) from None
    lost = first_lost(tokenizer, PROBES)
    if lost is None:
        return _with_one_day(tokenizer)
    if (Path(source) / "tokenizer.json").is_file():
        # The tokenizers library reads the file as it is, whatever class the configuration names.
        again = PreTrainedTokenizerFast.from_pretrained(source, **_specials(source))
        if first_lost(again, PROBES) is None:
            print(
                f"finetune: transformers {__version__} loads this tokenizer wrongly (it turned {lost[0]!r} into "
                f"{lost[1]!r}); its tokenizer.json is used as it stands",
                file=sys.stderr,
            )
            return _with_one_day(again)
    raise TrainingRefused(
        f"the tokenizer of {source} under transformers {__version__} turns {lost[0]!r} into {lost[1]!r}: a model "
        "trained on that is lost. Use transformers 4.57, or 5.22 or later (requirements of the job), or another "
        "tokenizer"
    )


def _with_one_day(tokenizer: Any) -> Any:
    """Let a chat template that writes the date write one day's: else rows would change while a training runs."""
    template = tokenizer.chat_template
    if isinstance(template, str) and "strftime_now" in template:
        tokenizer.apply_chat_template = functools.partial(
            tokenizer.apply_chat_template, chat_template=_ONE_DAY + template
        )
    return tokenizer


def first_lost(tokenizer: Any, texts: Iterable[str]) -> tuple[str, str] | None:
    """Return the first text that does not come back, and what came instead. Forms of one character are one."""
    for text in texts:
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        back = tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        if unicodedata.normalize("NFC", back) != unicodedata.normalize("NFC", text):
            return text, back
    return None


def stop_tokens(source: str, tokenizer: Any) -> frozenset[int]:
    """Return the tokens at which generation with a model stops, as its folder or name says."""
    from transformers import AutoConfig, GenerationConfig

    tokens: list[Any] = []
    try:
        tokens.append(GenerationConfig.from_pretrained(source).eos_token_id)
    except (OSError, ValueError):  # it has none
        tokens.append(getattr(AutoConfig.from_pretrained(source).get_text_config(), "eos_token_id", None))
    if tokenizer.eos_token is not None and tokenizer.eos_token in tokenizer.get_vocab():
        tokens.append(tokenizer.eos_token_id)
    stops = {stop for part in tokens for stop in (part if isinstance(part, list) else [part]) if isinstance(stop, int)}
    return frozenset(stops)


def some_stops(source: str, tokenizer: Any) -> frozenset[int]:
    """Return the tokens at which generation stops. Raises UnreadableData where it stops at none."""
    stops = stop_tokens(source, tokenizer)
    if not stops:
        raise UnreadableData(
            f"generation with {source} stops at no token: name eos_token in tokenizer_config.json, or eos_token_id in "
            "generation_config.json, of the model"
        )
    return stops


def check_vocabulary(source: str, tokenizer: Any, most: int) -> None:
    """Raise UnreadableData where the highest token of the data is none that the model knows."""
    from transformers import AutoConfig

    size = int(AutoConfig.from_pretrained(source).get_text_config().vocab_size)
    if most >= size:
        raise UnreadableData(
            f"the tokenizer writes token {most} ({tokenizer.decode([most])!r}), and the model in {source} knows "
            f"{size:,} tokens: take the tokenizer of the model itself"
        )


def digest(tokenizer: Any) -> str:
    """Return what names a tokenizer: the sha256 of its whole definition and its special tokens."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    definition = backend.to_str() if backend is not None else json.dumps(tokenizer.get_vocab(), sort_keys=True)
    special = json.dumps([tokenizer.bos_token, tokenizer.eos_token, tokenizer.chat_template], sort_keys=True)
    return hashlib.sha256(f"{definition}\n{special}".encode()).hexdigest()


def _specials(source: str) -> dict[str, Any]:
    """Return the special tokens that the configuration names; the class that it names is what went wrong."""
    path = Path(source) / "tokenizer_config.json"
    config = json.loads(path.read_bytes()) if path.is_file() else {}
    named = {}
    for name in ("bos_token", "eos_token", "unk_token", "pad_token"):
        value = config.get(name)
        if isinstance(value, dict):
            value = value.get("content")
        if isinstance(value, str):
            named[name] = value
    return named
