"""Odd records of training data: what people's files hold beside what they should."""

import json
import random
from typing import Any

_TEXTS = [
    "", " ", "a", "say yes", "<eos>", "<bos>a<eos>b", "\ud83d", "\x00", "\u2028", "漢字 \U0001f600", "word " * 400,
    "\ue0001\ue001", "</s><|im_end|>", "{{ messages }}", "\r\n", "\ufeffa",
]  # fmt: skip
_VALUES: list[Any] = [None, True, 0, -1.5, 1e308, [], {}, [None], [[]], {"a": {"b": []}}, "text", ["text"]]
# fmt: off
_NAMES = ["text", "prompt", "completion", "messages", "instruction", "input", "output", "conversations", "chosen",
          "rejected", "label", "system", "id", "metadata", "tools", "history", "images", "chat_template_kwargs"]
_CALLS: list[Any] = [
    [{"function": {"name": "add", "arguments": '{"a": 1}'}}], [{"name": "add", "arguments": {"a": 1}}], [{}],
    '[{"name": "add"}]', [["q", "a"]], {"bos_token": "<eos>"}, {"messages": 1}, [{"function": None}], "be brief", [3],
]
_BESIDE = ["tools", "system", "history", "chat_template_kwargs", "images"]
_OF_MESSAGES = ["weight", "train", "tool_calls", "reasoning_content", "name"]
# fmt: on
_ROLES = ["user", "assistant", "system", "tool", "human", "gpt", "", None, 3]


def odd_file(draw: random.Random, records: int) -> bytes:
    """Return so many lines, some of which are no JSON, no UTF-8, blank, or begun by a mark of byte order."""
    return b"".join(_line(draw) + b"\n" for _ in range(records))


def lines_of(data: bytes) -> int:
    """Return how many lines of a file hold anything."""
    return sum(bool(line.strip(b" \t\r\xef\xbb\xbf")) for line in data.split(b"\n"))


def _line(draw: random.Random) -> bytes:
    line = json.dumps(odd_record(draw), ensure_ascii=draw.random() < 0.9).encode(errors="surrogatepass")
    match draw.randrange(12):
        case 0:
            return line[: draw.randrange(len(line))]
        case 1:
            at = draw.randrange(len(line))
            return (line[:at] + bytes([draw.randrange(256)]) + line[at:]).replace(b"\n", b"")
        case 2:
            return draw.choice([b"", b"  ", b"[" * 5_000, b"{}", b"null", b"9" * 5_000, b"NaN"])
        case 3:
            return b"\xef\xbb\xbf" + line
    return line


def odd_record(draw: random.Random) -> Any:
    """Return a record of some form, whole or with one thing wrong."""

    def text() -> str:
        return draw.choice(_TEXTS) if draw.random() < 0.4 else f"word {draw.randrange(99)}"

    record: Any = draw.choice([
        {"text": text()},
        {"prompt": text(), "completion": text()},
        {"messages": _turns(draw, "role", "content", text)},
        {"instruction": text(), "input": text(), "output": text()},
        {"conversations": _turns(draw, "from", "value", text)},
        {"prompt": text(), "chosen": text(), "rejected": text()},
        {"prompt": text(), "completion": text(), "label": draw.random() < 0.5},
        {"prompt": _turns(draw, "role", "content", text), "chosen": [], "rejected": text()},
    ])  # fmt: skip
    if draw.random() < 0.3:
        name = draw.choice([*_NAMES, *record])
        record[name] = draw.choice(_VALUES)
    if draw.random() < 0.1:
        record.pop(draw.choice(list(record)))
    if draw.random() < 0.1:
        record[draw.choice(_BESIDE)] = draw.choice(_CALLS)
    return draw.choice(_VALUES) if draw.random() < 0.03 else record


def _turns(draw: random.Random, speaker: str, said: str, text: Any) -> list[Any]:
    roles = ["user", "assistant"] if speaker == "role" else ["human", "gpt"]
    turns: list[Any] = [{speaker: roles[number % 2], said: text()} for number in range(draw.randrange(5))]
    for turn in turns:
        if draw.random() < 0.1:
            turn[speaker] = draw.choice(_ROLES)
        if draw.random() < 0.1:
            turn[said] = draw.choice([*_VALUES, [{"type": "text", "text": "part"}], [{"type": "image_url"}]])
        if draw.random() < 0.1:
            turn[draw.choice(_OF_MESSAGES)] = draw.choice([0, 1, 0.5, *_VALUES, *_CALLS])
    return turns + ([draw.choice(_VALUES)] if draw.random() < 0.05 else [])
