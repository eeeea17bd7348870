"""Git queries about a folder. They run no program that the repository configures, and check nothing out."""

import os
import subprocess
from pathlib import Path
from typing import NamedTuple

from jobs.child_process import OF_A_PERSON, child_environment, run_child
from jobs.payload.bounded_file import read_bounded
from jobs.problem import InvalidInput


class CodeError(InvalidInput):
    """``source`` cannot be packed; the message says why and what to do."""

    def __init__(self, source: str, why: str, remedy: str) -> None:
        super().__init__(f"the code in {source} cannot be taken", why, remedy)


_SECONDS = 120  # time limit of a git command
# Options that switch off settings by which git starts programs; the queries here do not need them.
_QUIET = ("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "-c", "core.untrackedCache=false")
# A limit of the memory: git reads some files without a limit of their size.
_LIMITED = ("sh", "-c", 'ulimit -v 4194304; exec git -c core.packedGitLimit=1g "$@"', "git")
_ENVIRONMENT = {
    "GIT_ALLOW_PROTOCOL": "none",  # otherwise git may fetch a missing object by a program that the repository names
    "GIT_NO_LAZY_FETCH": "1", "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "GIT_LITERAL_PATHSPECS": "1",
    "GIT_NO_REPLACE_OBJECTS": "1", "LC_ALL": "C",
}  # fmt: skip
_SUBMODULE = b"160000"
_KEPT_BY_GIT = ("HEAD", "packed-refs", "refs", "reftable", "objects")
_FILE_MAX = 4096


class GitBlob(NamedTuple):
    """One entry of a commit: its git mode (``100644``, ``100755``, ``120000``) and its object name."""

    mode: bytes
    object: bytes


class WorkTree(NamedTuple):
    """The names that git tracks or does not ignore, the commit ("" if none), and if a submodule differs from it."""

    names: frozenset[bytes]
    commit: str
    tree: dict[bytes, GitBlob]
    moved: bool


def has_git(folder: Path) -> bool:
    """Return whether a folder is inside a repository."""
    return _root(folder) is not None


def _root(folder: Path) -> Path | None:
    return next((parent for parent in (folder, *folder.parents) if os.path.lexists(parent / ".git")), None)


def _check_owner(folder: Path) -> None:
    """Raise CodeError for a ``.git`` of another folder, unless it points back, as in worktrees and submodules."""
    root = _root(folder)
    if root is None or (not (root / ".git").is_symlink() and _owns(root, root / ".git")):
        return
    remedy = "Name the folder of that repository itself, or move this .git away"
    raise CodeError(str(folder), f"{root / '.git'} names a repository that is not this folder's", remedy)


def _owns(root: Path, mark: Path) -> bool:
    """Return whether ``mark``, the ``.git`` of ``root``, belongs to this folder."""
    try:
        repository = mark
        if mark.is_file():
            repository = root / _first_line(mark).removeprefix("gitdir:").strip()
        if (repository / "commondir").exists():  # a worktree keeps its branches and objects in another folder
            common = (repository / _first_line(repository / "commondir")).resolve()
            listed = repository.resolve().parent == common / "worktrees"
            back = Path(_first_line(repository / "gitdir")).resolve()
            return listed and back == mark.resolve() and not _links_outside(common)
        if _links_outside(repository):
            return False
        if mark.is_dir() or repository.resolve().is_relative_to(root.resolve()):
            return True
        words = ("config", "--file", str(repository / "config"), "--get", "core.worktree")
        work_tree = _run(words, b"").stdout.decode().strip()
        return bool(work_tree) and (repository / work_tree).resolve() == root.resolve()
    except (OSError, ValueError, CodeError):
        return False


def _links_outside(repository: Path) -> bool:
    """Return whether objects or branches of a repository are links to those of another repository."""
    home = repository.resolve()
    paths = [home / name for name in _KEPT_BY_GIT]
    for path in paths:
        if path.is_symlink():
            if not path.resolve().is_relative_to(home):
                return True
        elif path.is_dir():
            paths += path.iterdir()
    return False


def _first_line(path: Path) -> str:
    return read_bounded(path, _FILE_MAX).decode().partition("\n")[0].strip()


def work(folder: Path) -> WorkTree:
    """Return the state of a work tree, with the repositories inside it. Raises CodeError."""
    _check_owner(folder)
    listed = git(folder, "ls-files", "-z", "--cached", "--others", "--exclude-standard").split(b"\0")
    commit = _head(folder)
    whole = tree(folder, commit) if commit else {}
    names = {name for name in listed if name and not name.endswith(b"/")}
    inner = {name.rstrip(b"/") for name in listed if name.endswith(b"/")}
    places = {name: folder / os.fsdecode(name) for name in names}
    inner |= {name for name, place in places.items() if place.is_dir() and not place.is_symlink()}
    names -= inner
    own = {name: blob for name, blob in whole.items() if blob.mode != _SUBMODULE}
    moved = False
    for name in sorted(inner):
        place = folder / os.fsdecode(name)
        if place.resolve() != folder.resolve() / os.fsdecode(name) or not (place / ".git").exists():
            continue  # behind a link, or not checked out
        state = work(place)
        names |= {name + b"/" + path for path in state.names}
        own |= {name + b"/" + path: blob for path, blob in state.tree.items()}
        recorded = whole.get(name)
        moved = moved or state.moved or recorded is None or recorded.object.decode() != state.commit
    return WorkTree(frozenset(names), commit, own, moved)


def resolve(folder: Path, revision: str) -> str:
    """Return the full name of a commit. Raises CodeError."""
    _check_owner(folder)
    alternates = folder / os.fsdecode(git(folder, "rev-parse", "--git-path", "objects/info/alternates").rstrip(b"\n"))
    if alternates.exists():
        why = f"{alternates} names another repository, whose commits would be packed as well"
        raise CodeError(str(folder), why, "Run git repack -a -d, then remove that file")
    words = ("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
    try:
        return git(folder, *words).decode().strip()
    except CodeError:
        why = f"it has no commit {revision}"
        raise CodeError(str(folder), why, "Fetch it first, or name one of git log") from None


def tree(folder: Path, commit: str) -> dict[bytes, GitBlob]:
    """Return the entries of a commit below the folder, by path. Raises CodeError."""
    result = {}
    for line in git(folder, "ls-tree", "-r", "-z", commit).split(b"\0"):
        if line:
            head, path = line.split(b"\t", 1)
            mode, _, name = head.split(b" ")
            result[path] = GitBlob(mode, name)
    return result


def contents(folder: Path, objects: list[bytes], bytes_max: int) -> list[bytes]:
    """Return the bytes of objects as git stores them. Raises CodeError, also if they exceed ``bytes_max`` together."""
    sizes = git(folder, "cat-file", "--batch-check=%(objectsize)", feed=b"\n".join([*objects, b""])).split(b"\n")
    if sum(int(size) for size in sizes if size.isdigit()) > bytes_max:
        raise CodeError(str(folder), f"that commit holds more than {bytes_max >> 20} MiB", "Leave data out of it")
    answer = git(folder, "cat-file", "--batch", feed=b"\n".join([*objects, b""]))
    blobs, place = [], 0
    for name in objects:
        end = answer.index(b"\n", place)
        words = answer[place:end].split(b" ")
        if len(words) != 3 or words[1] != b"blob":
            raise CodeError(str(folder), f"its object {name.decode()} is missing", "Fetch it, or run git fsck")
        size = int(words[2])
        blobs.append(answer[end + 1 : end + 1 + size])
        place = end + 2 + size
    return blobs


def _head(folder: Path) -> str:
    try:
        return git(folder, "rev-parse", "--verify", "--quiet", "HEAD^{commit}").decode().strip()
    except CodeError:
        return ""


def git(folder: Path, *words: str, feed: bytes = b"") -> bytes:
    """Return the output of git. Raises CodeError with the first line of git's error."""
    done = _run(("-C", str(folder), *_QUIET, *words), feed)
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        raise CodeError(str(folder), f"git says: {lines[0] if lines else done.returncode}", "Try git status there")
    return done.stdout


def _run(words: tuple[str, ...], feed: bytes) -> subprocess.CompletedProcess[bytes]:
    environment = child_environment(OF_A_PERSON, _ENVIRONMENT)
    try:
        return run_child((*_LIMITED, *words), _SECONDS, environment, standard_input=feed)
    except (OSError, subprocess.TimeoutExpired) as error:
        why = str(error) if isinstance(error, OSError) else f"no answer within {_SECONDS} s"
        raise CodeError(words[1], f"git cannot be asked: {why}", "Install git, or move .git away") from None
