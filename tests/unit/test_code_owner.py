"""A folder of code gives away no repository but its own."""

from __future__ import annotations

import io
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from jobs.code.git import CodeError
from jobs.code.pack import names, pack
from jobs.spec import Code

Git = Callable[..., str]


def _names_directly(repository: Path, folder: Path) -> None:
    (folder / ".git").write_text(f"gitdir: {repository / '.git'}\n")


def _links(repository: Path, folder: Path) -> None:
    (folder / ".git").symlink_to(repository / ".git")


def _names_a_false_worktree(repository: Path, folder: Path) -> None:
    false = folder / "worktrees" / "x"
    false.mkdir(parents=True)
    (false / "commondir").write_text(f"{repository / '.git'}\n")
    (false / "gitdir").write_text(f"{folder / '.git'}\n")
    (false / "HEAD").write_text("ref: refs/heads/main\n")
    (folder / ".git").write_text(f"gitdir: {false}\n")


def _shares_its_objects(repository: Path, folder: Path) -> None:
    subprocess.run(("git", "init", "-q", str(folder)), check=True)
    (folder / ".git" / "commondir").write_text(f"{repository / '.git'}\n")


def _links_inside(repository: Path, folder: Path) -> None:
    (folder / ".git").mkdir()
    for name in ("objects", "refs", "config", "HEAD"):
        (folder / ".git" / name).symlink_to(repository / ".git" / name)


def _links_a_branch(repository: Path, folder: Path) -> None:
    subprocess.run(("git", "init", "-q", "-b", "main", str(folder)), check=True)
    (folder / ".git" / "objects" / "info" / "alternates").write_text(f"{repository / '.git' / 'objects'}\n")
    (folder / ".git" / "refs" / "heads" / "main").symlink_to(repository / ".git" / "refs" / "heads" / "main")


def _links_inside_what_it_names(repository: Path, folder: Path) -> None:
    (folder / ".git").write_text("gitdir: own\n")
    (folder / "own").mkdir()
    for name in ("objects", "refs", "config", "HEAD"):
        (folder / "own" / name).symlink_to(repository / ".git" / name)


BORROWERS = (
    *(_names_directly, _links, _names_a_false_worktree, _shares_its_objects),
    *(_links_inside, _links_a_branch, _links_inside_what_it_names),
)


@pytest.mark.parametrize("borrow", BORROWERS)
@pytest.mark.parametrize("revision", ["", "main"])
def test_a_folder_that_names_the_repository_of_another_is_refused(
    folder: Path, git: Git, tmp_path: Path, borrow: Callable[[Path, Path], None], revision: str
) -> None:
    git("init", "-q", "-b", "main")
    git("add", "train.py")
    git("commit", "-qm", "private")
    borrower = tmp_path / "borrower"
    borrower.mkdir()
    borrow(folder, borrower)
    with pytest.raises(CodeError, match="names a repository that is not this folder's"):
        pack(Code(str(borrower), revision), io.BytesIO())


@pytest.mark.parametrize("name", ["commondir", "gitdir"])
def test_a_pipe_in_a_repository_holds_nobody(folder: Path, git: Git, tmp_path: Path, name: str) -> None:
    git("init", "-q")
    (folder / ".git" / "commondir").write_text("..\n")
    (folder / ".git" / name).unlink(missing_ok=True)
    os.mkfifo(folder / ".git" / name)
    with pytest.raises(CodeError, match="names a repository that is not this folder's"):
        pack(Code(str(folder)), io.BytesIO())


def test_git_reads_no_file_of_a_folder_beyond_its_memory(folder: Path, git: Git) -> None:
    git("init", "-q")
    with (folder / ".gitignore").open("wb") as stream:
        stream.truncate(8 << 30)  # a hole: it takes no room on the disk
    with pytest.raises(CodeError, match="Out of memory"):
        pack(Code(str(folder)), io.BytesIO())


def test_a_commit_of_a_repository_that_lends_its_objects_is_refused(folder: Path, git: Git, tmp_path: Path) -> None:
    git("init", "-q", "-b", "main")
    git("add", "train.py")
    git("commit", "-qm", "private")
    commit, borrower = git("rev-parse", "HEAD").strip(), tmp_path / "borrower"
    git("init", "-q", str(borrower))
    (borrower / "own.py").touch()
    (borrower / ".git" / "objects" / "info" / "alternates").write_text(f"{folder / '.git' / 'objects'}\n")
    with pytest.raises(CodeError, match="names another repository, whose commits would be packed"):
        pack(Code(str(borrower), commit), io.BytesIO())
    assert names(Code(str(borrower))) == {"own.py"}


def test_a_head_that_links_to_its_own_branch_is_taken(folder: Path, git: Git) -> None:
    """As old versions of git wrote it; and a link that leads in a circle is walked once."""
    git("init", "-q", "-b", "main")
    git("add", "train.py")
    git("commit", "-qm", "first")
    (folder / ".git" / "HEAD").unlink()
    (folder / ".git" / "HEAD").symlink_to("refs/heads/main")
    (folder / ".git" / "objects" / "circle").symlink_to(".")
    assert "train.py" in names(Code(str(folder), "main"))


def test_a_submodule_whose_repository_lies_elsewhere_is_taken(folder: Path, git: Git, tmp_path: Path) -> None:
    git("init", "-q")
    git("add", "train.py")
    git("commit", "-qm", "first")
    outer = tmp_path / "outer"
    git("init", "-q", str(outer))
    git("-C", str(outer), "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(folder), "inner")
    assert (outer / "inner" / ".git").is_file()
    assert sorted(names(Code(str(outer / "inner"), "HEAD"))) == ["train.py"]
    assert "inner/train.py" in names(Code(str(outer)))


def test_a_worktree_is_taken(folder: Path, git: Git, tmp_path: Path) -> None:
    git("init", "-q", "-b", "main")
    git("add", "train.py")
    git("commit", "-qm", "first")
    git("worktree", "add", "-q", str(tmp_path / "tree"), "-b", "other")
    assert sorted(names(Code(str(tmp_path / "tree")))) == ["train.py"]
    assert sorted(names(Code(str(tmp_path / "tree"), "main"))) == ["train.py"]
