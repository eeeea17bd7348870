"""Clients of AWS and of compatible servers, with explicit retries, limits and credentials, and errors of the store."""

import os
import re
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from jobs.payload.clock import stopwatch
from platforms.artifacts.base import PREFIX, Missing, StoreError, StoreUnreachable
from platforms.options import Written
from platforms.record_file import fingerprint

if TYPE_CHECKING:
    from botocore.exceptions import ClientError


# All attempts of a request, after throttling or a broken connection. Explicit, as botocore's default has changed.
_ATTEMPTS = 6
_CONNECTIONS = 16
_DEFAULT_PROFILE = "default"  # the section of a credentials file that is used without a profile

# Only one thread at a time may create a client, because all clients share the loader, which is not thread-safe.
_creation = threading.Lock()

# S3's error codes by their meaning. Some servers send the HTTP status as the code.
EXISTS = frozenset({"PreconditionFailed", "412"})
CONTENDED = frozenset({"ConditionalRequestConflict", "409"})
NO_UPLOAD = frozenset({"NoSuchUpload"})

_MISSING = frozenset({"NoSuchKey", "404", "NotFound"})
_DENIED = frozenset({"AccessDenied", "403", "Forbidden", "AllAccessDisabled"})
_CREDENTIALS = frozenset({
    "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken", "TokenRefreshRequired",
})  # fmt: skip
_REGION = frozenset({"PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException", "301"})
_RIGHTS = {
    "create": "s3:PutObject and s3:AbortMultipartUpload",
    "write": "s3:PutObject",
    "list": "s3:ListBucket",
    "delete": "s3:DeleteObject",
    "sweep": "s3:ListBucketMultipartUploads and s3:AbortMultipartUpload",
}
_BUCKET = re.compile(r"[A-Za-z0-9._-]{1,255}|arn:aws[a-z0-9-]*:[A-Za-z0-9:/._-]{1,300}", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class S3Options:
    """The options of an object store in a bucket; docs/inside/store.md explains each.

    ``bucket`` is in botocore's form, also for servers other than AWS. ``prefix`` precedes all keys.
    """

    region: str
    bucket: Annotated[str, Written(form=_BUCKET, remedy="Write the bucket's name, or an ARN of its access point")]
    prefix: Annotated[str, Written(form=PREFIX, remedy="Write plain words that end with '/', like uff/")] = ""
    endpoint: str = ""
    profile: str = ""
    credentials: str = ""

    def client(self, service: str = "s3", credentials: str = "") -> Any:
        """Return a client of an AWS service, with another file of ``credentials`` if given; see connect."""
        file = credentials or self.credentials
        return connect(service, region=self.region, endpoint=self.endpoint, profile=self.profile, credentials=file)


def credential_files(credentials: str, environ: Mapping[str, str]) -> list[Path]:
    """Return the files that a client reads credentials from: the file ``credentials``, or the two usual ones of AWS."""
    if credentials:
        return [Path(credentials)]
    usual = (("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials"), ("AWS_CONFIG_FILE", "~/.aws/config"))
    return [Path(environ.get(variable) or default).expanduser() for variable, default in usual]


class FreshCredentials:
    """Credentials that a client reads for each request; it looks them up again after their files change.

    ``look_up`` returns botocore's credentials or None; ``mark`` returns a value that changes with the files.
    """

    method = "files"

    def __init__(self, look_up: Callable[[], Any], mark: Callable[[], str]) -> None:
        self._look_up = look_up
        self._mark = mark
        self._lock = threading.Lock()
        self._credentials: Any = None
        self._credentials_mark = ""

    def load_credentials(self) -> "FreshCredentials":
        """Return the credentials, as a provider of botocore does."""
        return self

    def get_frozen_credentials(self) -> Any:
        """Return the keys that sign one request; None without credentials. Raises botocore's ProfileNotFound."""
        newest = self._newest()
        return None if newest is None else newest.get_frozen_credentials()

    def get_deferred_property(self, name: str) -> Callable[[], Any]:
        """Return a function that looks up one field of the credentials when it is called."""
        return lambda: getattr(self._newest(), name, None)

    def __getattr__(self, name: str) -> Any:
        """Return a field of the credentials, for callers that do not freeze them first."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._newest(), name)

    def _newest(self) -> Any:
        with self._lock:
            mark = self._mark()
            if self._credentials is None or mark != self._credentials_mark:
                self._credentials, self._credentials_mark = self._look_up(), mark
            return self._credentials


def connect(service: str, *, region: str, endpoint: str = "", profile: str = "", credentials: str = "") -> Any:
    """Return a client of ``service``, which any number of threads may use.

    Credentials come from the file ``credentials`` (in AWS's format, section ``profile`` or ``default``), else from
    ``profile``, else from the usual chain of AWS. An ``endpoint`` means a server other than AWS: its buckets are
    addressed by path, and bodies are sent without waiting for "100 Continue". A request has a checksum only if its
    operation requires one or its caller passes one. Raises botocore's ProfileNotFound, and ValueError for a missing
    credentials file or an invalid endpoint.
    """
    import boto3
    import botocore.session
    from botocore.config import Config

    config = Config(
        retries={"mode": "standard", "total_max_attempts": _ATTEMPTS},
        connect_timeout=10,
        read_timeout=30,
        max_pool_connections=_CONNECTIONS,
        signature_version="s3v4" if service == "s3" else None,
        s3={"addressing_style": "path" if endpoint else "auto"},
        request_checksum_calculation="when_required",
        response_checksum_validation="when_supported",
    )
    if credentials and not Path(credentials).is_file():
        raise ValueError(f"there is no credentials file {credentials}")
    if credentials:
        # A named profile has priority over the environment's credentials; without one they would override the file.
        profile = profile or _DEFAULT_PROFILE

    def chain() -> Any:
        """Return a new session with AWS's usual chain. It caches its files, so a change of them needs a new one."""
        core = botocore.session.Session(profile=profile or None)
        if credentials:
            core.set_config_variable("credentials_file", credentials)
        return core

    core = chain()
    core.register_component("data_loader", _loader())
    files = credential_files(credentials, os.environ)
    core.register_component(
        "credential_provider", FreshCredentials(lambda: chain().get_credentials(), lambda: fingerprint(files))
    )
    session = boto3.session.Session(botocore_session=core, profile_name=profile or None, region_name=region)
    with _creation:
        client = session.client(service, endpoint_url=endpoint or None, config=config)
    limit_exchanges(client)
    if endpoint:
        client.meta.events.register_last("before-call.s3", _remove_expect)
    return client


def _remove_expect(params: dict[str, Any], **_: Any) -> None:
    """Remove "Expect: 100-continue": simple servers do not answer it, which delays each object by a second."""
    params["headers"].pop("Expect", None)


@cache
def _loader() -> Any:
    """Return the loader of AWS's service descriptions, cached because loading them takes a third of a second."""
    import botocore.loaders

    return botocore.loaders.create_loader()


# Translate errors of S3 into those of the store.
def code_of(error: "ClientError") -> str:
    """Return AWS's code of an error."""
    return str(error.response.get("Error", {}).get("Code", ""))


@contextmanager
def translated(action: str, key: str, bucket: str) -> Iterator[None]:
    """Translate errors of the S3 client into StoreError and its subclasses."""
    from botocore.exceptions import ClientError, NoCredentialsError, PartialCredentialsError

    try:
        yield
    except StoreError:
        raise
    except ClientError as error:
        raise _store_error(action, key, bucket, error) from error
    except (NoCredentialsError, PartialCredentialsError) as error:
        remedy = "Give the daemon credentials by a profile, a role or the environment; see docs/inside/store.md"
        raise StoreError(action, key, str(error), remedy) from error
    except Exception as error:  # malformed numbers or dates and missing fields raise arbitrary errors
        why = f"{type(error).__name__}: {error}"
        raise StoreUnreachable(action, key, why, "Check the endpoint and the network") from error


def _store_error(action: str, key: str, bucket: str, error: "ClientError") -> StoreError:
    code = code_of(error)
    why = str(error.response.get("Error", {}).get("Message") or code)
    if code in EXISTS:
        return StoreUnreachable(action, key, "it changed meanwhile", "Try again when no other program writes there")
    if code in _MISSING:
        return Missing(action, key, "there is no such object")
    if code == "NoSuchBucket":
        return StoreError(action, key, f"there is no bucket {bucket}", "Create it, or correct artifacts.options.bucket")
    if code in _DENIED:
        right = _RIGHTS.get(action, "s3:GetObject and s3:ListBucket")
        return StoreError(action, key, f"access to bucket {bucket} is denied", f"Grant {right} to the daemon")
    if code in _CREDENTIALS:
        return StoreError(action, key, f"{code}: {why}", "Correct or renew the daemon's credentials")
    if code in _REGION:
        return StoreError(action, key, f"{code}: {why}", f"Set artifacts.options.region to the region of {bucket}")
    if code == "RequestTimeTooSkewed":
        return StoreError(action, key, why, "Synchronise this machine's clock with NTP")
    return StoreUnreachable(action, key, f"{code}: {why}")


# A total time limit for each exchange of botocore, however slowly the server sends.
#
# The timeouts of botocore apply to single socket calls, its connections serve many exchanges, and a response is
# returned before its body has arrived. So the sockets measure each exchange, from the first byte of the request to the
# last byte of the response.
_EXCHANGE_SECONDS = 60  # for an exchange, or for each piece of a long one
_PIECE_BYTES = 1 << 18
_ANSWER_BYTES_MAX = 64 << 20  # no part of an object and no page of a listing is longer


class _LimitedSocket(socket.socket):
    """Raises TimeoutError if an exchange takes too long; the socket's own timeout applies to single calls."""

    _is_request = False
    _piece_bytes = _answer_bytes = 0
    _ends_at = 0.0

    def sendall(self, data: Any, flags: int = 0) -> None:
        """Send everything. A new exchange begins with the first byte sent after a response."""
        if not self._is_request:
            self._is_request, self._answer_bytes = True, 0
            self._renew()
        super().sendall(data, flags)
        self._count(len(data))

    def recv_into(self, buffer: Any, nbytes: Any = None, flags: int = 0) -> int:
        """Receive available bytes. Raises OSError also if the response is longer than any valid one."""
        self._is_request = False
        count = super().recv_into(buffer, nbytes or len(buffer), flags)
        self._answer_bytes += count
        if self._answer_bytes > _ANSWER_BYTES_MAX:
            raise OSError(f"the answer is longer than {_ANSWER_BYTES_MAX:,} bytes")
        self._count(count)
        return count

    def _count(self, count: int) -> None:
        if stopwatch() > self._ends_at:
            raise TimeoutError(f"no whole answer within {_EXCHANGE_SECONDS} s")
        self._piece_bytes += count
        if self._piece_bytes >= _PIECE_BYTES:
            self._renew()

    def _renew(self) -> None:
        self._piece_bytes, self._ends_at = 0, stopwatch() + _EXCHANGE_SECONDS


class _LimitedTlsSocket(_LimitedSocket, ssl.SSLSocket):
    """A limited socket with TLS; one time limit applies to the whole handshake."""


class _LimitedConnection:
    def _new_conn(self) -> socket.socket:
        if context := getattr(self, "ssl_context", None):
            context.sslsocket_class = _LimitedTlsSocket
        opened: socket.socket = super()._new_conn()  # type: ignore[misc] # botocore's connection class comes next
        seconds = opened.gettimeout()
        limited = _LimitedSocket(opened.family, opened.type, opened.proto, opened.detach())
        limited.settimeout(seconds)
        return limited


def limit_exchanges(client: Any) -> None:
    """Set the time limit for every exchange of a client."""
    # Botocore has no public access to its connections. It opens them, also those to a proxy, by these classes.
    pools = client._endpoint.http_session._pool_classes_by_scheme  # noqa: SLF001 - see above
    for scheme, pool in pools.items():
        connection = type("Connection", (_LimitedConnection, pool.ConnectionCls), {})
        pools[scheme] = type("Pool", (pool,), {"ConnectionCls": connection})
