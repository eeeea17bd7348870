"""Surface: what verbs are asked of, and how one is declared: as a function below :func:`verb`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from inspect import Parameter, signature
from pathlib import Path
from threading import Lock
from typing import Any, Literal, TypeVar

from pydantic import TypeAdapter, create_model
from pydantic_core import PydanticSerializationError

from scheduler.app import App
from scheduler.clock import stopwatch
from scheduler.verbs.arguments import Arguments, BadRequest, CommandFailed, Definition, arguments_of, checked
from scheduler.verbs.log_tail import LogTails
from scheduler.verbs.shapes import finite
from scheduler.verbs.source import Source

_ANYTHING: TypeAdapter[Any] = TypeAdapter(Any)
VERBS: dict[str, Verb] = {}
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Verb:
    """One thing that may be asked: its name, and who answers; it takes what the answer has as parameters.

    An answer is made of the surface, its first parameter. It ``changes`` something; is ``slow``, so that others are
    answered meanwhile; is given again for ``kept_seconds`` unless something was changed here. Over HTTP, a read is
    found at its ``address`` below /api/v1, and a change is a form of the page that goes to its address below /actions;
    "" is none. What an address names are parameters. The answer stands below ``key``, unless that is "".
    """

    name: str
    answer: Callable[..., Any]
    address: str
    changes: bool
    slow: bool
    kept_seconds: float
    key: str

    @cached_property
    def keywords(self) -> dict[str, Parameter]:
        """The parameters of the answer but the surface, by name, to be given as keywords."""
        _, *parameters = signature(self.answer, eval_str=True).parameters.values()
        return {one.name: one.replace(kind=Parameter.KEYWORD_ONLY) for one in parameters}

    @cached_property
    def takes(self) -> type[Arguments]:
        """What may be given."""
        return arguments_of(self.name, self.keywords)

    @cached_property
    def answers(self) -> Any:
        """The type of what is answered."""
        kind = signature(self.answer, eval_str=True).return_annotation
        below: dict[str, Any] = {self.key: (kind, ...)}
        return create_model(f"{self.takes.__name__}Answer", **below) if self.key else kind

    @cached_property
    def view(self) -> TypeAdapter[Any]:
        """What is answered, which has its JSON schema, and writes numbers that JSON cannot hold as null."""
        return TypeAdapter(self.answers)

    @property
    def who(self) -> Literal["readers", "actors", "user"]:
        """Who may ask: readers of the page, those who showed its token for actions, or its process's own user alone."""
        return "user" if not self.address else "actors" if self.changes else "readers"

    @property
    def summary(self) -> str:
        """What it does, in a line."""
        return (self.answer.__doc__ or "").strip().splitlines()[0]

    def ask(self, surface: Any, arguments: Mapping[str, Any]) -> Any:
        """Return what is answered, given arguments that were checked. Raises what the answer raises."""
        answer = self.answer(surface, **arguments)
        return self.answers.model_construct(**{self.key: answer}) if self.key else answer

    def document(self) -> dict[str, Any]:
        """Return what it takes and answers, as JSON schemas."""
        schemas = {"arguments": self.takes.model_json_schema(), "answer": self.view.json_schema(mode="serialization")}
        return {"summary": self.summary, "changes": self.changes, "who": self.who, **schemas}


def verb(
    name: str,
    address: str | None = None,
    *,
    changes: bool = False,
    slow: bool = False,
    kept_seconds: float = 0.0,
    key: str = "",
    table: dict[str, Verb] = VERBS,
) -> Callable[[F], F]:
    """Return what makes a function the verb ``name`` of the ``table``; a read has an address of its name by default."""
    if address is None:
        address = "" if changes else f"/{name.replace('.', '/')}"

    def add(answer: F) -> F:
        table[name] = Verb(name, answer, address, changes, slow, kept_seconds, key)
        return answer

    return add


class Surface(Source):
    """What programs may ask of one database, with the rights of the user who started this process.

    ``who`` stands in the event log; ``where`` in the reason of a change that has none; ``config`` is the settings file
    that commands are given; ``tell`` makes an error the document that ``--json`` shows of it.
    """

    def __init__(
        self,
        app: App,
        who: str,
        config: Path | None = None,
        tell: Callable[[BaseException], dict[str, Any]] = lambda error: {"message": str(error)},
        where: str = "by hand",
    ) -> None:
        super().__init__(app)
        self.who, self.tell, self.where = who, tell, where
        self.tails = LogTails(self)
        self.commands = Processes(config)
        self._answers: dict[str, tuple[float, bytes]] = {}
        self._changed = 0
        self._answering = Lock()

    def answer(self, verb: Verb, args: Mapping[str, Any]) -> bytes:
        """Return the answer as JSON text, with secrets taken out. Raises BadRequest and what the verb raises."""
        if verb.kept_seconds and not args:
            kept = self._answers.get(verb.name)
            if kept is not None and stopwatch() < kept[0]:
                return kept[1]
        arguments = dict(checked(verb.takes, args))
        before = self._changed
        try:
            result = verb.ask(self, arguments)
        finally:
            if verb.changes:
                with self._answering:
                    self._changed += 1
                    self._answers.clear()
        body = self.text_of(result, verb.view)
        if verb.kept_seconds:
            with self._answering:
                if before == self._changed:
                    self._answers[verb.name] = (stopwatch() + verb.kept_seconds, body)
        return body

    def text_of(self, value: Any, view: TypeAdapter[Any] = _ANYTHING) -> bytes:
        """Return views or plain values as JSON text in which no known secret stands."""
        return self.app.redact(json_of(value, view).decode()).encode()


def json_of(value: Any, view: TypeAdapter[Any]) -> bytes:
    """Return a view as JSON text. Half of a surrogate pair, which odd names of files have, becomes a question mark."""
    try:
        return view.dump_json(value)
    except PydanticSerializationError:
        plain = finite(view.dump_python(value))
        return json.dumps(plain, ensure_ascii=False, default=list).encode("utf-8", "replace")


# Commands that run in processes of their own; an answer is what one writes with ``--json``, and its warnings.
_LIMIT_SECONDS = 3_600.0
_WARNING = "schedctl: warning: "
# The kernel ends the command when the thread that started it is gone, also by SIGKILL. The folder it runs in is a
# user's and may hold files named as Python's modules: nothing is imported from there (-P).
_PROGRAM = (
    "import ctypes, os, signal, sys\n"
    "ctypes.CDLL(None).prctl(1, signal.SIGTERM)\n"
    "if os.getppid() != int(sys.argv.pop(1)): sys.exit(143)\n"
    "from scheduler.cli.main import run\n"
    "run()\n"
)


class Processes:
    """The commands that are at work, so that they can be ended with us."""

    def __init__(self, config: Path | None) -> None:
        self._options = ["--json", "--no-color", *(["--config", str(config.resolve())] if config else [])]
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = Lock()
        self._closed = False

    def run(
        self, words: Sequence[str], folder: Path | None = None, tables: Sequence[Definition] = (), option: str = ""
    ) -> dict[str, Any]:
        """Run a command in ``folder``, else in one that is empty, with each table as a job file behind the ``option``.

        Raises BadRequest, CommandFailed.
        """
        with tempfile.TemporaryDirectory(prefix="schedctl-") as scratch:
            for number, table in enumerate(tables, 1):
                file = _written(Path(scratch, f"{number}.toml"), table)
                words = [*words, *filter(None, [option]), str(file)]
            return self._run(words, folder or Path(scratch))

    def close(self) -> None:
        """End every command that is at work, and let none begin."""
        with self._lock:
            self._closed = True
            for process in self._running:
                process.terminate()

    def _run(self, words: Sequence[str], folder: Path) -> dict[str, Any]:
        end = words.index("--") if "--" in words else len(words)
        command = [sys.executable, "-P", "-c", _PROGRAM, str(os.getpid())]
        with self._lock:
            if self._closed:
                raise CommandFailed({"kind": "Ended", "message": "this program ends", "exit_code": 143})
            process = subprocess.Popen(
                [*command, *words[:end], *self._options, *words[end:]],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=folder,
            )
            self._running.add(process)
        try:
            out, err = process.communicate(timeout=_LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            process.terminate()
            out, err = process.communicate()
        finally:
            with self._lock:
                self._running.discard(process)
        return _answer(process.returncode, out.decode("utf-8", "replace"), err.decode("utf-8", "replace"))


def _written(path: Path, table: Definition) -> Path:
    import tomli_w

    try:
        path.write_text(tomli_w.dumps(table), encoding="utf-8")
    except (TypeError, ValueError, RecursionError) as error:
        raise BadRequest(
            f"the definition is none that a job file can hold: {error}", "Leave out what is null"
        ) from None
    return path


def _answer(code: int, out: str, err: str) -> dict[str, Any]:
    warnings = [line.removeprefix(_WARNING) for line in err.splitlines() if line.startswith(_WARNING)]
    for text in reversed(err.splitlines()) if code else [out]:
        try:
            document = json.loads(text)
        except ValueError:
            continue
        match document:
            case {"error": dict() as error} if code:
                raise CommandFailed(error)
            case dict() if not code:
                return {**document, "warnings": warnings}
    last = (err.strip().splitlines() or ["it said nothing"])[-1]
    raise CommandFailed(
        {"kind": "CommandFailed", "message": f"the command ended with {code}: {last}", "exit_code": code}
    )
