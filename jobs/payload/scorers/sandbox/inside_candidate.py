"""A script inside the sandbox: load code that a model wrote, and answer calls of its functions with plain values.

The caller is in another sandbox and gets the answers as data, so the code can change results only by its return values.
The script needs the standard library only. Its arguments are the file descriptors of requests and answers.
"""

import json
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

_SOURCE = Path("/in/candidate.py")
_LINE_MAX = 1 << 20


def main() -> None:
    """Answer each request ``{"call": name, "args": text, "kwargs": text}`` with a value or an error, one per line."""
    requests, answers = (int(word) for word in sys.argv[1:3])
    with os.fdopen(requests, encoding="utf-8") as questions, os.fdopen(answers, "w", encoding="utf-8") as replies:
        module = ModuleType("candidate")
        sys.modules["candidate"] = module
        broken: BaseException | None = None
        try:
            exec(compile(_SOURCE.read_bytes(), str(_SOURCE), "exec"), module.__dict__)  # noqa: S102 - the sandbox exists for this
        except BaseException as error:  # noqa: BLE001 - also SystemExit, which is reported like other errors
            broken = error
        while line := questions.readline(_LINE_MAX):
            replies.write(_answer(json.loads(line), module, broken) + "\n")
            replies.flush()


def _answer(request: dict[str, str], module: ModuleType, broken: BaseException | None) -> str:
    try:
        if broken is not None:
            raise broken
        function: Any = module
        for name in request["call"].split("."):
            function = getattr(function, name)
        # Requests are literals from the tests, which were not written by a model.
        value = function(*eval(request["args"], {}), **eval(request["kwargs"], {}))  # noqa: S307
        return json.dumps({"value": repr(value)})
    except BaseException as error:  # noqa: BLE001 - as above
        return json.dumps({"error": type(error).__name__, "message": str(error)[:500]})


if __name__ == "__main__":
    main()
