"""Scan files before an upload for keys, tokens, passwords and, on request, personal data.

A finding never contains the value. A person can allow values: a file that is committed with the code has their digests.
A digest is slow to compute, so that passwords cannot be guessed from it.
"""

import hashlib
import re
import tomllib
from collections.abc import Collection, Iterable
from functools import cache
from pathlib import Path

from jobs.payload.bounded_file import open_below, read_bounded
from jobs.problem import Problem, Refusal
from jobs.size import counted

ALLOWED_NAME = ".sched-allowed-secrets"
_ALLOWED_BYTES_MAX = 1 << 20
_HEADING = "# Values that may be uploaded, by digest; `--allow-secrets` adds to this file. Commit it.\n"
_ROUNDS = 100_000  # rounds of a digest, which take about 50 ms
_FINDINGS_MAX = 200
_LISTED = 20
_PIECE_BYTES = 1 << 20
_MATCH_BYTES = 4_096  # pieces overlap by as much
_NAME_BYTES = 60  # bytes before a value that are searched for the name of its variable
_BINARY_BYTES = 8_192
_DISTINCT_MIN = 6  # a value with fewer different characters is an example, not a secret
_BEGINS = r"(?:(?<!\w)|(?<=\\[nrt]))"
PERSONAL = ("e-mail address", "phone number", "IBAN", "card number")
"""The kinds of personal data that can be found."""


class _Detectors:
    """The compiled content of `secret_detectors.toml`, loaded when it is needed, because compiling is slow."""

    def __init__(self) -> None:
        tables = tomllib.loads(Path(__file__).with_name("secret_detectors.toml").read_text(encoding="utf-8"))
        self.all = [
            (
                table["kind"],
                [literal.encode() for literal in table["literals"]],
                re.compile(table["pattern"].replace(r"(?<!\w)", _BEGINS).encode(), re.DOTALL | re.MULTILINE),
            )
            for table in (*tables["detectors"], *tables["personal"])
        ]
        self.names = re.compile(tables["names"].encode() + rb"[\\\"'\]]*\s*$")
        self.placeholders = re.compile(tables["placeholders"].encode())

    def is_secret(self, kind: str, data: bytes, match: re.Match[bytes]) -> bool:
        """Return whether a match is real: not an example, with a valid checksum, and a name before a password."""
        value = match[1]
        if self.placeholders.search(value) or len(set(value)) < _DISTINCT_MIN:
            return False
        if kind in PERSONAL:
            return _is_personal(kind, re.sub(rb"[^0-9A-Z]", b"", value).decode())
        if not kind.startswith("password"):
            return True
        if not (re.search(rb"\d", value) and re.search(rb"[A-Za-z]", value)) or re.search(rb"(?i)passw|secret", value):
            return False
        name = self.names.search(data, max(0, match.start() - _NAME_BYTES), match.start())
        return kind != "password" or name is not None


def _is_personal(kind: str, chars: str) -> bool:
    """Return whether ``chars``, the digits and capitals of a match, have the length or checksum of their kind."""
    if kind == "phone number":
        return 8 <= len(chars) <= 15
    if kind == "IBAN":
        return int("".join(str(int(char, 36)) for char in chars[4:] + chars[:4])) % 97 == 1
    if kind == "card number":  # Luhn's sum: every other digit from the right is doubled, and its digits are added
        return sum(sum(divmod(int(char) * (1 + at % 2), 10)) for at, char in enumerate(reversed(chars))) % 10 == 0
    return True


_detectors = cache(_Detectors)


class SecretsFound(Refusal):
    """Files for upload contain secrets or unwanted personal data; nothing was uploaded."""

    def __init__(self, source: str, problems: list[Problem], allowed: Path, digests: dict[str, str]) -> None:
        lines = [f"{problem.place} ({problem.key})" for problem in problems[:_LISTED]]
        more = f" and {len(problems) - _LISTED} more" if len(problems) > _LISTED else ""
        personal = sum(problem.key in PERSONAL for problem in problems)
        parts = {"secret": len(problems) - personal, "personal value": personal}
        held = " and ".join(counted(count, noun) for noun, count in parts.items() if count)
        super().__init__(
            f"{source} cannot be uploaded",
            f"it holds {held}: {', '.join(lines)}{more}",
            f"Remove them, or leave the files out. What is no secret: --allow-secrets, which adds to {allowed}",
        )
        self.problems = problems
        self._allowed = allowed
        self._digests = digests

    def allow(self) -> str:
        """Add the digests of the values to the allowed values; return what was done, as text. Raises OSError."""
        heading = "" if self._allowed.exists() else _HEADING
        with self._allowed.open("a", encoding="utf-8") as stream:
            stream.write(heading + "".join(f"{digest} {about}\n" for digest, about in self._digests.items()))
        return f"{counted(len(self._digests), 'value')} may be uploaded from now on: {self._allowed}"


class SecretScan:
    """Scans the files of ``source``, a folder or a file; the list of allowed values is in it or beside the file.

    ``personal`` has the kinds of personal data to find, see :data:`PERSONAL`.
    """

    def __init__(self, source: Path, personal: Collection[str] = ()) -> None:
        self._source = source
        self._ignored = set(PERSONAL).difference(personal)
        self._allowed = (source if source.is_dir() else source.parent) / ALLOWED_NAME
        self._problems: list[Problem] = []
        self._digests: dict[str, str] = {}
        self._path = ""
        self._data = b""
        self._begin = 0  # where in `_data` the text begins that was not scanned yet
        self._line = 1
        self._values: set[bytes] = set()
        self._binary = self._wide = False

    def feed(self, path: str, data: bytes) -> bool:
        """Scan the next piece of a file; return whether it is text. Raises SecretsFound if there are too many."""
        if path != self._path:
            self._scan(len(self._data))
            self._path, self._data, self._begin, self._line, self._values = path, b"", 0, 1, set()
            self._wide = data[:2] in {b"\xff\xfe", b"\xfe\xff"}
            self._binary = not self._wide and b"\0" in data[:_BINARY_BYTES]
        if not self._binary:
            self._data += data.replace(b"\0", b"") if self._wide else data
            if len(self._data) > _PIECE_BYTES + _MATCH_BYTES:
                self._scan(len(self._data) - _MATCH_BYTES)
        return not self._binary

    def finish(self) -> None:
        """Raise SecretsFound if anything was found that is not allowed."""
        self.feed("", b"")
        if self._problems:
            raise SecretsFound(str(self._source), self._problems, self._allowed, self._digests)

    def _scan(self, end: int) -> None:
        """Search for matches that begin before ``end``."""
        data, detectors = self._data, _detectors()
        for kind, literals, pattern in detectors.all:
            if kind not in self._ignored and any(literal in data for literal in literals):
                for match in pattern.finditer(data, self._begin):
                    if match.start() >= end:
                        break
                    if match[1] not in self._values and detectors.is_secret(kind, data, match):
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


def require_no_secrets(source: Path, files: Iterable[Path], personal: Collection[str] = ()) -> None:
    """Scan the regular files among ``files``, which belong to ``source``. Raises SecretsFound."""
    scan = SecretScan(source, personal)
    for path in files:
        try:
            stream = open_below(path.parent, path.name)
        except OSError:
            continue  # links, pipes and unreadable files are not uploaded either; packing reports them
        with stream:
            while (data := stream.read(_PIECE_BYTES)) and scan.feed(str(path.relative_to(source)), data):
                continue
    scan.finish()


@cache
def _digest(value: bytes) -> str:
    return hashlib.pbkdf2_hmac("sha256", value, ALLOWED_NAME.encode(), _ROUNDS).hex()[:32]


def _allowed(file: Path) -> set[str]:
    try:
        lines = read_bounded(file, _ALLOWED_BYTES_MAX).decode(errors="replace").splitlines()
        return {line.split(" ")[0] for line in lines}
    except FileNotFoundError:
        return set()
