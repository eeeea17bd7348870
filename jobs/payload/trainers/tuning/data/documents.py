"""Turn records of a corpus into documents: pieces of text, each with a flag whether it is learned.

A record has one of the forms of forms.py. Of a text, everything is learned; of a prompt and completion, the completion;
of a conversation, which the chat template renders, the assistant's messages.
"""

import contextlib
import functools
import hashlib
import json
import re
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import TrainingRefused, UnreadableData
from .contents import is_text
from .forms import ASSISTANT, THOUGHTS, LostPart, OddRecord, TrainingRecord, is_learned, is_marked, read_record
from .reader import records
from .tally import Tally

# Texts that every tokenizer must decode to themselves: indents, tabs, blank lines, several scripts and an emoji.
PROBES = (
    "def f(x):\n    return x + 1\n",
    "\tif a  ==  b:\n\n\n\t\tpass  # two  spaces\n",
    "  leading, trailing  ",
    "äöü ß 漢字 \U0001f600 → x_1 <- {y: [1.5, 'a\"b']}",
)

_REASON_MAX = 300  # characters of a library's error in our message
# A macro for chat templates that replaces strftime_now by the default date of Llama 3.1's template.
_DAY = {"%d": "26", "%-d": "26", "%m": "07", "%b": "Jul", "%B": "July", "%y": "24", "%Y": "2024", "%A": "Friday"}
_DAY |= {"%H": "12", "%M": "00", "%S": "00"}
_REPLACED = "".join(f".replace('{name}', '{value}')" for name, value in _DAY.items())
_ONE_DAY = f"{{%- macro strftime_now(format) -%}}{{{{ format{_REPLACED} }}}}{{%- endmacro -%}}"


def load_tokenizer(source: str) -> Any:
    """Return a model's tokenizer. Raises TrainingRefused if it is missing or does not decode what it encoded."""
    from transformers import AutoTokenizer, PreTrainedTokenizerFast, __version__

    try:
        tokenizer = AutoTokenizer.from_pretrained(source)
    except (OSError, ValueError) as error:  # unknown name, Hub not reachable, or a folder without a tokenizer
        why = " ".join(str(error).split())[:_REASON_MAX]
        raise TrainingRefused(
            f"{source} has no tokenizer that can be loaded: {why} Name a folder with tokenizer.json beside the model, "
            "such as an input of the job"
        ) from None
    lost = first_lost(tokenizer, PROBES)
    if lost is None:
        return _with_one_day(tokenizer)
    if (Path(source) / "tokenizer.json").is_file():
        # The tokenizers library reads the file itself, whatever class the configuration names.
        again = PreTrainedTokenizerFast.from_pretrained(source, **_specials(source))
        if first_lost(again, PROBES) is None:
            print(
                f"finetune: transformers {__version__} loads this tokenizer wrongly (it turned {lost[0]!r} into "
                f"{lost[1]!r}); its tokenizer.json is used instead",
                file=sys.stderr,
            )
            return _with_one_day(again)
    raise TrainingRefused(
        f"the tokenizer of {source} under transformers {__version__} turns {lost[0]!r} into {lost[1]!r}: a model "
        "trained on that is lost. Use transformers 4.57, or 5.22 or later (requirements of the job), or another "
        "tokenizer"
    )


def _with_one_day(tokenizer: Any) -> Any:
    """Give a fixed date to a chat template that writes today's date: rows must not change during a training."""
    template = tokenizer.chat_template
    if isinstance(template, str) and "strftime_now" in template:
        tokenizer.apply_chat_template = functools.partial(
            tokenizer.apply_chat_template, chat_template=_ONE_DAY + template
        )
    return tokenizer


def first_lost(tokenizer: Any, texts: Iterable[str]) -> tuple[str, str] | None:
    """Give a fixed date to a chat template that writes today's date: rows must not change in a training."""
    for text in texts:
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        back = tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        if unicodedata.normalize("NFC", back) != unicodedata.normalize("NFC", text):
            return text, back
    return None


def stop_tokens(source: str, tokenizer: Any) -> frozenset[int]:
    """Return the token IDs at which generation of a model (folder or name) stops."""
    from transformers import AutoConfig, GenerationConfig

    tokens: list[Any] = []
    try:
        tokens.append(GenerationConfig.from_pretrained(source).eos_token_id)
    except (OSError, ValueError):  # no generation_config.json
        tokens.append(getattr(AutoConfig.from_pretrained(source).get_text_config(), "eos_token_id", None))
    if tokenizer.eos_token is not None and tokenizer.eos_token in tokenizer.get_vocab():
        tokens.append(tokenizer.eos_token_id)
    stops = {stop for part in tokens for stop in (part if isinstance(part, list) else [part]) if isinstance(stop, int)}
    return frozenset(stops)


def some_stops(source: str, tokenizer: Any) -> frozenset[int]:
    """Return the token IDs at which generation stops. Raises UnreadableData if there are none."""
    stops = stop_tokens(source, tokenizer)
    if not stops:
        raise UnreadableData(
            f"generation with {source} stops at no token: name eos_token in tokenizer_config.json, or eos_token_id in "
            "generation_config.json, of the model"
        )
    return stops


def check_vocabulary(source: str, tokenizer: Any, most: int) -> None:
    """Raise UnreadableData if the highest token ID of the data has no embedding in the model."""
    from transformers import AutoConfig

    size = int(AutoConfig.from_pretrained(source).get_text_config().vocab_size)
    if most >= size:
        raise UnreadableData(
            f"the tokenizer writes token {most} ({tokenizer.decode([most])!r}), and the model in {source} knows "
            f"{size:,} tokens: use the tokenizer of the model itself"
        )


def digest(tokenizer: Any) -> str:
    """Return the SHA-256 of a tokenizer: its whole definition, special tokens and chat template."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    definition = backend.to_str() if backend is not None else json.dumps(tokenizer.get_vocab(), sort_keys=True)
    special = json.dumps([tokenizer.bos_token, tokenizer.eos_token, tokenizer.chat_template], sort_keys=True)
    return hashlib.sha256(f"{definition}\n{special}".encode()).hexdigest()


def _specials(source: str) -> dict[str, Any]:
    """Return the special tokens in tokenizer_config.json, by name; the tokenizer class in it is ignored."""
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


_OPEN, _CLOSE = "\ue000", "\ue001"  # around the number of a special token that occurs in the data
_PLACEHOLDER = re.compile(f"{_OPEN}([0-9]+){_CLOSE}")
_WHY_MAX = 120  # characters of a template's error
_PROMPT_TAIL = 40  # the last characters of a prompt may be the beginning of an answer, such as <think>
_WRITE = "use a model whose template writes it, or give records of prompt and completion as texts"
# Around learned text in reports.
BEGIN, END = "\N{MATHEMATICAL LEFT WHITE SQUARE BRACKET}", "\N{MATHEMATICAL RIGHT WHITE SQUARE BRACKET}"


class Piece(NamedTuple):
    """Text of a document. ``learned``: it has targets. ``meant``: a template's text, whose special tokens count."""

    text: str
    learned: bool
    meant: bool = False


class TokenDocument(NamedTuple):
    """Pieces in order. ``plain``: BOS and EOS must be added, because no chat template has written them."""

    pieces: tuple[Piece, ...]
    plain: bool
    form: str = "text"
    place: str = ""


def documents(paths: Sequence[Path], tokenizer: Any, tally: Tally) -> Iterator[TokenDocument]:
    """Yield the documents of files in order; skipped records are counted in ``tally``."""
    for record, place in records(paths, tally):
        if any(True for _ in named_images(record)):
            tally.leave(place, "it has an image, and only Qwen2-VL and Qwen2.5-VL models can be trained on images")
            tally.since(3, changed="messages" not in record or "image_url" in str(record))
        elif (document := document_of(record, tokenizer, place, tally)) is not None:
            yield document


def named_images(record: dict[str, Any]) -> Iterator[object]:
    """Yield the image references of a record's messages in order; None for one without a reference."""
    lists = [part for name in ("messages", "prompt", "completion") if isinstance(part := record.get(name), list)]
    for message in chain.from_iterable(lists):
        content = message.get("content") if isinstance(message, dict) else None
        for part in content if isinstance(content, list) else ():
            if isinstance(part, dict) and part.get("type", "text") != "text":
                place = part.get("image_url")
                yield part.get("image", place.get("url") if isinstance(place, dict) else place)


def document_of(record: dict[str, Any], tokenizer: Any, place: str, tally: Tally) -> TokenDocument | None:
    """Return a record as a document, or None if nothing of it can be learned; count it in ``tally``."""
    try:
        read = read_record(record)
        if read.form == "preference":
            raise OddRecord("it is a preference, which --stage dpo or kto learns")
        document = _document(read, tokenizer, place)
        if not all(is_text(piece.text) for piece in document.pieces):
            raise OddRecord("it has half of a character (a lone surrogate)")
    except OddRecord as odd:
        tally.leave(place, str(odd))
        tally.since(3, changed=isinstance(odd, LostPart))
        return None
    tally.since(2, changed=read.form in ("alpaca", "sharegpt") or (read.messages and read.form == "prompt"))
    tally.since(2, changed=read.form != "text" and isinstance(record.get("text"), str))
    tally.since(3, changed=read.messages and not document.plain and _is_read_otherwise(read, tokenizer))
    tally.take(read.form)
    return document


def _is_read_otherwise(read: TrainingRecord, tokenizer: Any) -> bool:
    """Return whether programs before version 3 of rows wrote a conversation in another way."""
    changed = any(
        is_marked(message) or message.get("tool_calls") or with_one_text(message) is not message
        for message in read.messages
    )
    changed = changed or "image_url" in str(read.messages)
    beside = read.extras or read.fields.get("history") or (read.fields.get("system") and read.form != "sharegpt")
    return bool(changed or beside or "strftime_now" in str(tokenizer.chat_template))


def _document(read: TrainingRecord, tokenizer: Any, place: str) -> TokenDocument:
    if read.messages and (tokenizer.chat_template or not read.answer):
        if not tokenizer.chat_template:
            raise UnreadableData(
                f"{place} is a conversation, and the tokenizer has no chat template to write it with: use an instruct "
                "model's tokenizer, or records of prompt and completion"
            )
        return TokenDocument(tuple(_chat(read, tokenizer)), plain=False, form=read.form, place=place)
    if read.answer:
        pieces: tuple[Piece, ...] = (Piece(read.prompt, learned=False), Piece(read.answer, learned=True))
    else:
        pieces = (Piece(read.text, learned=True),)
    return TokenDocument(pieces, plain=True, form=read.form, place=place)


def _chat(read: TrainingRecord, tokenizer: Any) -> Iterator[Piece]:
    """Yield a conversation in pieces, split where the assistant's messages begin and end."""
    marks = special_texts(tokenizer)
    messages = [_without(with_one_text(message), marks) for message in read.messages]
    variables = _without(dict(read.extras), marks)
    written = ""
    for at, message in enumerate(messages):
        if at < read.learned_from or not is_learned(message):
            continue
        before = rendered(tokenizer, messages[:at], for_answer=True, variables=variables)
        after = rendered(tokenizer, messages[: at + 1], for_answer=False, variables=variables)
        if not (before.startswith(written) and after.startswith(before)):
            raise OddRecord(
                "the chat template changes earlier messages when the conversation continues, so that the assistant's "
                "answers cannot be located; give each answer as a record of prompt and completion"
            )
        check_written(message, after[len(before) :], before[len(written) :])
        yield from _pieces(before[len(written) :], marks, learned=False)
        yield from _pieces(after[len(before) :], marks, learned=True)
        written = after
    end = max(at + 1 for at, message in enumerate(messages) if at >= read.learned_from and is_learned(message))
    check_read(messages[:end], written, variables)


def with_one_text(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message with its text parts joined, because most templates write a list in Python's notation."""
    content = message.get("content")
    if not isinstance(content, list) or any(not isinstance(part.get("text"), str) for part in content):
        return message
    return {**message, "content": "".join(part["text"] for part in content)}


def check_written(message: dict[str, Any], learned: str, before: str) -> None:
    """Raise LostPart unless all of an assistant's message, white space aside, is in the text that is learned."""
    calls = [call.get("function", call) for call in message.get("tool_calls") or ()]
    parts = [(name, message.get(name)) for name in ("content", *THOUGHTS)]
    parts += [("tool_calls", call.get("name")) for call in calls if isinstance(call, dict)]
    bare = _compact(before[-_PROMPT_TAIL:] + learned)
    for name, text in parts:
        if isinstance(text, str) and not _holds(bare, text):
            raise LostPart(f"the chat template leaves out what the assistant said ({name}): {_WRITE}")


def check_read(messages: Sequence[dict[str, Any]], written: str, variables: dict[str, Any]) -> None:
    """Raise LostPart unless a rendered conversation has the tools and the messages of all roles but the assistant."""
    bare = _compact(written)
    for message in messages:
        content, role = message.get("content"), message["role"]
        if isinstance(content, str) and role != ASSISTANT and not _holds(bare, content):
            raise LostPart(f"the chat template leaves out its message of the role {role[:40]!r}: {_WRITE}")
    tools = [tool.get("function", tool) for tool in variables.get("tools") or ()]
    if not all(_holds(bare, str(tool.get("name"))) for tool in tools if isinstance(tool, dict)):
        raise LostPart(f"the chat template leaves out its tools: {_WRITE}")


def _holds(bare: str, rendering: str) -> bool:
    """Return whether ``bare``, a text without white space, contains another text, plain or JSON-encoded."""
    return _compact(rendering) in bare or _compact(json.dumps(rendering, ensure_ascii=False)[1:-1]) in bare


def _compact(text: str) -> str:
    return "".join(text.split())


def special_texts(tokenizer: Any) -> tuple[str, ...]:
    """Return the texts that a tokenizer parses as special tokens, longest first."""
    added = getattr(tokenizer, "added_tokens_decoder", None) or {}
    special = {str(token) for token in added.values() if getattr(token, "special", False)}
    return tuple(sorted(special - {""}, key=lambda text: (-len(text), text)))


def check_words(value: Any, marks: Sequence[str]) -> None:
    """Raise OddRecord if a text, or a text of messages, cannot be encoded or contains a special token."""
    if isinstance(value, str):
        if not is_text(value):
            raise OddRecord("it has half of a character (a lone surrogate)")
        if mark := next((mark for mark in marks if mark in value), ""):
            raise OddRecord(f"its text has {mark}, which is a special token of the tokenizer")
    elif isinstance(value, dict):
        check_words([part for name, part in value.items() if name not in ("role", "type")], marks)
    elif isinstance(value, list):
        for part in value:
            check_words(part, marks)


def _without(value: Any, marks: tuple[str, ...]) -> Any:
    """Return a message with numbered placeholders for special tokens, which only the template may write."""
    if isinstance(value, str):
        if not any(mark in value for mark in marks):
            return value
        if _OPEN in value:
            raise OddRecord("it has special tokens of the tokenizer beside characters of private use")
        return re.sub("|".join(map(re.escape, marks)), lambda at: f"{_OPEN}{marks.index(at[0])}{_CLOSE}", value)
    if isinstance(value, dict):
        return {name: part if name in ("role", "type") else _without(part, marks) for name, part in value.items()}
    if isinstance(value, list):
        return [_without(part, marks) for part in value]
    return value


def _pieces(text: str, marks: tuple[str, ...], *, learned: bool) -> Iterator[Piece]:
    for number, part in enumerate(_PLACEHOLDER.split(text) if marks else [text]):
        if number % 2:
            is_mark = int(part) < len(marks)
            yield Piece(marks[int(part)] if is_mark else f"{_OPEN}{part}{_CLOSE}", learned)
        elif part:
            yield Piece(part, learned, meant=True)


def rendered(tokenizer: Any, messages: list[Any], *, for_answer: bool, variables: dict[str, Any] | None = None) -> str:
    """Return messages as the chat template writes them. Raises OddRecord if the template fails."""
    asking = {**(variables or {}), "tokenize": False, "add_generation_prompt": for_answer}
    called = [_with_arguments(message) for message in messages]
    try:
        return str(tokenizer.apply_chat_template(called, **asking))
    except Exception as error:  # noqa: BLE001 - a template is a foreign program
        if called != messages:  # some templates need the arguments of calls as JSON strings
            with contextlib.suppress(Exception):
                return str(tokenizer.apply_chat_template(messages, **asking))
        why = " ".join(f"{error}".split())[:_WHY_MAX] or type(error).__name__
        raise OddRecord(f"the chat template refuses it: {why}") from None


def _with_arguments(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message whose tool calls have their arguments as objects, parsed if they are strings."""
    calls = message.get("tool_calls")
    return {**message, "tool_calls": [_with_object(call) for call in calls]} if calls else message


def _with_object(call: dict[str, Any]) -> dict[str, Any]:
    if isinstance(function := call.get("function"), dict):
        return {**call, "function": _with_object(function)}
    try:
        arguments = json.loads(call["arguments"])
    except (KeyError, TypeError, ValueError, RecursionError):
        return call
    return {**call, "arguments": arguments} if isinstance(arguments, dict) else call
