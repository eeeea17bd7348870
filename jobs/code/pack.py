"""Pack a job's code: read each file once, hash it, and write it to the file that will be uploaded."""

import errno
import hashlib
import os
import re
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import BinaryIO, NamedTuple

from jobs.code import git
from jobs.code.git import CodeError
from jobs.payload.bounded_file import folder_below, open_in
from jobs.payload.clock import stopwatch
from jobs.payload.store.tree import CODE_LIMITS, BadListing, Entry, Kind, encode_listing
from jobs.secret_scan import SecretScan
from jobs.spec import Code

_RULES_BYTES_MAX = 1 << 20
_DATABASE = b"scheduler.db"
_KIND: dict[bytes, Kind] = {b"100644": "file", b"100664": "file", b"100755": "program", b"120000": "link"}
_MODE = {"file": b"100644", "program": b"100755", "link": b"120000"}


def pack(code: Code, sink: BinaryIO) -> tuple[Code, bytes]:
    """Write all files to ``sink``; return the packed code and its listing. Raises CodeError, SecretsFound."""
    packing = _Packing(_folder(code))
    commit, dirty = _of_commit(packing, code.revision, sink) if code.revision else _of_folder(packing, sink)
    packing.scan.finish()
    if not packing.entries:
        remedy = "Give another folder; git status --ignored tells what git leaves out"
        raise CodeError(code.source, "nothing is in it that git or .schedignore would not leave out", remedy)
    try:
        listing = encode_listing(packing.entries, CODE_LIMITS)
    except BadListing as error:
        raise CodeError(code.source, str(error), "Name it in .schedignore if no session needs it") from None
    packed = replace(
        code,
        digest=hashlib.sha256(listing).hexdigest(),
        commit=commit,
        dirty=dirty,
        files=len(packing.entries),
        bytes=CODE_LIMITS.bytes - packing.left,
    )
    return packed, listing


def names(code: Code) -> frozenset[str]:
    """Return the paths that :func:`pack` would pack, without reading the files. Raises CodeError."""
    folder = _folder(code)
    if code.revision:
        tracked = git.tree(folder, git.resolve(folder, code.revision)).keys()
        return frozenset(os.fsdecode(name) for name in tracked)
    rules = _rules(folder)
    all_names = git.work(folder).names if git.has_git(folder) else plain_names(folder, rules.leaves_out)
    paths = (os.fsdecode(name) for name in _without_state(all_names))
    return frozenset(path for path in paths if not rules.leaves_out(path))


def _folder(code: Code) -> Path:
    folder = Path(code.source)
    if not folder.is_dir():
        raise CodeError(
            code.source, "there is no such folder", "Write its whole path, or one relative to the job's file"
        )
    return folder


class _Packing:
    """The entries of a package so far, and the number of bytes that may still be added."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.entries: list[Entry] = []
        self.left = CODE_LIMITS.bytes
        self.scan = SecretScan(folder)

    def add(self, path: str, kind: Kind, data: bytes, sink: BinaryIO) -> None:
        """Add one file or link; ``data`` is its content or target. Raises CodeError, SecretsFound."""
        if len(self.entries) >= CODE_LIMITS.files:
            raise too_many(self.folder)
        if kind == "link":
            self.entries.append(Entry(path, kind, os.fsdecode(data), 0))
            return
        self.left -= len(data)
        self.scan.feed(path, data)
        sink.write(data)
        self.entries.append(Entry(path, kind, hashlib.sha256(data).hexdigest(), len(data)))


def _of_folder(packing: _Packing, sink: BinaryIO) -> tuple[str, bool]:
    """Pack the present content of a folder; return its commit ("" if none), and whether the content differs from it."""
    folder = packing.folder
    rules = _rules(folder)
    state = git.work(folder) if git.has_git(folder) else None
    names = _without_state(plain_names(folder, rules.leaves_out) if state is None else state.names)
    wanted = [name for name in _in_order(names) if not rules.leaves_out(os.fsdecode(name))]
    if len(wanted) > CODE_LIMITS.files:
        raise too_many(folder)
    present: dict[bytes, git.GitBlob] = {}
    for name in wanted:
        content = read(folder, name, packing.left)
        if content is None:
            continue  # tracked by git, but deleted
        kind, data = content
        packing.add(os.fsdecode(name), kind, data, sink)
        if state is not None and (committed := state.tree.get(name)) is not None:
            present[name] = git.GitBlob(_MODE[kind], _object(data, like=committed.object))
        else:
            present[name] = git.GitBlob(b"", b"")
    if state is None or not state.commit:
        return "", False
    tracked = {name: blob for name, blob in state.tree.items() if not rules.leaves_out(os.fsdecode(name))}
    return state.commit, state.moved or present != tracked


def _of_commit(packing: _Packing, revision: str, sink: BinaryIO) -> tuple[str, bool]:
    """Pack the content of a commit, from the objects of the repository; return the commit, and False."""
    folder = packing.folder
    commit = git.resolve(folder, revision)
    tree = git.tree(folder, commit)
    rules_blob = tree.get(NAME.encode())
    rules_texts = git.contents(folder, [rules_blob.object], _RULES_BYTES_MAX) if rules_blob else [b""]
    rules = Ignore(rules_texts[0].decode("utf-8-sig", errors="replace"), str(folder))
    wanted = [name for name in _in_order(tree.keys()) if not rules.leaves_out(os.fsdecode(name))]
    if len(wanted) > CODE_LIMITS.files:
        raise too_many(folder)
    for name in wanted:
        if tree[name].mode not in _KIND:
            why = f"{os.fsdecode(name)!a} is a submodule, whose files are in another repository"
            raise CodeError(str(folder), why, "Check it out and give the folder instead of the commit")
    contents = git.contents(folder, [tree[name].object for name in wanted], CODE_LIMITS.bytes)
    for name, data in zip(wanted, contents, strict=True):
        packing.add(os.fsdecode(name), _KIND[tree[name].mode], data, sink)
    return commit, False


def _rules(folder: Path) -> "Ignore":
    file = read(folder, NAME.encode(), _RULES_BYTES_MAX)
    text = "" if file is None or file[0] == "link" else file[1].decode("utf-8-sig", errors="replace")
    return Ignore(text, str(folder))


def _without_state(names: Collection[bytes]) -> list[bytes]:
    """Return names outside state folders of the scheduler, which change all the time and are not code."""
    states = tuple(name.removesuffix(_DATABASE) for name in names if name.endswith(b"/" + _DATABASE))
    return [name for name in names if not name.startswith(states)]


def _in_order(names: Iterable[bytes]) -> list[bytes]:
    """Return names in the order of the listing, in which the content is stored too."""
    return sorted(names, key=os.fsdecode)


def _object(data: bytes, like: bytes) -> bytes:
    """Return the git object name of bytes; the length of another object's name selects the hash."""
    hash_function = hashlib.sha1 if len(like) == 40 else hashlib.sha256
    return hash_function(b"blob %d\0" % len(data) + data).hexdigest().encode()


# The files of a folder that belong to a job's code; links are never followed.
# These folders are left out, as hidden folders are: tools fill them, and a session can create them again.
GENERATED = frozenset({"__pycache__", "node_modules", "venv", "site-packages"})
_ABSENT = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}


def plain_names(folder: Path, leaves_out: Callable[[str], bool]) -> set[bytes]:
    """Return the names below a folder without git, except hidden and generated ones. Raises CodeError."""
    result: set[bytes] = set()
    try:
        for name in _walk(folder, leaves_out):
            result.add(name)
            if len(result) > CODE_LIMITS.files:
                raise too_many(folder)
    except OSError as error:
        why = f"it cannot be read: {error.strerror}: {error.filename!a}"
        raise CodeError(str(folder), why, "Name it in .schedignore if no session needs it") from None
    return result


def too_many(folder: Path) -> CodeError:
    """Return the error for a folder with more files than a job's code may have."""
    remedy = "Name what no session needs in .schedignore, or give a folder that holds the code alone"
    return CodeError(str(folder), f"it has more than {CODE_LIMITS.files:,} files", remedy)


def read(folder: Path, name: bytes, bytes_max: int) -> tuple[Kind, bytes] | None:
    """Return the kind and the bytes of an entry (of a link: its target); None if it is absent. Raises CodeError."""
    path = PurePosixPath(os.fsdecode(name))
    try:
        with folder_below(folder, str(path.parent)) as parent:
            status = os.stat(path.name, dir_fd=parent, follow_symlinks=False)
            if stat.S_ISLNK(status.st_mode):
                return "link", os.fsencode(os.readlink(path.name, dir_fd=parent))
            if not stat.S_ISREG(status.st_mode):
                why = f"{os.fsdecode(name)!a} is a device, a socket or a pipe"
                raise CodeError(str(folder), why, "Name it in .schedignore if no session needs it")
            with open_in(parent, path.name) as stream:
                status = os.fstat(stream.fileno())
                # Not a read of ``bytes_max``, which would allocate a buffer of that size for each file.
                data = b"" if status.st_size > bytes_max else stream.read(status.st_size + 1)
                if len(data) > status.st_size:  # the file has grown in the meantime
                    data += stream.read(bytes_max + 1)
    except OSError as error:
        if error.errno in _ABSENT:
            return None
        why = f"{os.fsdecode(name)!a} cannot be read: {error.strerror}"
        raise CodeError(str(folder), why, "Name it in .schedignore if no session needs it") from None
    if status.st_size > bytes_max or len(data) > bytes_max:
        why = f"with {os.fsdecode(name)!a} ({status.st_size:,} bytes) it is too large"
        raise CodeError(str(folder), why, "Name data, weights and results in .schedignore: they are no code")
    return ("program" if status.st_mode & stat.S_IXUSR else "file"), data


def _walk(folder: Path, leaves_out: Callable[[str], bool]) -> Iterator[bytes]:
    waiting = [b""]
    while waiting:
        prefix = waiting.pop()
        with os.scandir(os.fsencode(folder) + b"/" + prefix) as entries:
            children = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
        if prefix and (b"pyvenv.cfg", False) in children:
            continue  # a virtual environment of any name
        for last, is_folder in children:
            name = prefix + last
            generated = os.fsdecode(last) in GENERATED or last.endswith(b".pyc")
            if last.startswith(b".") or generated or leaves_out(os.fsdecode(name)):
                continue
            if is_folder:
                waiting.append(name + b"/")
            else:
                yield name


# .schedignore names files that no session needs, in the syntax of .gitignore.
#
# Patterns may come from untrusted folders. The time of a match is at most proportional to the product of both lengths,
# and all matches for one package share a deadline.
NAME = ".schedignore"
_ALWAYS = ("*.certificate.json", "*.certificate.svg")  # a certificate is about the files, not one of them
SECONDS_MAX, _LINE_MAX = 60.0, 4_096
_TOKENS = re.compile(
    r"\\(?P<escaped>.)|(?P<stars>\*+)|(?P<any>\?)|\[(?P<negated>[!^]?)(?P<set>\]?[^\]]*)\]|(?P<open>\[.*)|.", re.DOTALL
)
_FOLDERS = "(?:[^/]++/)*"  # any number of folders


class _Rule(NamedTuple):
    path: re.Pattern[str]
    keeps: bool
    folders_only: bool


class Ignore:
    """The rules of one .schedignore. The last matching rule decides; everything in an ignored folder is ignored."""

    def __init__(self, text: str, folder: str) -> None:
        self._folder = folder
        self._until = stopwatch() + SECONDS_MAX
        self._rules: list[_Rule] = []
        for line in (*_ALWAYS, *text.splitlines()):
            self._check_time()
            if len(line) > _LINE_MAX:
                why = f"a line of {NAME} has {len(line):,} characters"
                raise CodeError(folder, why, f"Write at most {_LINE_MAX:,}")
            if (rule := _rule(line)) is not None:
                self._rules.append(rule)
        self._folders: dict[str, bool] = {"": False}

    def leaves_out(self, path: str) -> bool:
        """Return whether ``path`` is left out of the package. Raises CodeError after ``SECONDS_MAX``."""
        self._check_time()
        return self._leaves_out_folder(path.rpartition("/")[0]) or self._decide(path, is_folder=False)

    def _leaves_out_folder(self, path: str) -> bool:
        parts = path.split("/")
        for depth in range(1, len(parts) + 1):
            folder = "/".join(parts[:depth])
            if folder not in self._folders:
                self._folders[folder] = self._decide(folder, is_folder=True)
            if self._folders[folder]:
                return True
        return False

    def _decide(self, path: str, *, is_folder: bool) -> bool:
        for rule in reversed(self._rules):
            self._check_time()
            if (is_folder or not rule.folders_only) and rule.path.fullmatch(path):
                return not rule.keeps
        return False

    def _check_time(self) -> None:
        if stopwatch() > self._until:
            why = f"listing its files takes more than {SECONDS_MAX:.0f} s"
            raise CodeError(self._folder, why, f"Write fewer and shorter patterns in {NAME}, or give a smaller folder")


def _rule(line: str) -> _Rule | None:
    """Return the rule of a line; None for an empty line or a comment."""
    bare = line.rstrip(" ")
    line = line[: len(bare) + 1] if bare.endswith("\\") else bare
    if not line or line.startswith("#"):
        return None
    keeps, line = line.startswith("!"), line.removeprefix("!")
    folders_only, line = line.endswith("/"), line.removesuffix("/")
    if not line:
        return None
    words = line.removeprefix("/").split("/")
    # Parts of a path; between two of them there may be any number of folders.
    blocks: list[list[str]] = [[]] if "/" in line else [[], []]
    for word in words:
        if len(words) > 1 and len(word) > 1 and not word.strip("*"):
            if len(blocks) == 1 or blocks[-1]:  # several "**" in a row mean the same as one
                blocks.append([])
        else:
            blocks[-1].append(_name(word))
    if len(blocks) > 1 and not blocks[-1]:
        blocks[-1] = ["[^/]*"]  # "a/**" matches everything below the folder, not the folder
    pattern = _apart(_FOLDERS, ["/".join((*names, "")) for names in blocks]).removesuffix("/")
    return _Rule(re.compile(pattern), keeps, folders_only)


def _name(word: str) -> str:
    """Return the regular expression of a pattern for one name of a path."""
    parts = [""]  # the parts between two stars
    for match in _TOKENS.finditer(word):
        if match["stars"]:
            parts.append("")
        elif match["any"]:
            parts[-1] += "[^/]"
        elif match["open"]:
            parts[-1] += "(?!)"  # a set that is not closed matches nothing
        elif match["set"]:
            parts[-1] += f"(?!/)[{'^' if match['negated'] else ''}{_set(match['set'])}]"
        else:
            parts[-1] += re.escape(match["escaped"] or match[0])
    return _apart("[^/]*", parts)


def _apart(gap: str, parts: Sequence[str]) -> str:
    """Return a regular expression for parts with gaps between them. Only the last gap backtracks, which suffices."""
    first, *others = parts
    inner = "".join(f"(?>{gap}?{part})" for part in others[:-1])
    return first + inner + (gap + others[-1] if others else "")


def _set(inner: str) -> str:
    """Return a bracket expression as a regular expression; a reversed range matches its two ends."""
    spans = re.findall(r"(.)-(.)|(.)", inner, re.DOTALL)
    words = [(re.escape(low), re.escape(high), "-" if low <= high else "") for low, high, _ in spans if low]
    return "".join(low + dash + high for low, high, dash in words) + "".join(re.escape(single) for *_, single in spans)
