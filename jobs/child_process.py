"""Child processes that handle untrusted input, with an environment of listed variables only."""

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

# Variables that every child process gets.
_ALWAYS = re.compile(
    r"PATH|LANG|LC_[A-Z]+|TZ|TMPDIR|SSL_CERT_(FILE|DIR)|(REQUESTS|CURL)_CA_BUNDLE|"
    r"(HTTPS?|ALL|NO)_PROXY|(https?|all|no)_proxy"
)
# Variables for programs that log in to other systems as the current user.
OF_A_PERSON = re.compile(r"HOME|USER|LOGNAME|XDG_[A-Z_]+|SSH_AUTH_SOCK|KRB5CCNAME|SLURM_CONF")
_NOTHING = re.compile(r"(?!)")


def child_environment(keep: re.Pattern[str] = _NOTHING, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment of a child: _ALWAYS, variables whose name matches ``keep``, and ``more``."""
    kept = {name: text for name, text in os.environ.items() if _ALWAYS.fullmatch(name) or keep.fullmatch(name)}
    return kept | dict(more or {})


def run_child(
    words: Sequence[str],
    seconds: float,
    environment: Mapping[str, str],
    folder: Path | None = None,
    standard_input: bytes = b"",
) -> subprocess.CompletedProcess[bytes]:
    """Run a program and return how it ended, with its output. Raises OSError and subprocess.TimeoutExpired."""
    return subprocess.run(
        words, cwd=folder, env=environment, input=standard_input, capture_output=True, timeout=seconds, check=False
    )
