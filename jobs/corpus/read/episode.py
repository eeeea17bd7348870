"""One JSON record to one document: every form that trainers read, and the users' Tank Building episodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from jobs.corpus.findings import Findings, Kind
from jobs.corpus.options import STAGES
from jobs.corpus.read.document import Document
from jobs.payload.trainers.tuning.forms import OddRecord, Record, read_record, readable

# Fields that become text, with the type a good record has there. Everything else is metadata.
_TEXT_FIELDS: Mapping[str, type] = {
    "text": str,
    "component_code": str,
    "architectural_decisions": list,
    "code_patterns": list,
    "success_metrics": list,
    "failure_points": list,
    "claude_feedback": list,
}
# Fields that are interpreted and kept as metadata too.
_TAG_FIELDS: Mapping[str, type] = {"tank_building_stage": str, "stage": str, "manager_focus": str}
# One of them is in every record that is learned by its parts.
_PARTS = ("messages", "conversations", "chosen", "completion", "output")
_HEADINGS: Mapping[str, str] = {
    "architectural_decisions": "Decisions",
    "code_patterns": "Patterns",
    "success_metrics": "What worked",
    "failure_points": "What failed",
    "claude_feedback": "Feedback",
}


def document(value: Any, source: str, line: int, findings: Findings) -> Document | None:
    """The document of one parsed record, or None (with a finding) when it holds no text.

    A record that trainers learn by its parts (see tuning/forms.py) keeps these, and its text is all of them in order.
    The text of others is `text` if given, else `component_code` followed by one paragraph per kind of note.
    A null or a wrong type costs the field, not the record.
    """
    if not isinstance(value, dict):
        kind = Kind.NULL_FIELD if value is None else Kind.WRONG_TYPE
        findings.add(kind, source, line, f"the record is {_type(value)}, not an object; left out")
        return None
    parts = _parts(value, source, line, findings)
    record = {name: part for name, part in value.items() if parts is None or name not in parts.fields}
    if parts is not None:
        record["text"] = readable(parts)
    fields: dict[str, Any] = {}
    for name, wanted in (*_TEXT_FIELDS.items(), *_TAG_FIELDS.items()):
        if name not in record:
            continue
        found = record[name]
        if isinstance(found, wanted):
            fields[name] = found
            if name in _TEXT_FIELDS:
                del record[name]
        else:
            # The odd value stays in the metadata: nothing of a kept record is lost.
            kind = Kind.NULL_FIELD if found is None else Kind.WRONG_TYPE
            findings.add(kind, source, line, f"{name} is {_type(found)}, not {_type(wanted())}; not used")
    try:
        text: str = fields.get("text", "")
        if not text.strip():
            text = "\n\n".join(_paragraphs(fields))
    except RecursionError:
        findings.add(Kind.TOO_DEEP, source, line, "notes nested too deeply to read; left out")
        return None
    if not text:
        present = any(name in fields for name in _TEXT_FIELDS)
        kind = Kind.EMPTY_TEXT if present else Kind.MISSING_TEXT
        findings.add(kind, source, line, "no text in the record; left out")
        return None
    stage = _stage(fields, source, line, findings)
    kept = {} if parts is None else parts.fields
    return Document(text, source, line, stage, fields.get("manager_focus"), record, kept)


def _parts(record: Mapping[str, Any], source: str, line: int, findings: Findings) -> Record | None:
    """The record by its parts; None for one of plain text, and for an odd one, which is a finding."""
    if not any(name in record for name in _PARTS):
        return None
    try:
        found = read_record(record)
    except (OddRecord, RecursionError) as odd:
        findings.add(Kind.WRONG_TYPE, source, line, f"not learned by its parts: {odd}")
        return None
    return None if found.form == "text" else found


def _stage(fields: Mapping[str, Any], source: str, line: int, findings: Findings) -> str | None:
    stage: str | None = fields.get("tank_building_stage", fields.get("stage"))
    if stage is None or stage in STAGES:
        return stage
    findings.add(Kind.UNKNOWN_STAGE, source, line, f"stage {stage!r} is none of {', '.join(STAGES)}")
    return None


def _paragraphs(fields: Mapping[str, Any]) -> Iterable[str]:
    if code := fields.get("component_code", "").strip("\n"):
        yield code
    for name, heading in _HEADINGS.items():
        if lines := [line for item in fields.get(name, ()) if (line := _sentence(item))]:
            yield "\n".join([f"{heading}:", *(f"- {line}" for line in lines)])


def _sentence(item: Any) -> str:
    """One note: a string as it is, an object as its strings in their order."""
    if isinstance(item, str):
        return item.strip()
    if isinstance(item, dict):
        return "; ".join(part for value in item.values() if (part := _sentence(value)))
    if isinstance(item, list):
        return ", ".join(part for value in item if (part := _sentence(value)))
    return ""


def _type(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case list():
            return "an array"
        case _:
            return "an object"
