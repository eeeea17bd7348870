"""Secrets of a session: values that its commands get as variables, and that no output may show.

Some platforms pass the secrets in one environment variable of the agent, which removes it before it starts a process.
Otherwise the launch document names a secret store of AWS, which the session reads with its own role.
"""

import hashlib
import hmac
import json
import os
import urllib.request
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from http.client import HTTPException
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from ..clock import Clock
from ..deadline import exchange
from ..log import hidden
from .failure import Failure

VARIABLE = "SCHED_SECRETS"
"""The environment variable with all secrets of a session, by name, as JSON."""


class SecretStore(NamedTuple):
    """A secret store: ``kind`` is ``ssm`` or ``secretsmanager``; ``endpoint`` is empty for AWS itself."""

    kind: str
    prefix: str
    region: str
    endpoint: str


def pop_secrets() -> dict[str, str]:
    """Remove the passed secrets from the environment, and return them by name. Raises ValueError if invalid."""
    text = os.environ.pop(VARIABLE, "")
    try:
        values = json.loads(text) if text else {}
    except ValueError:
        values = None
    if not isinstance(values, dict) or not all(isinstance(value, str) for value in values.values()):
        raise ValueError(f"{VARIABLE} does not hold texts by name")  # without the cause, which would quote a secret
    hidden.know(values.values())
    return values


def secrets_of(names: Sequence[str], values: Mapping[str, str], store: SecretStore | None) -> dict[str, str]:
    """Return the secrets of a lane's command, by name. Raises Failure."""
    if store is None or not names:
        if missing := [name for name in names if name not in values]:
            raise Failure("secret", f"the session was not given {', '.join(missing)}; see: schedctl doctor")
        return {name: values[name] for name in names}
    try:
        fetched = fetch(store, names)
    except SecretRefusal as error:
        raise Failure("secret", str(error)) from None
    except OSError as error:
        raise Failure("network", f"AWS does not answer the request for {', '.join(names)}: {error}") from None
    hidden.know([*values.values(), *fetched.values()])
    return fetched


# Secrets from AWS: requests to Systems Manager or Secrets Manager, signed with the session's own role.
#
# The signature (version 4) follows "Create a signed AWS API request" in AWS's documentation. The credentials of
# containers follow "Container credential provider" of the SDK reference. Any image has the modules that this needs.
_TIMEOUT_SECONDS = 30
_ANSWER_BYTES_MAX = 4 << 20
_TRIES = 3
_CONTAINER = "http://169.254.170.2"  # where ECS and SageMaker provide the credentials of a role
_ERROR_TEXT_MAX = 300  # characters of an answer


class SecretRefusal(Exception):
    """AWS refused a secret, or its answer is unusable. The message says why and what to do."""


class Keys(NamedTuple):
    """Credentials of a role."""

    access: str
    secret: str
    token: str


def fetch(store: SecretStore, names: Sequence[str]) -> dict[str, str]:
    """Return the secrets ``names`` from AWS. Raises SecretRefusal, and OSError if there is no answer."""
    keys = _keys(os.environ)
    full = {f"{store.prefix}{name}": name for name in names}
    if store.kind == "ssm":
        answer = _query(store, keys, "AmazonSSM.GetParameters", {"Names": list(full), "WithDecryption": True})
        result = {full[entry["Name"]]: str(entry["Value"]) for entry in answer.get("Parameters", ())}
        if missing := [place for place, name in full.items() if name not in result]:
            why = f"Systems Manager has no parameter {', '.join(missing)} in {store.region}"
            raise SecretRefusal(f"{why}. Create it: aws ssm put-parameter --type SecureString --name {missing[0]}")
        return result
    result = {}
    for place, name in full.items():
        value = _query(store, keys, "secretsmanager.GetSecretValue", {"SecretId": place}).get("SecretString")
        if not isinstance(value, str):
            raise SecretRefusal(f"the secret {place} is not a text. Store it as a secret string")
        result[name] = value
    return result


def _query(store: SecretStore, keys: Keys, target: str, document: Mapping[str, Any]) -> dict[str, Any]:
    host = f"{store.kind}.{store.region}.amazonaws.com{'.cn' if store.region.startswith('cn-') else ''}"
    address = (store.endpoint or f"https://{host}").rstrip("/") + "/"
    body = json.dumps(document).encode()
    headers = sign(keys, store.region, store.kind, address, target, body, datetime.fromtimestamp(Clock().now(), UTC))
    request = urllib.request.Request(address, data=body, headers=headers)  # noqa: S310 - the address of AWS or of an emulator
    return _send(request, f"{store.kind} in {store.region} refuses {', '.join(map(str, document.values()))}")


def _send(request: urllib.request.Request, topic: str) -> dict[str, Any]:
    """Return a JSON answer, after retries. Raises SecretRefusal about ``topic``, and OSError if there is no answer."""
    for tries_left in reversed(range(_TRIES)):
        try:
            answer = exchange(request, _TIMEOUT_SECONDS, _ANSWER_BYTES_MAX)
            problem = answer.body[:_ERROR_TEXT_MAX].decode(errors="replace")
            if answer.status == 200:
                document = json.loads(answer.body)
                if not isinstance(document, dict):
                    raise SecretRefusal(f"the answer of {request.full_url} is not a JSON object")
                return document
        except (ValueError, RecursionError) as error:
            raise SecretRefusal(f"{topic}: the answer is not JSON: {type(error).__name__}") from None
        except (OSError, HTTPException) as error:
            problem = f"{type(error).__name__}: {error}"
        else:
            problem = f"HTTP {answer.status} {problem}"
            if answer.status < 500 and "Throttl" not in problem:
                raise SecretRefusal(f"{topic}: {problem}. Let the execution role read it: docs/iam/execution-role.json")
        if not tries_left:
            raise ConnectionError(f"{topic}: {problem}")
    raise AssertionError("the last try returns or raises")


def sign(keys: Keys, region: str, service: str, address: str, target: str, body: bytes, at: datetime) -> dict[str, str]:
    """Return the headers of a POST request of JSON to the root of ``address``, signed at the instant ``at``."""
    stamp, day = at.strftime("%Y%m%dT%H%M%SZ"), at.strftime("%Y%m%d")
    headers = {
        "content-type": "application/x-amz-json-1.1",
        "host": urlsplit(address).netloc,
        "x-amz-date": stamp,
        **({"x-amz-security-token": keys.token} if keys.token else {}),
        "x-amz-target": target,
    }
    names = ";".join(sorted(headers))
    lines = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers))
    canonical = f"POST\n/\n\n{lines}\n{names}\n{hashlib.sha256(body).hexdigest()}"
    scope = f"{day}/{region}/{service}/aws4_request"
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    key = f"AWS4{keys.secret}".encode()
    for part in (day, region, service, "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.digest(key, f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{digest}".encode(), "sha256").hex()
    header = f"AWS4-HMAC-SHA256 Credential={keys.access}/{scope}, SignedHeaders={names}, Signature={signature}"
    return {**headers, "authorization": header}


def _keys(environ: Mapping[str, str]) -> Keys:
    """Return the credentials of the session's role. Raises SecretRefusal, OSError."""
    if environ.get("AWS_ACCESS_KEY_ID") and environ.get("AWS_SECRET_ACCESS_KEY"):
        names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
        return Keys(*(environ.get(name, "") for name in names))
    relative = environ.get("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "")
    address = f"{_CONTAINER}{relative}" if relative else environ.get("AWS_CONTAINER_CREDENTIALS_FULL_URI", "")
    if not address.startswith(("http://", "https://")):
        raise SecretRefusal(
            "the session has no credentials of its role: AWS_CONTAINER_CREDENTIALS_RELATIVE_URI is not set"
        )
    file = environ.get("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", "")
    proof = Path(file).read_text().strip() if file else environ.get("AWS_CONTAINER_AUTHORIZATION_TOKEN", "")
    headers = {"Authorization": proof} if proof else {}
    request = urllib.request.Request(address, headers=headers)  # noqa: S310 - the scheme was checked
    document = _send(request, "the credentials of the session's role are refused")
    try:
        return Keys(*(str(document[name]) for name in ("AccessKeyId", "SecretAccessKey", "Token")))
    except KeyError:
        raise SecretRefusal("the answer with the credentials of the session's role is incomplete") from None
