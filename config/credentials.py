"""Credentials: secrets that the service manager passes as files. The name of a file says what it is for.

A file ``report.smtp.password`` in the folder of CREDENTIALS_DIRECTORY sets the setting with this key. Files with names
of variables (``HF_TOKEN``) are secrets that jobs may name; they may also be in the folder ``credentials`` of the state
folder. Other files (``kaggle``, ``aws``, ``web``) are read by the modules that need them. This module imports only the
standard library, like config.layers.
"""

import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from config.errors import ConfigError, Problem
from config.secret import is_secret
from jobs.payload.bounded_file import read_bounded

_HUB = "HF_TOKEN"
VARIABLE = "CREDENTIALS_DIRECTORY"
FOLDER = "credentials"  # in the state folder


def read_credentials(environ: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Yield (dotted key, secret, origin) of every credential that is a setting. Raises ConfigError."""
    folder = environ.get(VARIABLE)
    if not folder:
        return
    try:
        names = sorted(os.listdir(folder))  # noqa: PTH208 - only names are needed
    except OSError as error:
        why = f"the folder of credentials cannot be read: {error.strerror}"
        raise ConfigError([Problem(folder, "", "", why, f"unset {VARIABLE}, or let this user read it")]) from None
    for name in filter(_is_setting, names):
        yield name, _secret(Path(folder) / name), f"credential {name}"


def credential_files(environ: Mapping[str, str], state_dir: Path) -> list[Path]:
    """Return the files of settings and of secrets of jobs, for a caller to watch. Unreadable folders are skipped."""
    handed_over, files = environ.get(VARIABLE), []
    for folder in secret_folders(environ, state_dir):
        with suppress(OSError):
            inside = list(folder.iterdir())
            files += [path for path in inside if path.name.isupper()]
            files += [path for path in inside if str(folder) == handed_over and _is_setting(path.name)]
    return sorted(files)


def secret_folders(environ: Mapping[str, str], state_dir: Path) -> list[Path]:
    """Return the folders that are searched for secrets of jobs, in order."""
    handed_over = environ.get(VARIABLE)
    return [*([Path(handed_over)] if handed_over else []), state_dir / FOLDER]


def read_secret(name: str, environ: Mapping[str, str], state_dir: Path) -> str:
    """Return the secret with the name ``name``. Raises ConfigError with one problem and its remedy.

    ``state_dir`` is the daemon's state folder.
    """
    return _secret(_credential_path(name, environ, state_dir))


def credential_file(name: str, environ: Mapping[str, str], state_dir: Path) -> Path:
    """Return the file of a credential for another program, such as an ssh key, which may have many lines.

    ``name`` is a credential's name, or a path with a ``/``. Raises ConfigError, also if other users may read the file.
    """
    file = Path(name).expanduser() if "/" in name else _credential_path(name, environ, state_dir)
    try:
        status = file.stat()
    except OSError as error:
        raise _unusable(file, f"the credential cannot be read: {error.strerror}", "let this user read it") from None
    _keep_private(file, status)
    return file


def hub_token(environ: Mapping[str, str], state_dir: Path) -> str:
    """Return the token for repositories of the Hub: the credential HF_TOKEN, else the variable; "" if there is neither.

    Raises ConfigError for an unusable credential.
    """
    if any((folder / _HUB).exists() for folder in secret_folders(environ, state_dir)):
        return read_secret(_HUB, environ, state_dir)
    return environ.get(_HUB, "")


def _is_setting(name: str) -> bool:
    return name == "database_url" or ("." in name and is_secret(name))


def _secret(file: Path) -> str:
    """Return the content of a file without its last line break."""
    try:
        status = file.stat()
        text = read_bounded(file).decode("utf-8-sig").removesuffix("\n")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else "it is not text"
        raise _unusable(file, f"the credential cannot be read: {why}", "let this user read a file of text") from None
    _keep_private(file, status)
    if not text or "\n" in text:
        raise _unusable(file, "a credential must be one line", "write only the secret into the file")
    return text


def _credential_path(name: str, environ: Mapping[str, str], state_dir: Path) -> Path:
    """Return the file of a credential by its name. Raises ConfigError."""
    folders = secret_folders(environ, state_dir)
    file = next((folder / name for folder in folders if (folder / name).exists()), None)
    if file is None:
        remedy = f"(umask 077; mkdir -p {folders[-1]}; cat > {folders[-1] / name}), paste it, then Ctrl-D"
        raise _unusable(folders[0] / name, "there is no such credential", remedy)
    return file


def _keep_private(file: Path, status: os.stat_result) -> None:
    """Raise ConfigError if other users may read a credential."""
    # Credential files of systemd belong to root. The ACL that lets the service's user read them appears as a group
    # permission, so for such files only the permissions of others count.
    others = stat.S_IRWXO if status.st_uid != os.geteuid() else stat.S_IRWXO | stat.S_IRWXG
    if status.st_mode & others:
        raise _unusable(file, "others may read the credential", f"run: chmod 600 {file}")


def _unusable(file: Path, why: str, remedy: str) -> ConfigError:
    return ConfigError([Problem(str(file), "", "", why, remedy)])
