"""Tag texts by rules that people write: by path, by a key of the record, or by a command."""

import json
import os
import re
import signal
import subprocess
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, BinaryIO

from jobs.child_process import child_environment
from jobs.corpus.errors import BadParameter, CorpusError, Findings, Kind
from jobs.corpus.options import STAGES, VALUE, CorpusRule
from jobs.corpus.read.records import CorpusDocument
from jobs.payload.bounds import read_json

_ANSWER_BYTES = 1 << 16
_TAIL_BYTES = 400  # last output of a failed command that is shown
# Variables that a command inherits besides those for programs and locales. It gets no secret of the daemon.
_KEPT_VARIABLES = re.compile("HOME|VIRTUAL_ENV")


@dataclass(slots=True)
class Tags:
    """The values that rules set for one text; None means not set."""

    stage: str | None = None
    domains: tuple[str, ...] | None = None


class Rules:
    """Rules in order: the first that sets a stage or domains wins; commands come last. An unknown tag is a finding."""

    def __init__(self, rules: Iterable[CorpusRule], domains: Collection[str], findings: Findings) -> None:
        self._rules = tuple(rules)
        self._domains = sorted(domains)
        self._findings = findings
        for rule in self._rules:
            for name in rule.domains or ():
                if VALUE not in name and name not in domains:
                    raise BadParameter("a rule's domain", name, f"one of {', '.join(self._domains) or '(none is set)'}")

    @property
    def commands(self) -> tuple[CorpusRule, ...]:
        """The rules that are commands."""
        return tuple(rule for rule in self._rules if rule.command)

    def of(self, document: CorpusDocument) -> Tags:
        """Return the values that the rules for paths and keys set for a document."""
        tags = Tags()
        for rule in self._rules:
            if rule.command or not _fits_path(rule, document.source):
                continue
            value = None if rule.key is None else _value(document.metadata, rule.key)
            if rule.key is not None and (value is None or rule.equals not in {None, value}):
                continue
            stage = rule.stage and rule.stage.replace(VALUE, value or "")
            domains = rule.domains and tuple(name.replace(VALUE, value or "") for name in rule.domains)
            self._apply(tags, stage, domains, document.source, document.line)
        return tags

    def run(self, rule: CorpusRule, rows: Iterable[Mapping[str, Any]], tags: Mapping[str, Tags], folder: Path) -> None:
        """Run a rule's command on texts and set the tags, by ID, that no earlier rule has set. Raises CorpusError.

        The command reads a JSON object per line: `id`, `source`, `text`, and `metadata` if any. It writes an object
        per text it can tag, in any order: `id`, `stage`, `domains`; null and absent values are ignored. Temporary
        files are in `folder`.
        """
        question_file, answer_file = folder / "questions", folder / "answers"
        name = Path(rule.command[0]).name
        known_ids = set()
        with question_file.open("wb") as questions:
            for row in rows:
                if _fits_path(rule, str(row["source"])):
                    known_ids.add(row["id"])
                    questions.write(json.dumps(row, separators=(",", ":")).encode("ascii") + b"\n")
        with question_file.open("rb") as questions, answer_file.open("w+b") as answers:
            _run(rule, questions, answers, folder)
            answers.seek(0)
            for number, answer in _answers(answers, name, self._findings):
                text_id = str(answer.get("id"))
                if text_id not in known_ids:
                    detail = f"{text_id!r} is not the id of a text in its input; not used"
                    self._findings.add(Kind.BAD_TAG, name, number, detail)
                    continue
                stage, domains = answer.get("stage"), answer.get("domains")
                if domains is not None and not (isinstance(domains, list) and all(isinstance(d, str) for d in domains)):
                    self._findings.add(Kind.BAD_TAG, name, number, "domains is not a list of names; not used")
                    domains = None
                self._apply(tags[text_id], None if stage is None else str(stage), domains, name, number)
        question_file.unlink()
        answer_file.unlink()

    def _apply(self, tags: Tags, stage: str | None, domains: Collection[str] | None, source: str, line: int) -> None:
        if tags.stage is None and stage is not None:
            if stage in STAGES:
                tags.stage = stage
            else:
                detail = f"a rule gives stage {stage!r}, which is none of {', '.join(STAGES)}; not used"
                self._findings.add(Kind.UNKNOWN_STAGE, source, line, detail)
        if tags.domains is None and domains is not None:
            unknown = sorted(set(domains).difference(self._domains))
            if unknown:
                self._findings.add(Kind.BAD_TAG, source, line, f"there is no domain {', '.join(unknown)}; not used")
            if len(unknown) < len(set(domains)) or not domains:
                tags.domains = tuple(sorted(set(domains).difference(unknown)))


def _fits_path(rule: CorpusRule, source: str) -> bool:
    return rule.path is None or fnmatchcase(source, rule.path)


def _value(metadata: Mapping[str, Any], key: str) -> str | None:
    """Return the value of a dotted key, if it is a text or an integer."""
    value: Any = metadata
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return str(value) if isinstance(value, str | int) and not isinstance(value, bool) else None


def _run(rule: CorpusRule, questions: BinaryIO, answers: BinaryIO, folder: Path) -> None:
    output = folder / "stderr"
    with output.open("w+b") as errors:
        try:
            child = subprocess.Popen(
                rule.command,
                stdin=questions,
                stdout=answers,
                stderr=errors,
                cwd=folder,
                env=child_environment(_KEPT_VARIABLES),
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise _failed(rule, f"it cannot be started: {error}") from None
        try:
            code = child.wait(rule.limit_seconds)
        except subprocess.TimeoutExpired:
            raise _failed(rule, f"it was not done after {rule.limit_seconds} s") from None
        finally:
            if child.returncode is None:  # time limit or Ctrl-C: kill the whole process group
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
        if code:
            errors.seek(max(0, errors.seek(0, os.SEEK_END) - _TAIL_BYTES))
            words = errors.read().decode("utf-8", "replace").strip()
            raise _failed(rule, f"it ended with status {code}" + (f" and wrote: {words}" if words else ""))
    output.unlink()


def _answers(file: BinaryIO, name: str, findings: Findings) -> Iterator[tuple[int, dict[str, Any]]]:
    number = 0
    while line := file.readline(_ANSWER_BYTES):
        number += 1
        try:
            answer = read_json(line)
        except ValueError:
            answer = None
        if isinstance(answer, dict):
            yield number, answer
        elif line.strip():
            findings.add(Kind.BAD_TAG, name, number, "not a JSON object; not used")


def _failed(rule: CorpusRule, why: str) -> CorpusError:
    remedy = (
        "It reads a JSON object a line on standard input and answers with lines of id, stage and domains; try it by "
        "hand, or remove it from corpus.rules"
    )
    return CorpusError(f"the rule's command {' '.join(rule.command)!r} failed", why, remedy)
