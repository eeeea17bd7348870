"""Credentials: settings that the service manager hands over as files, one for each, named by the setting's key.

``report.smtp.password`` in the folder that CREDENTIALS_DIRECTORY names is the setting of this key. Files of other
names (``kaggle``, ``aws``, ``web``) belong to those who know them. Standard library only, as config.layers.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from config.errors import ConfigError, Problem
from config.secret import is_secret

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

VARIABLE = "CREDENTIALS_DIRECTORY"


def read_credentials(environ: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Yield (dotted key, secret, origin) of every credential that is a setting. Raises ConfigError."""
    folder = environ.get(VARIABLE)
    if not folder:
        return
    try:
        names = sorted(os.listdir(folder))  # noqa: PTH208 - names are all that is wanted
    except OSError as error:
        why = f"the folder of credentials cannot be read: {error.strerror}"
        raise ConfigError([Problem(folder, "", "", why, f"unset {VARIABLE}, or let this user read it")]) from None
    for name in filter(_is_setting, names):
        yield name, _secret(Path(folder) / name), f"credential {name}"


def credential_files(environ: Mapping[str, str]) -> list[Path]:
    """Return the files that are settings, for whoever wants to know when they change; none when nothing can be told."""
    folder = environ.get(VARIABLE)
    try:
        return sorted(path for path in Path(folder).iterdir() if _is_setting(path.name)) if folder else []
    except OSError:
        return []


def _is_setting(name: str) -> bool:
    return name == "database_url" or ("." in name and is_secret(name))


def _secret(file: Path) -> str:
    """Return what a file holds but for its last line break."""
    try:
        found = file.stat()
        text = file.read_text(encoding="utf-8").removesuffix("\n")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else "it is no text"
        raise _wrong(file, f"the credential cannot be read: {why}", "let this user read a file of text") from None
    # The service manager gives its files to root and lets one user read them, which shows as a right of the group.
    others = stat.S_IRWXO if found.st_uid != os.geteuid() else stat.S_IRWXO | stat.S_IRWXG
    if found.st_mode & others:
        raise _wrong(file, "others may read the credential", f"run: chmod 600 {file}")
    if not text or "\n" in text:
        raise _wrong(file, "a credential is one line, and this is not", "write the secret alone into the file")
    return text


def _wrong(file: Path, why: str, remedy: str) -> ConfigError:
    return ConfigError([Problem(str(file), "", "", why, remedy)])
