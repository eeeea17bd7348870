"""The forms that a record of training data may have. Trainers and the corpus read records by this module.

| form | record |
|---|---|
| text | ``{"text": ...}`` |
| prompt | ``{"prompt": ..., "completion": ...}``, texts or messages |
| messages | ``{"messages": [{"role": ..., "content": ...}, ...]}`` |
| alpaca | ``{"instruction": ..., "input": ..., "output": ...}`` |
| sharegpt | ``{"conversations": [{"from": ..., "value": ...}, ...]}`` |
| preference | ``{"prompt": ..., "chosen": ..., "rejected": ...}``, or ``prompt``, ``completion`` and ``label`` |

A conversation may also have ``system``, ``tools`` and ``chat_template_kwargs``; an Alpaca record ``system`` and
``history``. A message with a weight of 0, or ``train: false``, is context and not learned.
"""

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

ASSISTANT = "assistant"
THOUGHTS = ("reasoning_content", "reasoning", "thinking")  # further fields of an assistant's message
_SPEAKERS = {
    "human": "user", "user": "user", "gpt": ASSISTANT, "assistant": ASSISTANT, "model": ASSISTANT, "chatgpt": ASSISTANT,
    "bing": ASSISTANT, "bard": ASSISTANT, "system": "system", "tool": "tool", "observation": "tool",
    "function_response": "tool", "function_call": ASSISTANT,
}  # fmt: skip
# Names that frameworks give the flag "this message is learned".
_FLAGS = ("weight", "train", "training", "trainable", "loss", "loss_mask", "loss_weight")
_BESIDE = ("system", "history", "tools", "chat_template_kwargs")  # further fields that belong to a conversation
_MEDIA_KEYS = ("image", "images", "video", "videos", "audio", "audios")
_REPEATED = 16  # an answer that repeats a prompt of so many characters does not do so by chance
_ALPACA = (
    "Below is an instruction that describes a task{}. Write a response that appropriately completes the request.\n\n"
    "### Instruction:\n{}\n\n{}### Response:\n"
)


class OddRecord(ValueError):
    """A record from which nothing can be learned; the message says why."""


class LostPart(OddRecord):
    """A record of which a part would not be learned. Versions before row format 3 learned such records without it."""


class TrainingRecord(NamedTuple):
    """A record as text, prompt and answer, or messages. ``fields``: parts as given; ``extras``: for the template."""

    form: str
    fields: dict[str, Any]
    text: str = ""
    prompt: str = ""
    answer: str = ""
    messages: tuple[dict[str, Any], ...] = ()
    learned_from: int = 0  # messages before this index are context
    extras: Mapping[str, Any] = MappingProxyType({})


def read_record(record: Any) -> TrainingRecord:
    """Return a record by its form; if several forms fit, by the one with the most structure. Raises OddRecord."""
    if not isinstance(record, dict):
        raise OddRecord("it is not a JSON object")
    for names, read in _FORMS:
        if all(record.get(name) is not None for name in names):
            document = read(record)
            return document if document.form == "text" else _with_other_fields(record, document)
    forms = "text, prompt and completion, messages, instruction and output, conversations, chosen and rejected"
    raise OddRecord(f"it has none of the known fields ({forms})")


def read_prompt(record: dict[str, Any]) -> TrainingRecord:
    """Return the prompt of a record, a text or messages. Raises OddRecord."""
    prompt = record.get("prompt")
    if not prompt or not isinstance(prompt, str | list):
        raise OddRecord("it has no prompt")
    if isinstance(prompt, str):
        return without_given(_with_other_fields(record, TrainingRecord("prompt", {"prompt": prompt}, prompt=prompt)))
    check_messages(prompt)
    read = TrainingRecord("prompt", {"prompt": prompt}, messages=tuple(prompt))
    return without_given(_with_other_fields(record, read))


def has_more(record: dict[str, Any]) -> bool:
    """Return whether a record has messages in parts, or further fields: row formats before 3 ignored these."""
    lists = [part for part in record.values() if isinstance(part, list)]
    contents = [message.get("content") for part in lists for message in part if isinstance(message, dict)]
    return any(isinstance(content, list) for content in contents) or any(record.get(name) for name in _BESIDE)


def without_given(read: TrainingRecord) -> TrainingRecord:
    """Return a record for a stage that passes only messages to the chat template. Raises LostPart if it has more."""
    if read.extras:
        raise LostPart(f"its {', '.join(read.extras)} would be lost: only --stage sft gives them to the chat template")
    return read


def readable(record: TrainingRecord) -> str:
    """Return a record as plain text. A corpus counts, tags and compares records by this text."""
    lines = []
    for message in record.messages:
        content = message.get("content") or ""
        if isinstance(content, list):
            content = " ".join(part["text"] for part in content if isinstance(part.get("text"), str))
        lines.append(f"{message.get('role')}: {content}")
    return "\n\n".join(lines) or record.text or record.prompt + record.answer


def is_learned(message: dict[str, Any]) -> bool:
    """Return whether a message is the assistant's and not marked as context only. Raises LostPart for odd marks."""
    if message["role"] != ASSISTANT:
        return False
    weights = [message[name] for name in _FLAGS if message.get(name) is not None]
    if odd := [weight for weight in weights if weight not in (0, 1)]:
        raise LostPart(f"the weight of an answer is {str(odd[0])[:40]!r}, but must be 0 or 1")
    return all(weights)


def is_marked(message: dict[str, Any]) -> bool:
    """Return whether a message has a field that decides if it is learned."""
    return any(message.get(name) is not None for name in _FLAGS)


def _with_other_fields(record: dict[str, Any], read: TrainingRecord) -> TrainingRecord:
    """Return a record with its further fields (_BESIDE). Raises LostPart for a field that cannot be used."""
    if key := next((name for name in _MEDIA_KEYS if record.get(name)), ""):
        raise LostPart(
            f'its {key} would be lost: name each in the content of its message, {{"type": "image", "image": ...}}'
        )
    beside = {name: record[name] for name in _BESIDE if record.get(name)}
    if not beside:
        return read
    if not read.messages:
        raise LostPart(f"its {next(iter(beside))} would be lost beside a prompt that is text: give messages")
    read = read._replace(fields={**read.fields, **beside}, extras=_template_variables(beside))
    if (system := beside.get("system")) and read.messages[0]["role"] != "system":
        if not isinstance(system, str):
            raise LostPart("its system is not a string")
        messages = ({"role": "system", "content": system}, *read.messages)
        read = read._replace(messages=messages, learned_from=read.learned_from + bool(read.learned_from))
    return read


def _template_variables(beside: dict[str, Any]) -> dict[str, Any]:
    """Return the variables of the chat template, with tools as a list of functions. Raises LostPart."""
    tools, more = beside.get("tools"), beside.get("chat_template_kwargs", {})
    try:
        tools = json.loads(tools) if isinstance(tools, str) else tools
    except (ValueError, RecursionError):
        raise LostPart("its tools are a string that is not JSON") from None
    if tools is not None and not (isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools)):
        raise LostPart("its tools are not a list of objects")
    if not isinstance(more, dict):
        raise LostPart("its chat_template_kwargs are not an object")
    wrapped = [tool if "function" in tool else {"type": "function", "function": tool} for tool in tools or ()]
    return {**more, "tools": wrapped} if wrapped else dict(more)


def _text(record: dict[str, Any]) -> TrainingRecord:
    text = record["text"]
    if not isinstance(text, str):
        raise OddRecord("its text is not a string")
    if not text:
        raise OddRecord("its text is empty")
    return TrainingRecord("text", {"text": text}, text=text)


def _messages(record: dict[str, Any]) -> TrainingRecord:
    return TrainingRecord("messages", {"messages": record["messages"]}, messages=_checked(record["messages"]))


def _sharegpt(record: dict[str, Any]) -> TrainingRecord:
    turns = record["conversations"]
    if not isinstance(turns, list):
        raise OddRecord("its conversations are not a list")
    return TrainingRecord("sharegpt", {"conversations": turns}, messages=_checked([_turn(turn) for turn in turns]))


def _turn(turn: Any) -> dict[str, Any]:
    """Return a ShareGPT turn as a message. A function call in JSON becomes a tool call."""
    if not isinstance(turn, dict):
        raise OddRecord("a turn of its conversation is not an object")
    speaker = turn.get("from", turn.get("role"))
    role = _SPEAKERS.get(speaker) if isinstance(speaker, str) else None
    if role is None:
        raise OddRecord(f"a turn is from {str(speaker)[:40]!r}, but must be from {', '.join(_SPEAKERS)}")
    message = {"role": role, "content": turn.get("value", turn.get("content"))}
    message |= {name: turn[name] for name in (*_FLAGS, "tool_calls") if name in turn}
    if speaker == "function_call" and isinstance(message["content"], str):
        try:
            calls = json.loads(message["content"])
        except (ValueError, RecursionError):
            return message
        calls = calls if isinstance(calls, list) else [calls]
        if calls and all(isinstance(call, dict) and "name" in call for call in calls):
            calls = [{"type": "function", "function": call} for call in calls]
            return {**message, "content": "", "tool_calls": calls}
    return message


def _alpaca(record: dict[str, Any]) -> TrainingRecord:
    instruction, more, output = record["instruction"], record.get("input") or "", record["output"]
    if not all(isinstance(part, str) for part in (instruction, more, output)):
        raise OddRecord("its instruction, input or output is not a string")
    if not output.strip():
        raise OddRecord("its output is empty")
    if not instruction.strip() and not more.strip():
        raise OddRecord("its instruction is empty")
    context = ", paired with an input that provides further context" if more else ""
    question = f"{instruction}\n\n{more}" if more else instruction
    before = _history(record.get("history") or [])
    read = TrainingRecord(
        "alpaca",
        {name: record[name] for name in ("instruction", "input", "output") if name in record},
        messages=(*before, {"role": "user", "content": question}, {"role": ASSISTANT, "content": output}),
    )
    if before or record.get("system"):  # Alpaca's text form has no place for these
        return read
    prompt = _ALPACA.format(context, instruction, f"### Input:\n{more}\n\n" if more else "")
    return read._replace(prompt=prompt, answer=output)


def _history(turns: Any) -> list[dict[str, Any]]:
    """Return earlier turns of Alpaca, pairs of question and answer, as messages. Raises LostPart."""
    is_history = isinstance(turns, list) and all(isinstance(pair, list) and len(pair) == 2 for pair in turns)
    if not is_history or not all(isinstance(text, str) and text.strip() for pair in turns for text in pair):
        raise LostPart("its history is not a list of pairs of texts")
    roles = ("user", ASSISTANT)
    return [{"role": role, "content": text} for pair in turns for role, text in zip(roles, pair, strict=True)]


def _prompt(record: dict[str, Any]) -> TrainingRecord:
    prompt, answer = record["prompt"], record["completion"]
    fields = {"prompt": prompt, "completion": answer}
    if isinstance(prompt, list) and isinstance(answer, list):
        messages = _checked([*prompt, *answer], learned_from=len(prompt))
        return TrainingRecord("prompt", fields, messages=messages, learned_from=len(prompt))
    if not isinstance(prompt, str) or not isinstance(answer, str):
        raise OddRecord("its prompt and completion are neither both strings nor both messages")
    if not answer:
        raise OddRecord("its completion is empty")
    return TrainingRecord("prompt", fields, prompt=prompt, answer=answer)


def _marked(record: dict[str, Any]) -> TrainingRecord:
    read = _prompt(record)
    if not isinstance(record["label"], bool):  # not a mark of preference
        return read
    return read._replace(form="preference", fields={**read.fields, "label": record["label"]})


def _preference(record: dict[str, Any]) -> TrainingRecord:
    """Return a pair. If it has no prompt, the prompt is the common beginning of both conversations."""
    chosen, rejected, prompt = record["chosen"], record["rejected"], record.get("prompt")
    if prompt is None:
        prompt, chosen, rejected = _split_prompt(chosen, rejected)
    if not (type(prompt) is type(chosen) is type(rejected)) or not isinstance(prompt, str | list):
        raise OddRecord("its prompt, chosen and rejected are neither all strings nor all messages")
    if prompt and chosen[: len(prompt)] == prompt == rejected[: len(prompt)]:
        if isinstance(prompt, str) and len(prompt) >= _REPEATED:
            raise LostPart("its chosen and rejected texts begin with the prompt, which would then be there twice")
        if isinstance(prompt, list):
            chosen, rejected = chosen[len(prompt) :], rejected[len(prompt) :]
    if chosen == rejected:
        raise OddRecord("its chosen and rejected answers are the same")
    if not prompt or not chosen or not rejected:
        raise OddRecord("its prompt, chosen or rejected answer is empty")
    fields = {"prompt": prompt, "chosen": chosen, "rejected": rejected}
    if isinstance(prompt, list):
        for answer in (chosen, rejected):
            _checked([*prompt, *answer], learned_from=len(prompt))
        return TrainingRecord("preference", fields, messages=(*prompt, *chosen), learned_from=len(prompt))
    return TrainingRecord("preference", fields, prompt=prompt, answer=chosen)


def _split_prompt(chosen: Any, rejected: Any) -> tuple[Any, Any, Any]:
    if not isinstance(chosen, list) or not isinstance(rejected, list):
        raise OddRecord("it has no prompt")
    same = 0
    while same < min(len(chosen), len(rejected)) and chosen[same] == rejected[same]:
        same += 1
    return chosen[:same], chosen[same:], rejected[same:]


def _checked(messages: Any, learned_from: int = 0) -> tuple[dict[str, Any], ...]:
    check_messages(messages)
    answers = [message for message in messages[learned_from:] if is_learned(message)]
    if not any(message.get("content") or message.get("tool_calls") for message in answers):
        raise OddRecord("nobody answers: it has no turn of the assistant")
    if not all(message.get("content") or message.get("tool_calls") for message in answers):
        raise LostPart("one of its answers is empty, and the model would learn to answer nothing")
    return tuple(messages)


def check_messages(messages: Any) -> None:
    """Raise OddRecord if the value is not a list of messages."""
    if not isinstance(messages, list):
        raise OddRecord("its messages are not a list")
    if not messages:
        raise OddRecord("it has no messages")
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise OddRecord("a message has no role")
        content, calls = message.get("content"), message.get("tool_calls")
        if calls and not (isinstance(calls, list) and all(isinstance(call, dict) for call in calls)):
            raise OddRecord("the tool_calls of a message are not a list of objects")
        if content is None and calls:
            continue
        if not isinstance(content, str | list):
            raise OddRecord("a message has no content")
        if isinstance(content, list) and not all(isinstance(part, dict) for part in content):
            raise OddRecord("a part of a message's content is not an object")


_FORMS = (
    (("messages",), _messages),
    (("conversations",), _sharegpt),
    (("chosen", "rejected"), _preference),
    (("prompt", "completion", "label"), _marked),
    (("prompt", "completion"), _prompt),
    (("instruction", "output"), _alpaca),
    (("text",), _text),
)
