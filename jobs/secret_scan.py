"""Scan what is about to be uploaded for keys, tokens and passwords; a finding never has the value.

A value that may leave is allowed by its digest, in a file that is committed beside the code. The digest is slow to
compute on purpose, so that no password can be guessed from it.
"""

from __future__ import annotations

import hashlib
import re
from functools import cache
from pathlib import Path

from jobs.payload.bounded_file import read_bounded
from jobs.plural import counted
from jobs.problem import Problem, Refusal

ALLOWED_NAME = ".sched-allowed-secrets"
_ALLOWED_BYTES_MAX = 1 << 20
_HEADING = "# Values that may be uploaded, by digest; `--allow-secrets` adds to this file. Commit it.\n"
_ROUNDS = 100_000  # of a digest, 50 ms
_FINDINGS_MAX = 200
_LISTED = 20
_PIECE_BYTES = 1 << 20
_MATCH_BYTES = 4_096  # pieces overlap by as much
_NAME_BYTES = 60  # before a value, where the name stands that it is assigned to
_BINARY_BYTES = 8_192

# Each match holds one of the literals, which are found many times as fast as the pattern; its group is the value.
_DETECTORS: tuple[tuple[str, tuple[bytes, ...], bytes], ...] = (
    (
        "private key",
        (b"PRIVATE KEY",),
        rb"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----.{0,200}?([\w+/=]{40,})",
    ),
    ("private key", (b"Private-Lines: ",), rb"Private-Lines: \d+(?:\s|\\[rn])+([\w+/=]{40,})"),
    ("private key", (b"AGE-SECRET-KEY-1",), rb"(AGE-SECRET-KEY-1[0-9A-Z]{58})"),
    ("AWS access key", (b"AKIA", b"ASIA"), rb"(?<!\w)(A[KS]IA[A-Z0-9]{16})(?!\w)"),
    ("Azure key", (b"AccountKey=",), rb"AccountKey=([\w+/]{86}==)"),
    ("Google key", (b"AIza", b"GOCSPX-"), rb"(?<!\w)(AIza[\w-]{35}|GOCSPX-[\w-]{28})(?![\w-])"),
    ("Hugging Face token", (b"hf_",), rb"(?<!\w)(hf_[A-Za-z0-9]{30,})(?!\w)"),
    ("Kaggle token", (b"KGAT_",), rb"(KGAT_[0-9a-f]{32})"),
    ("Kaggle token", (b'"key',), rb'"key\\?"\s*:\s*\\?"([0-9a-f]{32})\\?"'),
    ("W&B key", (b"wandb_v1_",), rb"(wandb_v1_\w{40,})"),
    ("GitHub token", (b"ghp_", b"gho_", b"ghu_", b"ghs_", b"ghr_"), rb"(?<!\w)(gh[pousr]_[A-Za-z0-9]{36,})"),
    ("GitHub token", (b"github_pat_",), rb"(github_pat_\w{60,})"),
    ("GitLab token", (b"glpat-", b"gldt-", b"glrt-"), rb"(?<!\w)(gl(?:pat|dt|rt)-[\w-]{20,})"),
    ("OpenAI key", (b"T3BlbkFJ",), rb"(sk-[\w-]{20,}T3BlbkFJ[\w-]{20,})"),
    ("Anthropic key", (b"sk-ant-",), rb"(sk-ant-\w+-[\w-]{40,})"),
    ("OpenRouter key", (b"sk-or-v1-",), rb"(sk-or-v1-[0-9a-f]{64})"),
    ("Databricks token", (b"dapi",), rb"(?<!\w)(dapi[0-9a-f]{32})"),
    ("DigitalOcean token", (b"_v1_",), rb"(?<!\w)(do[opr]_v1_[0-9a-f]{64})"),
    ("PyPI token", (b"pypi-AgE",), rb"(pypi-AgE[\w-]{50,})"),
    ("npm token", (b"npm_",), rb"(?<!\w)(npm_[A-Za-z0-9]{36})(?!\w)"),
    ("Slack token", (b"xox",), rb"(?<!\w)(xox[abeoprs]-[\w-]{20,})"),
    ("Telegram token", (b":AA",), rb"(?<!\w)(\d{8,10}:AA[\w-]{33})(?![\w-])"),
    ("Stripe key", (b"_live_",), rb"(?<!\w)([rs]k_live_[0-9A-Za-z]{20,})"),
    ("Square key", (b"sq0csp-",), rb"(sq0csp-[\w-]{43})"),
    ("SendGrid key", (b"SG.",), rb"(?<!\w)(SG\.[\w-]{22}\.[\w-]{43})"),
    ("Mailchimp key", (b"-us",), rb"(?<!\w)([0-9a-f]{32}-us\d{1,2})(?!\w)"),
    ("webhook", (b"hooks.slack.com/",), rb"hooks\.slack\.com/services/(T\w+/B\w+/\w{20,})"),
    ("webhook", (b"/api/webhooks/",), rb"/api/webhooks/(\d{15,}/[\w-]{60,})"),
    ("JSON web token", (b".eyJ",), rb"(?<!\w)(eyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]{20,})"),
    ("password in an address", (b"://",), rb"://[^\s:/@\"'<>]*:([^\s:/@\"'<>]{8,})@[\w.-]"),
    ("password", (b'"', b"'"), rb"""[=:]\s*\\?["']([^\s"'<>(){}\[\]$%\\]{8,200})\\?["']"""),
    ("password", (b"=", b":"), rb"[=:][ \t]*([\w+/=-]{16,200})[ \t]*(?:\r?$|\\[rn])"),
)
_BEGINS = rb"(?:(?<!\w)|(?<=\\[nrt]))"  # in JSON also behind an escaped line break
_PATTERNS = tuple(
    (kind, literals, re.compile(pattern.replace(rb"(?<!\w)", _BEGINS), re.DOTALL | re.MULTILINE))
    for kind, literals, pattern in _DETECTORS
)
# A name ends with such a word: `tokenizer`, `token_path` and `password_hint` name no secret.
_NAMES = re.compile(
    rb"(?i)(passwo?r?d|passphrase|_pass|pwd|secret|token|(api|access|auth|account|private|secret|wandb)_?key)(_?\d+)?"
    rb"[\\\"'\]]*\s*$"
)
_PLACEHOLDERS = re.compile(
    rb"(?i)example|sample|dummy|placeholder|change.?me|your|xxxx|\*\*\*|\.\.\.|fake|test|redacted|12345|abcdef"
)
_DISTINCT_MIN = 6


class SecretsFound(Refusal):
    """Something that is to be uploaded holds secrets; nothing of it was uploaded."""

    def __init__(self, source: str, problems: list[Problem], allowed: Path, digests: dict[str, str]) -> None:
        lines = [f"{problem.place} ({problem.key})" for problem in problems[:_LISTED]]
        more = f" and {len(problems) - _LISTED} more" if len(problems) > _LISTED else ""
        super().__init__(
            f"{source} was not uploaded",
            f"it holds {counted(len(problems), 'secret')}: {', '.join(lines)}{more}",
            f"Remove them, or leave the files out. What is no secret: --allow-secrets, which adds to {allowed}",
        )
        self.problems = problems
        self._allowed = allowed
        self._digests = digests

    def allow(self) -> str:
        """Add the values' digests to the file of those that may leave; return what was done. Raises OSError."""
        heading = "" if self._allowed.exists() else _HEADING
        with self._allowed.open("a", encoding="utf-8") as stream:
            stream.write(heading + "".join(f"{digest} {about}\n" for digest, about in self._digests.items()))
        return f"{counted(len(self._digests), 'value')} may be uploaded from now on: {self._allowed}"


class SecretScan:
    """Scans the files of one ``source``, a folder or a file; what is allowed stands in it, or beside the file."""

    def __init__(self, source: Path) -> None:
        self._source = source
        self._allowed = (source if source.is_dir() else source.parent) / ALLOWED_NAME
        self._problems: list[Problem] = []
        self._digests: dict[str, str] = {}
        self._path = ""
        self._data = b""
        self._begin = 0  # in `_data`, of what was not scanned yet
        self._line = 1
        self._values: set[bytes] = set()
        self._binary = self._wide = False

    def feed(self, path: str, data: bytes) -> None:
        """Scan a piece of a file, whose pieces come one after another. Raises SecretsFound when there are too many."""
        if path != self._path:
            self._scan(len(self._data))
            self._path, self._data, self._begin, self._line, self._values = path, b"", 0, 1, set()
            self._wide = data[:2] in {b"\xff\xfe", b"\xfe\xff"}
            self._binary = not self._wide and b"\0" in data[:_BINARY_BYTES]
        if not self._binary:
            self._data += data.replace(b"\0", b"") if self._wide else data
            if len(self._data) > _PIECE_BYTES + _MATCH_BYTES:
                self._scan(len(self._data) - _MATCH_BYTES)

    def finish(self) -> None:
        """Raise SecretsFound if anything was found that is not allowed."""
        self.feed("", b"")
        if self._problems:
            raise SecretsFound(str(self._source), self._problems, self._allowed, self._digests)

    def _scan(self, end: int) -> None:
        """Look for what begins before ``end``."""
        data = self._data
        for kind, literals, pattern in _PATTERNS:
            if any(literal in data for literal in literals):
                for match in pattern.finditer(data, self._begin):
                    if match.start() >= end:
                        break
                    if match[1] not in self._values and _is_secret(kind, data, match):
                        self._values.add(match[1])
                        self._note(kind, match[1], self._line + data.count(b"\n", self._begin, match.start()))
        self._line += data.count(b"\n", self._begin, end)
        self._begin = min(_NAME_BYTES, end)
        self._data = data[end - self._begin :]

    def _note(self, kind: str, value: bytes, line: int) -> None:
        digest = _digest(value)
        if digest in _allowed(self._allowed):
            return
        place = self._source / self._path if self._source.is_dir() else self._source
        self._problems.append(Problem(str(place), kind, "", "it is not to leave this machine", "remove it", line))
        self._digests[digest] = f"{kind} {self._path}"
        if len(self._problems) >= _FINDINGS_MAX:
            raise SecretsFound(str(self._source), self._problems, self._allowed, self._digests)


def _is_secret(kind: str, data: bytes, match: re.Match[bytes]) -> bool:
    """Return whether a match is more than an example, and of a password: whether it is assigned to such a name."""
    value = match[1]
    if _PLACEHOLDERS.search(value) or len(set(value)) < _DISTINCT_MIN:
        return False
    if not kind.startswith("password"):
        return True
    mixed = re.search(rb"\d", value) and re.search(rb"[A-Za-z]", value) and not re.search(rb"(?i)passw|secret", value)
    return bool(
        mixed and (kind != "password" or _NAMES.search(data, max(0, match.start() - _NAME_BYTES), match.start()))
    )


@cache
def _digest(value: bytes) -> str:
    return hashlib.pbkdf2_hmac("sha256", value, ALLOWED_NAME.encode(), _ROUNDS).hex()[:32]


def _allowed(file: Path) -> set[str]:
    try:
        return {
            line.split(" ")[0] for line in read_bounded(file, _ALLOWED_BYTES_MAX).decode(errors="replace").splitlines()
        }
    except FileNotFoundError:
        return set()
