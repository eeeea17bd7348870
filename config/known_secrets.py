"""Known secrets: values that no log line, error or page may show, from settings, environment and files.

Credential files are read again when they change, so that a new token is known at once. This module imports only the
standard library. It ignores unreadable files, because the code that needs a file reports the error.
"""

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path

from config.credentials import FOLDER
from config.database_address import address_secrets, password_file
from config.secret import is_secret
from jobs.payload.bounded_file import open_regular
from jobs.payload.redact import Redactor

_FILE_MAX_BYTES = 64 << 10
_VARIABLE = re.compile(
    r"(TOKEN|PASSWORD|PASSWD|PASSPHRASE|PASS|SECRET|KEY|PAT|CREDENTIALS?|AUTH|WEBHOOK(_URL)?|ACCESS_KEY_ID)(_\d+)?$",
    re.IGNORECASE,
)
# Where the tools that we use keep their credentials, below the home folder.
_HOMES = (".kaggle/access_token", ".kaggle/kaggle.json", ".aws/credentials", ".aws/config", ".pgpass")
_LINE = re.compile(r"^\s*([\w.-]+)\s*=\s*(\S.*?)\s*$", re.MULTILINE)
_PIECES = re.compile(r"[@/:?#&=,\s]")
_TOKEN = re.compile(r"(?=.*\d)(?![\d.]+$)[^.]{8,}|[^.]{20,}")  # no host name, and no word of a path
_FILE_KEYS = {"credentials", "bearer_file", "actions_file", "token_file"}  # settings that name a file
# Settings whose value names a transport, a variable or a file, not the secret itself: a pool's `secrets = "dataset"`, a
# job's list of variables. Redacting such words would blank every line that contains them.
_NAMES = re.compile(r"(secrets|.*_(file|env|name))$", re.IGNORECASE)


class KnownSecrets(Redactor):
    """Redacts the secrets of ``settings``, of the environment, and of the credential files that these name.

    ``settings`` are plain tables or models; ``words`` are further texts that may contain an address with a password.
    """

    def __init__(self, settings: object, environ: Mapping[str, str], words: Iterable[str] = ()) -> None:
        addresses = [text for text in (*words, *environ.values()) if "://" in text]
        self._fixed = {
            *_in_settings(settings),
            *(secret for address in addresses for secret in address_secrets(address)),
            *(text for name, text in environ.items() if _VARIABLE.search(name) and not _is_path(text)),
        }
        self._named = {*_files(settings), *_usual_files(environ)}
        self._folders = [*_folders(settings, environ)]
        self._states: dict[Path, object] = {}
        super().__init__(self._fixed)
        self._refresh()

    def each(self, texts: Iterable[str]) -> list[str]:
        """Return the texts with every secret redacted that the files contain now."""
        self._refresh()
        return super().each(texts)

    @property
    def places(self) -> list[Path]:
        """The credential files, existing or not, and the folders that contain only such files."""
        return [*sorted(self._named), *self._folders]

    def _refresh(self) -> None:
        # List the folders again, because a file may have been added.
        files = (*self._named, *(file for folder in self._folders for file in _inside(folder)))
        states = {file: _state(file) for file in files}
        if states != self._states:
            # A replaced value may still appear in texts, so old values are kept.
            self._fixed |= {secret for file in states for secret in secrets_of_file(file)}
            self.know(self._fixed)
            self._states = states


def secrets_of_file(file: Path) -> set[str]:
    """Return the secrets in a credential file: JSON, INI, lines in PostgreSQL's format, or a bare token."""
    try:
        with open_regular(file) as stream:
            text = stream.read(_FILE_MAX_BYTES).decode("utf-8", "replace").strip()
    except OSError:
        return set()
    if text.startswith("{"):
        try:
            return {text, *_in_settings(json.loads(text))}
        except (ValueError, RecursionError):
            return {text}
    named = {value for name, value in _LINE.findall(text) if is_secret(name) or _VARIABLE.search(name)}
    if text.startswith("["):
        return named
    lines = text.splitlines()
    fields = (re.split(r"(?<!\\):", line) for line in lines)
    passwords = {re.sub(r"\\(.)", r"\1", last) for *place, last in fields if len(place) == 4}
    return {text, *lines, *named, *passwords, *(address_secrets(text) if "://" in text else ())}


def _leaves(value: object, name: str) -> Iterator[tuple[str, str | Path]]:
    """Yield the texts and paths in tables, lists and models, at any depth, each with the name of its key."""
    match value:
        case str() | Path():
            yield name, value
        case Mapping():
            for key, inner in value.items():
                yield from _leaves(inner, str(key))
        case list() | tuple():
            for inner in value:
                yield from _leaves(inner, name)
        case _ if hasattr(value, "get_secret_value"):
            yield from _leaves(value.get_secret_value(), name)
        case _:
            names = [each.name for each in fields(value)] if is_dataclass(value) else _fields_of_model(value)
            for inner in names:
                yield from _leaves(getattr(value, inner), inner)


def _in_settings(settings: object) -> Iterator[str]:
    """Yield the secrets in tables, lists and models, at any depth."""
    for name, value in _leaves(settings, ""):
        if isinstance(value, Path):
            continue
        if name == "database_url" or "://" in value:
            yield from address_secrets(value)
        if name == "key" or _holds_secret(name):
            yield value
            if "://" in value:
                # Libraries' errors may contain a piece of an address that is secret as a whole, such as a token in its
                # path.
                yield from (piece for piece in _PIECES.split(value.partition("://")[2]) if _TOKEN.fullmatch(piece))


def _holds_secret(name: str) -> bool:
    """Return whether a setting of this name contains a secret, not the name of one."""
    if name in {"database_url", *_FILE_KEYS}:
        return False
    return is_secret(name) and _NAMES.match(name) is None


def _files(settings: object) -> Iterator[Path]:
    for name, value in _leaves(settings, ""):
        if name in _FILE_KEYS and str(value):
            yield Path(os.path.expanduser(value))  # noqa: PTH111 - pathlib's raises without a home folder
        if name == "database_url" and (file := password_file(str(value))):
            yield Path(file)


def _usual_files(environ: Mapping[str, str]) -> Iterator[Path]:
    if home := environ.get("HOME"):
        yield from (Path(home) / name for name in _HOMES)
    if folder := environ.get("KAGGLE_CONFIG_DIR"):
        yield Path(folder) / "kaggle.json"
    # KAGGLE_API_TOKEN may be a token or a file of one; AWS_SHARED_CREDENTIALS_FILE and PGPASSFILE are files.
    yield from (Path(text) for name, text in environ.items() if _is_path(text) and _names_secrets(name))


def _folders(settings: object, environ: Mapping[str, str]) -> Iterator[Path]:
    """Yield the folders that contain only credential files."""
    if folder := environ.get("CREDENTIALS_DIRECTORY"):
        yield Path(folder)
    state_dir = settings.get("state_dir") if isinstance(settings, Mapping) else getattr(settings, "state_dir", None)
    if isinstance(state_dir, str | Path) and str(state_dir):
        yield Path(state_dir) / FOLDER


def _inside(folder: Path) -> Iterator[Path]:
    try:
        yield from folder.iterdir()
    except OSError:
        return


def _names_secrets(name: str) -> bool:
    return bool(_VARIABLE.search(re.sub(r"_(FILE|PATH)$", "", name))) or name in {"PGPASSFILE", "AWS_CONFIG_FILE"}


def _is_path(text: str) -> bool:
    return text.startswith(("/", "~", "./"))


def _fields_of_model(value: object) -> Iterable[str]:
    return getattr(type(value), "model_fields", ())


def _state(file: Path) -> object:
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns
