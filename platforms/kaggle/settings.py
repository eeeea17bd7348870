"""The settings of a Kaggle pool, and its credentials."""

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from jobs.payload.bounded_file import read_bounded
from jobs.payload.bounds import read_json
from platforms.base import Misconfigured, SecretWay
from platforms.options import Written, read_options

_SYSTEMD_NAME = "kaggle"
_ADVICE = (
    "Put an access token, or Kaggle's kaggle.json, into a file that only the daemon's user can read and name it with "
    "the option credentials, or hand it over with LoadCredential=kaggle:FILE. See docs/kaggle.md"
)


# Our credentials on Kaggle: an access token or a legacy key, from a file or the environment.
@dataclass(frozen=True, slots=True)
class Credentials:
    """Either ``token``, or ``username`` with ``key``. ``origin`` says in messages where they come from."""

    origin: str
    token: str = field(default="", repr=False)
    username: str = ""
    key: str = field(default="", repr=False)


def read_credentials(path: str, environ: Mapping[str, str]) -> Credentials:
    """Return the credentials of the first source that has any; raises Misconfigured.

    In order: the file ``path``, the service manager's credential ``kaggle``, KAGGLE_API_TOKEN (a token or a file),
    KAGGLE_USERNAME with KAGGLE_KEY, then ``access_token`` and ``kaggle.json`` of the configuration folders.
    """
    if path:
        return _from_file(Path(path).expanduser(), private=True)
    from_systemd = Path(environ.get("CREDENTIALS_DIRECTORY", "")) / _SYSTEMD_NAME
    if environ.get("CREDENTIALS_DIRECTORY") and from_systemd.is_file():
        return _from_file(from_systemd, private=False)  # the service manager is responsible for its mode
    token = environ.get("KAGGLE_API_TOKEN", "").strip()
    username, key = (environ.get(name, "").strip() for name in ("KAGGLE_USERNAME", "KAGGLE_KEY"))
    if token and (username or key):
        raise _error("KAGGLE_API_TOKEN and KAGGLE_USERNAME or KAGGLE_KEY are set together; unset one of the two kinds")
    if token:
        if os.sep in token and Path(token).is_file():
            return _from_file(Path(token), private=True)
        return _token("the environment", token)
    if username or key:
        return _legacy("the environment", username, key)
    if file := next(filter(Path.is_file, _usual_files(environ)), None):
        return _from_file(file, private=True)
    raise _error(f"no credentials found. {_ADVICE}")


def files(settings: Mapping[str, str], environ: Mapping[str, str]) -> list[Path]:
    """Return the paths that credentials of a pool with these settings may come from, also of missing files."""
    if settings.get("credentials"):
        return [Path(settings["credentials"]).expanduser()]
    paths = _usual_files(environ)
    if environ.get("CREDENTIALS_DIRECTORY"):
        paths.append(Path(environ["CREDENTIALS_DIRECTORY"]) / _SYSTEMD_NAME)
    token = environ.get("KAGGLE_API_TOKEN", "").strip()
    return [*paths, Path(token)] if os.sep in token else paths


def _usual_files(environ: Mapping[str, str]) -> list[Path]:
    home = Path(environ.get("HOME", "~")).expanduser() / ".kaggle"
    return [home / "access_token", Path(environ.get("KAGGLE_CONFIG_DIR", home)) / "kaggle.json"]


def _from_file(path: Path, *, private: bool) -> Credentials:
    try:
        mode = path.stat().st_mode
        text = read_bounded(path).decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise _error(f"{path} cannot be read: {error}. {_ADVICE}") from None
    if private and mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise _error(f"others may read {path}. Run: chmod 600 {path}")
    if not text.startswith("{"):
        return _token(str(path), text)
    try:
        document = read_json(text)
        return _legacy(str(path), str(document["username"]), str(document["key"]))
    except (ValueError, KeyError):
        raise _error(f"{path} holds no JSON object with username and key. {_ADVICE}") from None


def _token(origin: str, token: str) -> Credentials:
    if not token or not token.isascii() or any(character.isspace() for character in token):
        raise _error(f"{origin} holds no access token: it is empty or has spaces in it. {_ADVICE}")
    return Credentials(origin, token=token)


def _legacy(origin: str, username: str, key: str) -> Credentials:
    if not username or not key:
        raise _error(f"{origin} holds only one of username and key. {_ADVICE}") from None
    return Credentials(origin, username=username, key=key)


def _error(why: str) -> Misconfigured:
    return Misconfigured("kaggle", "log in", why)


@dataclass(frozen=True, slots=True)
class KaggleSettings:
    """A pool's settings; docs/kaggle.md explains each. Seconds are real, except ``keep_inputs_seconds``."""

    credentials: str = ""
    machine_shape: str = "NvidiaTeslaT4"
    internet: Annotated[bool, Written(words=("on", "off"))] = True
    secrets: Literal["off", "dataset", "account"] = "off"
    checkpoints: Literal["auto", "relay", "direct"] = "auto"
    force_stop: Literal["cancel", "delete"] = "cancel"
    slug_prefix: str = ""
    dataset_prefix: str = "uff"
    emulator: str = ""
    call_seconds: Annotated[int, Written(least=1)] = 30
    upload_seconds: Annotated[int, Written(least=1)] = 200
    push_seconds: Annotated[int, Written(least=1)] = 300
    settle_seconds: int = 60
    ready_seconds: int = 600
    keep_inputs_seconds: Annotated[int, Written("keep_inputs_days", 86_400)] = 7 * 86_400
    tries: Annotated[int, Written(least=1)] = 3
    pause_seconds: Annotated[float, Written("pause_milliseconds", 0.001)] = 1.0
    idle_seconds: Annotated[float, Written("idle_milliseconds", 0.001, least=1)] = 2.0

    @property
    def quota(self) -> Literal["gpu", "tpu"]:
        """The hours of the account that sessions use; CPU kernels use none."""
        return "tpu" if self.machine_shape.startswith("Tpu") else "gpu"

    def relays(self, store_kind: str) -> bool:
        """Return whether sessions cannot reach an artifact store of this kind directly; "" means no store."""
        out_of_reach = store_kind == "directory" or not self.internet
        return bool(store_kind) and (self.checkpoints == "relay" or (self.checkpoints == "auto" and out_of_reach))


def secret_way(settings: Mapping[str, str]) -> SecretWay:
    """Return how sessions get secrets; by default they get none. Raises Misconfigured."""
    match read_settings(settings).secrets:
        case "dataset":
            return SecretWay("given")
        case "account":
            return SecretWay("asked")
        case "off":
            remedy = 'Read docs/security.md, then set secrets = "dataset" among its options'
            return SecretWay("none", "Kaggle stores secrets for a while, so the pool gives none by default", remedy)


def read_settings(settings: Mapping[str, str]) -> KaggleSettings:
    """Return the settings of a pool. Raises Misconfigured for unknown names and bad values."""
    return read_options("kaggle", KaggleSettings, settings)
