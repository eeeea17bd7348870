"""Trials: tests are loaded once, and for each mutant a process is forked that runs those which enter its function."""

from __future__ import annotations

import functools
import gc
import hashlib
import json
import os
import select
import signal
import sys
import threading
import time
from contextlib import suppress
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path
    from types import FrameType

    import pytest

    from tests.lab.mutation.mutate import Mutant

_SLOWER, _SPARE_SECONDS = 5, 30  # a mutant gets so many times what its tests took before, and so many seconds
# Tests of sessions run them as processes of their own, where nobody sees what is entered: which tests run what.
_UNSEEN = {
    "jobs/payload/": "tests/integration/test_payload_",
    "jobs/payload/scorers/": "tests/integration/test_scorers",
    "jobs/payload/scorers/sandbox/": "tests/integration/test_sandbox",
}


class Verdict(NamedTuple):
    """What became of a mutant: ``killed``, ``hung`` (until it was ended), ``alive`` or ``unreached``."""

    mutant: Mutant
    word: str
    tests: int


class Trials:
    """A pytest plugin that tries mutants in place of running the tests.

    ``cache`` keeps what each test entered, until its file changes. ``seconds`` of tests at most are run for a mutant.
    ``tell`` returns False when no other is to be tried.
    """

    def __init__(
        self, root: Path, mutants: Sequence[Mutant], cache: Path, seconds: float, tell: Callable[[Verdict], bool]
    ) -> None:
        self._root, self._mutants, self._cache, self._seconds, self._tell = root, mutants, cache, seconds, tell
        self._entered: set[CodeType] = set()
        self._failed = False
        self.left_out: list[pytest.Item] = []
        self._reach: dict[str, Any] = {}  # by test: the digest of its file, its seconds, what it enters

    def pytest_collection(self) -> None:
        """Have properties fail with the first example that they find: nobody reads a smaller one."""
        from hypothesis import Phase, settings  # earlier, pytest could not rewrite its assertions

        settings.register_profile("mutants", settings(), phases=(Phase.explicit, Phase.generate))
        settings.load_profile("mutants")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Remember a failure."""
        self._failed |= report.failed

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Learn what the tests enter, then try all mutants."""
        sys.dont_write_bytecode = True
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
        items = self._learned(session.items)
        gc.unfreeze()  # what is frozen is not told by the collector, which finds what is loaded
        loaded = _loaded(self._root)
        for mutant in self._mutants:
            chosen = self._chosen(items, mutant)
            word = self._tried(mutant, chosen, loaded) if chosen else "unreached"
            if not self._tell(Verdict(mutant, word, len(chosen))):
                break
        return True

    def _learned(self, items: Sequence[pytest.Item]) -> list[pytest.Item]:
        """Return the tests that can be used: they pass, and do so in a forked process as well."""
        self._reach = self._remembered()
        digests: dict[Path, str] = {}
        by_shared: dict[frozenset[str], list[pytest.Item]] = {}
        for item in items:
            digest = digests.setdefault(item.path, hashlib.sha256(item.path.read_bytes()).hexdigest()[:12])
            shared = _shared(item)
            # One test for each set of shared fixtures runs in any case: then these need not be made for each mutant.
            if self._reach.get(item.nodeid, {}).get("digest") != digest or shared not in by_shared:
                self._reach[item.nodeid] = {"digest": digest, **self._watched(item)}
            by_shared.setdefault(shared, []).append(item)
        self._cache.parent.mkdir(parents=True, exist_ok=True)
        self._cache.write_text(json.dumps(self._remembered() | self._reach), encoding="utf-8")
        good = []
        for those in by_shared.values():
            passing = [item for item in those if self._reach[item.nodeid]["entered"]]
            # A server on a thread, say, does not live on in a fork.
            if passing and self._forked([passing[0]], lambda: True):
                good += passing
            elif passing:
                self.left_out += passing
        return good

    def _remembered(self) -> dict[str, Any]:
        with suppress(OSError, ValueError):
            return dict(json.loads(self._cache.read_text(encoding="utf-8")))
        return {}

    def _watched(self, item: pytest.Item) -> dict[str, Any]:
        """Run one test; return its seconds and the functions of ours that it enters, none when it fails."""
        self._entered, self._failed, began = set(), False, time.perf_counter()
        threading.settrace(self._look)
        sys.settrace(self._look)
        try:
            _run(item)
        finally:
            sys.settrace(None)
            threading.settrace(None)
        start = f"{self._root}{os.sep}"
        names = {
            f"{code.co_filename.removeprefix(start)}::{_outermost(code)}"
            for code in self._entered
            if code.co_filename.startswith(start) and not code.co_filename.startswith(f"{start}tests")
        }
        return {"seconds": time.perf_counter() - began, "entered": [] if self._failed else [*sorted(names), ""]}

    def _look(self, frame: FrameType, event: str, arg: object) -> None:
        del event, arg
        self._entered.add(frame.f_code)

    def _chosen(self, items: Sequence[pytest.Item], mutant: Mutant) -> list[pytest.Item]:
        """Return the tests that enter the function, first the most special and quickest.

        Of a mutant outside functions, in a table say, those that enter its file, or whose own file names its module.
        Of what is entered unseen, also those that bear its module's name, and these first: then those that import it.
        """
        place, ranked = f"{mutant.path}::{mutant.where}", []
        module = mutant.path.removesuffix(".py").replace("/", ".")
        unseen = tuple(tests for folder, tests in _UNSEEN.items() if mutant.path.startswith(folder))
        for item in items:
            known = self._reach[item.nodeid]
            named, imported = module.rpartition(".")[2] in item.path.stem, module in _text(item.path)
            if mutant.where:
                entered = place in known["entered"]
            else:
                entered = any(one.startswith(place) for one in known["entered"]) or imported
            if entered or (unseen and (named or item.nodeid.startswith(unseen))):
                first = (not named, not imported) if unseen else ()
                ranked.append((first, known["seconds"] * (100 + len(known["entered"])), item))
        chosen, left = [], self._seconds
        for *_, item in sorted(ranked, key=lambda one: one[:2]):
            if left > 0:
                chosen.append(item)
            left -= self._reach[item.nodeid]["seconds"]
        return chosen

    def _tried(self, mutant: Mutant, items: Sequence[pytest.Item], loaded: Loaded) -> str:
        """Change the file, for processes that tests start, and the function, for the tests themselves."""
        file = self._root / mutant.path
        source, was = file.read_bytes(), file.stat()
        changed = mutant.applied(source)
        file.write_bytes(changed)
        try:
            passed = self._forked(items, lambda: _changed(mutant, str(file), changed, loaded))
            return {True: "alive", False: "killed", None: "hung"}[passed]
        finally:
            file.write_bytes(source)
            os.utime(file, ns=(was.st_atime_ns, was.st_mtime_ns))

    def _forked(self, items: Sequence[pytest.Item], prepare: Callable[[], bool]) -> bool | None:
        """Run tests in a process of their own until one fails; return whether none does, None when it does not end.

        When ``prepare`` cannot change what is loaded already, it is loaded anew.
        """
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            self._be_forked(items, prepare)
        patience = _SPARE_SECONDS + _SLOWER * sum(self._reach[item.nodeid]["seconds"] for item in items)
        descriptor = os.pidfd_open(pid)
        try:
            if not select.select([descriptor], [], [], patience)[0]:
                return None
            return os.waitid(os.P_PIDFD, descriptor, os.WEXITED | os.WNOWAIT).si_status == 0  # type: ignore[union-attr]
        finally:
            os.killpg(pid, signal.SIGKILL)  # with servers that its tests have started
            os.waitpid(pid, 0)
            os.close(descriptor)

    def _be_forked(self, items: Sequence[pytest.Item], prepare: Callable[[], bool]) -> None:
        """Live as the forked process; never returns."""
        code = 1
        try:
            os.setpgid(0, 0)
            null = os.open(os.devnull, os.O_RDWR)
            for number in (0, 1, 2):
                os.dup2(null, number)
            self._failed = False
            if not prepare():
                names = [item.nodeid for item in items]
                os.execv(sys.executable, [sys.executable, "-m", "pytest", "-qx", "-p", "no:cacheprovider", *names])  # noqa: S606 - that is us
            for item in items:
                _run(item)
                if self._failed:
                    break
            code = int(self._failed)
        finally:
            os._exit(code)


class Loaded(NamedTuple):
    """What is loaded of ours: functions by file and name, and what remembers answers."""

    functions: dict[tuple[str, str], list[FunctionType]]
    caches: list[Any]


def _run(item: pytest.Item) -> None:
    """Run one test; what the session's tests share stays, as if another followed."""
    item.config.hook.pytest_runtest_protocol(item=item, nextitem=item.session)


@functools.cache
def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def _shared(item: pytest.Item) -> frozenset[str]:
    fixtures = item._fixtureinfo.name2fixturedefs  # type: ignore[attr-defined]  # told nowhere else
    return frozenset(name for name, found in fixtures.items() if found[-1].scope == "session")


def _outermost(code: CodeType) -> str:
    return code.co_qualname.split(".<locals>", 1)[0]


def _loaded(root: Path) -> Loaded:
    found = Loaded({}, [])
    for one in gc.get_objects():
        if isinstance(one, FunctionType) and one.__code__.co_filename.startswith(str(root)):
            found.functions.setdefault((one.__code__.co_filename, one.__code__.co_qualname), []).append(one)
        elif isinstance(one, functools._lru_cache_wrapper):
            found.caches.append(one)
    gc.freeze()
    return found


def _changed(mutant: Mutant, file: str, source: bytes, loaded: Loaded) -> bool:
    """Give the loaded function its mutant's code, wherever it was imported to; False where that is not possible."""
    if not mutant.where:
        return False
    for code in _codes(compile(source, file, "exec")):
        for function in loaded.functions.get((file, code.co_qualname), ()):
            if code.co_qualname == mutant.where and function.__code__.co_firstlineno == code.co_firstlineno:
                function.__code__ = code
    for cache in loaded.caches:
        cache.cache_clear()
    return True


def _codes(code: CodeType) -> Iterator[CodeType]:
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield one
            yield from _codes(one)
