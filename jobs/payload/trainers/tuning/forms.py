"""Forms that a record of training data may have, read in one place for trainers and the corpus.

| form | record |
|---|---|
| text | ``{"text": ...}`` |
| prompt | ``{"prompt": ..., "completion": ...}``, texts or messages |
| messages | ``{"messages": [{"role": ..., "content": ...}, ...]}`` |
| alpaca | ``{"instruction": ..., "input": ..., "output": ...}`` |
| sharegpt | ``{"conversations": [{"from": ..., "value": ...}, ...]}`` |
| preference | ``{"prompt": ..., "chosen": ..., "rejected": ...}``, or ``prompt``, ``completion`` and ``label`` |
"""

from __future__ import annotations

from typing import Any, NamedTuple

ASSISTANT = "assistant"
_SPEAKERS = {
    "human": "user", "user": "user", "gpt": ASSISTANT, "assistant": ASSISTANT, "model": ASSISTANT, "chatgpt": ASSISTANT,
    "bing": ASSISTANT, "bard": ASSISTANT, "system": "system", "tool": "tool", "observation": "tool",
    "function_response": "tool", "function_call": ASSISTANT,
}  # fmt: skip
_ALPACA = (
    "Below is an instruction that describes a task{}. Write a response that appropriately completes the request.\n\n"
    "### Instruction:\n{}\n\n{}### Response:\n"
)


class OddRecord(ValueError):
    """A record that nothing can be learned from; the message says why."""


class Record(NamedTuple):
    """A record in one shape: ``text``, or ``prompt`` and ``answer``, or ``messages`` learned from ``learned_from`` on.

    ``fields`` are those of its form, as they stood.
    """

    form: str
    fields: dict[str, Any]
    text: str = ""
    prompt: str = ""
    answer: str = ""
    messages: tuple[dict[str, Any], ...] = ()
    learned_from: int = 0


def read_record(record: Any) -> Record:
    """Return a record by its form; the form with the most structure counts. Raises OddRecord."""
    if not isinstance(record, dict):
        raise OddRecord("it is no JSON object")
    for names, read in _FORMS:
        if all(record.get(name) is not None for name in names):
            return read(record)
    known = "text, prompt and completion, messages, instruction and output, conversations, chosen and rejected"
    raise OddRecord(f"it has none of the known fields ({known})")


def readable(record: Record) -> str:
    """Return a record as plain text, as a corpus counts, tags and compares it."""
    if record.messages:
        return "\n\n".join(f"{message.get('role')}: {_said(message.get('content'))}" for message in record.messages)
    return record.text or record.prompt + record.answer


def _text(record: dict[str, Any]) -> Record:
    text = record["text"]
    if not isinstance(text, str):
        raise OddRecord("its text is no string")
    if not text:
        raise OddRecord("its text is empty")
    return Record("text", {"text": text}, text=text)


def _messages(record: dict[str, Any]) -> Record:
    messages = _checked(record["messages"])
    return Record("messages", {"messages": record["messages"]}, messages=messages)


def _sharegpt(record: dict[str, Any]) -> Record:
    turns, system = record["conversations"], record.get("system")
    if not isinstance(turns, list):
        raise OddRecord("its conversations are no list")
    messages: list[dict[str, Any]] = []
    if isinstance(system, str) and system:
        messages.append({"role": "system", "content": system})
    for turn in turns:
        if not isinstance(turn, dict):
            raise OddRecord("a turn of its conversation is no object")
        speaker = turn.get("from", turn.get("role"))
        role = _SPEAKERS.get(speaker) if isinstance(speaker, str) else None
        if role is None:
            raise OddRecord(f"a turn is from {str(speaker)[:40]!r}, and known are {', '.join(_SPEAKERS)}")
        messages.append({"role": role, "content": turn.get("value", turn.get("content"))})
    fields: dict[str, Any] = {name: record[name] for name in ("conversations", "system") if name in record}
    return Record("sharegpt", fields, messages=_checked(messages))


def _alpaca(record: dict[str, Any]) -> Record:
    instruction, more, output = record["instruction"], record.get("input") or "", record["output"]
    if not all(isinstance(part, str) for part in (instruction, more, output)):
        raise OddRecord("its instruction, input or output is no string")
    if not output.strip():
        raise OddRecord("its output is empty")
    if not instruction.strip() and not more.strip():
        raise OddRecord("its instruction is empty")
    context = ", paired with an input that provides further context" if more else ""
    asked = f"{instruction}\n\n{more}" if more else instruction
    return Record(
        "alpaca",
        {name: record[name] for name in ("instruction", "input", "output") if name in record},
        prompt=_ALPACA.format(context, instruction, f"### Input:\n{more}\n\n" if more else ""),
        answer=output,
        messages=({"role": "user", "content": asked}, {"role": ASSISTANT, "content": output}),
    )


def _prompt(record: dict[str, Any]) -> Record:
    prompt, answer = record["prompt"], record["completion"]
    fields = {"prompt": prompt, "completion": answer}
    if isinstance(prompt, list) and isinstance(answer, list):
        messages = _checked([*prompt, *answer], learned_from=len(prompt))
        return Record("prompt", fields, messages=messages, learned_from=len(prompt))
    if not isinstance(prompt, str) or not isinstance(answer, str):
        raise OddRecord("its prompt and completion are neither both strings nor both messages")
    if not answer:
        raise OddRecord("its completion is empty")
    return Record("prompt", fields, prompt=prompt, answer=answer)


def _marked(record: dict[str, Any]) -> Record:
    if not isinstance(record["label"], bool):
        return _prompt(record)  # a label of some other kind
    return _prompt(record)._replace(form="preference", fields={n: record[n] for n in ("prompt", "completion", "label")})


def _preference(record: dict[str, Any]) -> Record:
    """Read a pair; without a prompt of its own it is what both conversations begin with."""
    chosen, rejected, prompt = record["chosen"], record["rejected"], record.get("prompt")
    if prompt is None:
        prompt, chosen, rejected = _common(chosen, rejected)
    if not (type(prompt) is type(chosen) is type(rejected)) or not isinstance(prompt, str | list):
        raise OddRecord("its prompt, chosen and rejected are neither all strings nor all messages")
    if chosen == rejected:
        raise OddRecord("its chosen and rejected answers are the same")
    if not prompt or not chosen or not rejected:
        raise OddRecord("its prompt, chosen or rejected answer is empty")
    fields = {"prompt": prompt, "chosen": chosen, "rejected": rejected}
    if isinstance(prompt, list):
        for answer in (chosen, rejected):
            _checked([*prompt, *answer], learned_from=len(prompt))
        return Record("preference", fields, messages=(*prompt, *chosen), learned_from=len(prompt))
    return Record("preference", fields, prompt=prompt, answer=chosen)


def _common(chosen: Any, rejected: Any) -> tuple[Any, Any, Any]:
    if not isinstance(chosen, list) or not isinstance(rejected, list):
        raise OddRecord("it has no prompt")
    same = 0
    while same < min(len(chosen), len(rejected)) and chosen[same] == rejected[same]:
        same += 1
    return chosen[:same], chosen[same:], rejected[same:]


def _checked(messages: Any, learned_from: int = 0) -> tuple[dict[str, Any], ...]:
    check_messages(messages)
    answers = [message for message in messages[learned_from:] if message["role"] == ASSISTANT]
    if not any(message.get("content") or message.get("tool_calls") for message in answers):
        raise OddRecord("nobody answers: it has no turn of the assistant")
    return tuple(messages)


def check_messages(messages: Any) -> None:
    """Raise OddRecord if the value is not a list of messages."""
    if not isinstance(messages, list):
        raise OddRecord("its messages are no list")
    if not messages:
        raise OddRecord("it has no messages")
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise OddRecord("a message has no role")
        content = message.get("content")
        if content is None and message.get("tool_calls"):
            continue
        if not isinstance(content, str | list):
            raise OddRecord("a message has no content")
        if isinstance(content, list) and not all(isinstance(part, dict) for part in content):
            raise OddRecord("a part of a message's content is no object")


def _said(content: Any) -> str:
    if isinstance(content, list):
        return " ".join(part["text"] for part in content if isinstance(part.get("text"), str))
    return content or ""


_FORMS = (
    (("messages",), _messages),
    (("conversations",), _sharegpt),
    (("chosen", "rejected"), _preference),
    (("prompt", "completion", "label"), _marked),
    (("prompt", "completion"), _prompt),
    (("instruction", "output"), _alpaca),
    (("text",), _text),
)
