"""Declare verbs with the decorator :func:`verb`, and answer them through a :class:`Surface`."""

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
from types import MappingProxyType
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
VERBS: "dict[str, Verb]" = {}
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Verb:
    """A query or a change. ``answer`` is its function: the first parameter is the surface, the others are arguments.

    ``changes``: the verb changes something. ``slow``: other requests are answered meanwhile. ``kept_seconds``: how long
    an answer is cached unless a change is made here. ``address`` is the HTTP path, below /api/v1 for a query and below
    /actions for a change by a form of the page; "" if it has none. Names in the path are parameters. ``key`` is the
    key of the answer in its document; "" if the answer is the document.
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
        """The parameters of the function by name, without the surface."""
        _, *parameters = signature(self.answer, eval_str=True).parameters.values()
        return {one.name: one.replace(kind=Parameter.KEYWORD_ONLY) for one in parameters}

    @cached_property
    def takes(self) -> type[Arguments]:
        """The model that validates the arguments."""
        return arguments_of(self.name, self.keywords)

    @cached_property
    def answers(self) -> Any:
        """The type of the answer's document, with the answer below ``key`` if there is one."""
        kind = signature(self.answer, eval_str=True).return_annotation
        below: dict[str, Any] = {self.key: (kind, ...)}
        return create_model(f"{self.takes.__name__}Answer", **below) if self.key else kind

    @cached_property
    def view(self) -> TypeAdapter[Any]:
        """The serializer of the answer, which also has its JSON schema. NaN and infinities become null."""
        return TypeAdapter(self.answers)

    @property
    def who(self) -> Literal["readers", "actors", "user"]:
        """Who may use the verb: readers of the page, holders of its action token, or only the user of this process."""
        return "user" if not self.address else "actors" if self.changes else "readers"

    @property
    def summary(self) -> str:
        """The first line of the help text."""
        return (self.answer.__doc__ or "").strip().splitlines()[0]

    def ask(self, surface: Any, arguments: Mapping[str, Any]) -> Any:
        """Return the answer for validated arguments. Raises what the function raises."""
        answer = self.answer(surface, **arguments)
        return self.answers.model_construct(**{self.key: answer}) if self.key else answer

    def document(self) -> dict[str, Any]:
        """Return the JSON schemas of arguments and answer."""
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
    """Return a decorator that adds a function to ``table`` as the verb ``name``, with the fields of :class:`Verb`.

    Unless ``address`` is given, the address of a query is its name, and a change has none.
    """
    if address is None:
        address = "" if changes else f"/{name.replace('.', '/')}"

    def add(answer: F) -> F:
        table[name] = Verb(name, answer, address, changes, slow, kept_seconds, key)
        return answer

    return add


class Surface(Source):
    """The verbs of one database, with the rights of the user who started this process.

    ``who`` is the name in the event log; ``where`` is the reason for changes that have none. ``config`` is the settings
    file for commands, ``environment`` has further variables for them. ``tell`` converts an error into the document
    that ``--json`` prints.
    """

    def __init__(
        self,
        app: App,
        who: str,
        config: Path | None = None,
        tell: Callable[[BaseException], dict[str, Any]] = lambda error: {"message": str(error)},
        where: str = "by hand",
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        super().__init__(app)
        self.who, self.tell, self.where = who, tell, where
        self.tails = LogTails(self)
        self.commands = Processes(config, environment)
        self._answers: dict[str, tuple[float, bytes]] = {}
        self._changed = 0
        self._answering = Lock()

    def answer(self, verb: Verb, args: Mapping[str, Any]) -> bytes:
        """Return the answer as JSON text without secrets. Raises BadRequest and what the verb raises."""
        if verb.kept_seconds and not args:
            kept = self._answers.get(verb.name)
            if kept is not None and stopwatch() < kept[0]:
                return kept[1]
        arguments = dict(checked(verb.takes, args))
        before = self._changed
        try:
            result = self.perform(verb, arguments)
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

    def perform(self, verb: Verb, arguments: Mapping[str, Any]) -> Any:
        """Return the answer for validated arguments. Raises what the verb raises."""
        return verb.ask(self, arguments)

    def text_of(self, value: Any, view: TypeAdapter[Any] = _ANYTHING) -> bytes:
        """Return views or plain values as JSON text; known secrets are hidden."""
        return self.app.redact(json_of(value, view).decode()).encode()


def json_of(value: Any, view: TypeAdapter[Any]) -> bytes:
    """Return a view as JSON text. Lone surrogates, which file names can contain, become question marks."""
    try:
        return view.dump_json(value)
    except PydanticSerializationError:
        plain = finite(view.dump_python(value))
        return json.dumps(plain, ensure_ascii=False, default=list).encode("utf-8", "replace")


# Commands that run in separate processes. The answer is their document of ``--json`` with their warnings.
_LIMIT_SECONDS = 3_600.0  # of one command
_WARNING = "schedctl: warning: "
# The program asks the kernel (prctl) to end the command when the thread that started it ends, even by SIGKILL. The
# command runs in a user's folder, which may have files named like Python modules; -P prevents their import.
_PROGRAM = (
    "import ctypes, os, signal, sys\n"
    "ctypes.CDLL(None).prctl(1, signal.SIGTERM)\n"
    "if os.getppid() != int(sys.argv.pop(1)): sys.exit(143)\n"
    "from scheduler.cli.main import run\n"
    "run()\n"
)


class Processes:
    """Runs commands in separate processes, and ends them together with this process."""

    def __init__(self, config: Path | None, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._options = ["--json", "--no-color", *(["--config", str(config.resolve())] if config else [])]
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = Lock()
        self._closed = False

    def run(
        self, words: Sequence[str], folder: Path | None = None, tables: Sequence[Definition] = (), option: str = ""
    ) -> dict[str, Any]:
        """Run a command in ``folder``, or in an empty folder, and return its document with the key ``warnings``.

        Each table is passed as a job file, after ``option`` if that is not empty. Raises BadRequest, CommandFailed.
        """
        with tempfile.TemporaryDirectory(prefix="schedctl-") as scratch:
            for number, table in enumerate(tables, 1):
                file = _written(Path(scratch, f"{number}.toml"), table)
                words = [*words, *filter(None, [option]), str(file)]
            return self._run(words, folder or Path(scratch))

    def close(self) -> None:
        """End all running commands and refuse new ones."""
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
                env={**os.environ, **self._environment},
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
    """Write a job definition as TOML, and return the path. Raises BadRequest if TOML cannot express it."""
    import tomli_w

    try:
        path.write_text(tomli_w.dumps(table), encoding="utf-8")
    except (TypeError, ValueError, RecursionError) as error:
        raise BadRequest(f"a job file cannot hold the definition: {error}", "Leave out what is null") from None
    return path


def _answer(code: int, out: str, err: str) -> dict[str, Any]:
    """Return the document that a command printed, with its warnings. Raises CommandFailed for a code other than 0."""
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
    message = f"the command ended with {code}: {last}"
    raise CommandFailed({"kind": "CommandFailed", "message": message, "exit_code": code})
