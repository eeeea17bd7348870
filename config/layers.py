"""The layers of settings and their priority.

From lowest to highest: the shipped defaults, one file, credentials, the environment, overrides of the caller. Tables
are merged by key; all other values, including lists, are replaced as a whole. This module imports only the standard
library, because commands read a few keys from here without the settings model.
"""

import os
import stat
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from config.errors import ConfigError, Problem
from config.secret import is_secret
from jobs.problem import ProblemsFound, as_toml
from jobs.toml_file import placed, read_toml

# Not importlib.resources: its import takes longer than reading all files here, and installers unpack the package.
_FOLDER = Path(__file__).parent
SYSTEM_FILE = Path("/etc/uff-scheduler/config.toml")
PREFIX = "SCHEDCTL_"
FILE_VARIABLE = "SCHEDCTL_CONFIG"

# Relative paths are relative to the folder of the file that contains them.
_PATHS = (
    ("state_dir",),
    ("artifacts", "root"),
    ("models",),
    ("corpus", "sources"),
    ("logging", "file"),
    ("web", "bearer_file"),
    ("web", "actions_file"),
    ("export", "calendar"),
    ("export", "series"),
)
_OLD_KEYS = {("retention", "letters"): "messages"}  # a section and the old name of a key -> its present name
_NO_PATHS = {"", "stdlib"}
_NO_SECRETS = {"secrets", "credentials", "bearer_file", "actions_file"}  # they name a transport or a file


def shipped(name: str) -> Path:
    """Return the path of a shipped file such as ``models.toml`` or ``rehearsal.toml``."""
    return _FOLDER / name


@dataclass(slots=True)
class Layers:
    """All layers as (origin, document), lowest priority first, and their merged values.

    ``origins`` has the file or variable that set each dotted key. ``renamed`` has a problem for each key with an old
    name; old names are still accepted.
    """

    sources: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    renamed: list[Problem] = field(default_factory=list)

    def add(self, source: str, document: dict[str, Any]) -> None:
        """Add a layer with the highest priority."""
        for (section, old), new in _OLD_KEYS.items():
            table = document.get(section)
            if isinstance(table, dict) and old in table:
                why, remedy = f"this key is now called {section}.{new}", "rename it; the old name works"
                self.renamed.append(placed(Problem(source, f"{section}.{old}", as_toml(table[old]), why, remedy)))
                table.setdefault(new, table.pop(old))
        self.sources.append((source, document))
        self._merge(source, self.values, document, "")

    def origin(self, key: str) -> str:
        """Return the file or variable that set a dotted key, or the table or list around it."""
        while key and key not in self.origins:
            key = key.rpartition(".")[0]
        return self.origins.get(key, "default")

    def _merge(self, source: str, into: dict[str, Any], table: Mapping[str, Any], before: str) -> None:
        for name, value in table.items():
            self.origins[f"{before}{name}"] = source
            if isinstance(value, dict):
                inner = into.get(name, {})
                into[name] = inner if isinstance(inner, dict) else {}
                self._merge(source, into[name], value, f"{before}{name}.")
            else:
                into[name] = value


def read_layers(
    path: Path | None = None, environ: Mapping[str, str] | None = None, overrides: Mapping[str, Any] | None = None
) -> Layers:
    """Merge all layers. ``path`` replaces the file that ``SCHEDCTL_CONFIG`` or the system names.

    Raises ConfigError for files that cannot be read.
    """
    environ = os.environ if environ is None else environ
    layers = Layers()
    for file in _files(path, environ):
        try:
            document = read_toml(file)
        except ProblemsFound as error:
            raise ConfigError(error.problems) from None
        _refuse_writable(file)
        layers.add(str(file), _anchored(document, file.absolute().parent))
        if file == shipped("defaults.toml"):
            _add_state_folder(layers, environ)
    if environ.get("CREDENTIALS_DIRECTORY"):
        from config.credentials import read_credentials

        for key, secret, source in read_credentials(environ):
            layers.add(source, _inside_tables(key.split("."), secret))
    for name in sorted(environ):
        if name.startswith(PREFIX) and name != FILE_VARIABLE:
            keys = name.removeprefix(PREFIX).lower().split("__")
            layers.add(f"environment variable {name}", _anchored(_nested(keys, environ[name], name), Path.cwd()))
    layers.add("command line", _anchored(dict(overrides or {}), Path.cwd()))
    _derive(layers)
    return layers


def _add_state_folder(layers: Layers, environ: Mapping[str, str]) -> None:
    """Add systemd's state folder, else the one of XDG_STATE_HOME unless an older version's default is in use."""
    if by_systemd := environ.get("STATE_DIRECTORY", "").partition(":")[0]:
        layers.add("environment variable STATE_DIRECTORY", {"state_dir": by_systemd})
    elif home := environ.get("XDG_STATE_HOME"):
        folder, usual = Path(home) / "uff-scheduler", Path(str(layers.values["state_dir"])).expanduser()
        if Path(home).is_absolute() and (folder.exists() or not usual.exists()):
            layers.add("environment variable XDG_STATE_HOME", {"state_dir": str(folder)})


def _refuse_writable(file: Path) -> None:
    """Raise ConfigError for a file that other users of this machine may change, because its commands run as this user.

    In a folder that all users may write to, others can replace any file. In such a folder with the sticky bit they can
    only create a missing file.
    """
    for place in _on_the_way_to(file.absolute()):
        mode, folder_mode, owner = place.stat().st_mode, place.parent.stat().st_mode, place.lstat().st_uid
        if mode & stat.S_IWOTH and not (stat.S_ISDIR(mode) and mode & stat.S_ISVTX):
            why = "everybody on this machine may change it, and commands in it are run"
            raise ConfigError([Problem(str(file), "", "", why, f"run: chmod o-w {place}")])
        if folder_mode & stat.S_IWOTH and owner not in {0, os.geteuid()}:
            why = f"user {owner} put {place} there, and commands in it are run"
            raise ConfigError([Problem(str(file), "", "", why, "move your settings into a folder of your own")])


def _on_the_way_to(path: Path) -> Iterator[Path]:
    """Yield a file and all its folders, and before each link the path to its target."""
    for place in (path, *path.parents):
        if place.is_symlink():
            yield from _on_the_way_to(place.parent / place.readlink())
        yield place


def exposed_secrets(layers: Layers) -> list[Problem]:
    """Return the settings that contain a secret in a file that other users may read."""
    return [
        Problem(source, key, "", "others on this machine may read this secret", f"run: chmod 600 {source}")
        for source, document in layers.sources
        if Path(source).is_file() and Path(source).stat().st_mode & (stat.S_IRGRP | stat.S_IROTH)
        for key in _secret_keys("", document)
    ]


def _secret_keys(key: str, value: Any) -> Iterator[str]:
    match value:
        case dict():
            for name, inner in value.items():
                yield from _secret_keys(f"{key}.{name}" if key else name, inner)
        case list():
            for inner in value:
                yield from _secret_keys(key, inner)
        case str() if value and is_secret(key) and key.rpartition(".")[2] not in _NO_SECRETS:
            yield key


def _files(path: Path | None, environ: Mapping[str, str]) -> Iterator[Path]:
    yield shipped("defaults.toml")
    yield shipped("pools.toml")
    file = own_file(path, environ)
    if path is not None or environ.get(FILE_VARIABLE) or file.exists():
        yield file
    elif SYSTEM_FILE.exists():
        yield SYSTEM_FILE


def own_file(path: Path | None, environ: Mapping[str, str]) -> Path:
    """Return the file of the user's settings, existing or not: ``path``, that of the variable, or the default."""
    if path is None and environ.get(FILE_VARIABLE):
        path = Path(environ[FILE_VARIABLE])
    home = environ.get("XDG_CONFIG_HOME") or f"{environ.get('HOME', '')}/.config"
    return path.expanduser() if path is not None else Path(home) / "uff-scheduler" / "config.toml"


def _nested(keys: Iterable[str], text: str, name: str) -> dict[str, Any]:
    value: Any = text
    if text.lstrip().startswith(("[", "{")):
        try:
            value = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError as error:
            remedy = 'write it as in a file, for example ["a", "b"]'
            problem = Problem(f"environment variable {name}", "", "", f"is no TOML value: {error}", remedy)
            raise ConfigError([problem]) from None
    return _inside_tables(keys, value)


def _inside_tables(keys: Iterable[str], value: Any) -> dict[str, Any]:
    for key in reversed(list(keys)):
        value = {key: value}
    table: dict[str, Any] = value
    return table


def _anchored(document: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return the document with its relative paths made absolute."""
    for *tables, name in _PATHS:
        table: Any = document
        for key in tables:
            table = table.get(key) if isinstance(table, dict) else None
        if not isinstance(table, dict) or name not in table:
            continue
        value = table[name]
        table[name] = (
            [_absolute(item, folder) for item in value] if isinstance(value, list) else _absolute(value, folder)
        )
    url = document.get("database_url")
    if isinstance(url, str) and url.startswith("sqlite:///") and url[10:11] not in {"", "/", ":"}:
        document["database_url"] = f"sqlite:///{folder / url[10:]}"
    return document


def _absolute(value: Any, folder: Path) -> Any:
    if not isinstance(value, str) or value in _NO_PATHS:
        return value  # the settings model reports a value of a wrong type
    try:
        return str(folder / Path(value).expanduser())
    except RuntimeError:  # there is no home folder
        return value


def _derive(layers: Layers) -> None:
    """Derive settings from ``state_dir`` unless they are set."""
    state_dir, artifacts = layers.values.get("state_dir"), layers.values.get("artifacts")
    if not isinstance(state_dir, str):
        return
    if layers.values.get("database_url") == "":
        layers.add("derived from state_dir", {"database_url": f"sqlite:///{state_dir}/scheduler.db"})
    if isinstance(artifacts, dict) and artifacts.get("root") == "":
        layers.add("derived from state_dir", {"artifacts": {"root": f"{state_dir}/artifacts"}})
