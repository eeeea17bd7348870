"""The rules of .schedignore leave out what git would leave out, in bounded work."""

from __future__ import annotations

import io
import random
import subprocess
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest

from jobs.code.git import CodeError
from jobs.code.pack import Ignore, names, pack
from jobs.spec import Code

Git = Callable[..., str]

PATTERNS = """
*.log
!keep.log
/top
build/
docs/**/draft
a/*.txt
**/deep
[ab]?.c
[!x]z
sp\\ ace
\\#hash
# no rule
trail
mid/dle
out/**
"""
PATHS = tuple(
    """x.log keep.log d/keep.log top d/top build/x d/build/y build2 docs/draft docs/a/b/draft a/b.txt a/c/b.txt deep
d/deep/x ab.c bc.c xz yz #hash trail d/trail/x mid/dle d/mid/dle out/x out/y/z""".split()  # noqa: SIM905 - as it is read
)


def test_schedignore_is_read_as_git_reads_gitignore(folder: Path, git: Git) -> None:
    git("init", "-q")
    (folder / ".gitignore").write_text(PATTERNS)
    rules = Ignore(PATTERNS, "code")
    paths = [*PATHS, "sp ace"]
    for path in paths:
        words = ("git", "-C", str(folder), "check-ignore", "--no-index", "-q", path)
        assert rules.leaves_out(path) == (subprocess.run(words, check=False).returncode == 0), path


def test_random_patterns_leave_out_what_git_leaves_out(folder: Path, git: Git) -> None:
    git("init", "-q")
    draw = random.Random(1)
    pieces = ("a", "b", "*", "?", "/", "**/", "/**", "[ab]", "[!a]", ".", "!", r"\a", "[a-b]", "***")
    paths = ["/".join(parts) for depth in (1, 2, 3) for parts in product(("a", "b", "ab", "ba", "a.b"), repeat=depth)]
    for _ in range(100):
        lines = ["".join(draw.choices(pieces, k=draw.randint(1, 6))).replace("//", "/") for _ in range(3)]
        (folder / ".gitignore").write_text("\n".join(lines))
        words = ("git", "-C", str(folder), "check-ignore", "--no-index", "--stdin")
        answer = subprocess.run(words, check=False, input="\n".join(paths), capture_output=True, text=True).stdout
        rules = Ignore("\n".join(lines), "code")
        assert [path for path in paths if rules.leaves_out(path)] == answer.splitlines(), lines


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("*a" * 12 + "b", "a" * 200),
        ("**/" * 12 + "b", "a/" * 100 + "a"),
        ("**/*a*a*a*a*a*a*b/**/*a*a*a*a*b", ("a" * 60 + "/") * 12 + "a"),
        ("[ab]*" * 30 + "c", "ab" * 100),
    ],
)
def test_a_pattern_with_many_wildcards_is_matched_in_little_work(pattern: str, path: str) -> None:
    steps = 0

    def count(*_: object) -> None:
        nonlocal steps
        steps += 1

    rules = Ignore(pattern, "code")
    sys.setprofile(count)
    try:
        assert not rules.leaves_out(path)
    finally:
        sys.setprofile(None)
    assert steps < 500_000


def test_a_pattern_longer_than_any_path_is_refused() -> None:
    """A minute went by until a line of a million characters was read."""
    assert not Ignore("x" * 4_096, "code").leaves_out("file")
    with pytest.raises(CodeError, match=r"a line of \.schedignore has 1,000,000 characters"):
        Ignore("x" * 1_000_000, "code")


def test_patterns_that_take_too_long_to_read_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = iter(range(0, 10_000, 40))
    monkeypatch.setattr("jobs.code.pack.stopwatch", lambda: next(readings))
    with pytest.raises(CodeError, match="takes more than 60 s"):
        Ignore("a\nb\n", "code")


def test_a_set_that_is_not_closed_matches_nothing_as_in_git(folder: Path, git: Git) -> None:
    git("init", "-q")
    pattern = "a[b\n[ab\n[c]x[d\n"
    (folder / ".gitignore").write_text(pattern)
    names = ("a[b", "ab", "a", "b", "[ab", "cx[d", "cxd")
    words = ("git", "-C", str(folder), "check-ignore", "--no-index", *names)
    assert subprocess.run(words, check=False, capture_output=True, text=True).stdout == ""
    assert not any(Ignore(pattern, "code").leaves_out(name) for name in names)


def test_a_folder_that_takes_too_long_to_list_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / ".schedignore").write_text("*.log\n")
    readings = iter(range(0, 10_000, 25))
    monkeypatch.setattr("jobs.code.pack.stopwatch", lambda: next(readings))
    with pytest.raises(CodeError, match=r"listing its files takes more than 60 s.*fewer and shorter patterns"):
        pack(Code(str(folder)), io.BytesIO())


@pytest.mark.parametrize(
    ("pattern", "fitting", "others"),
    [
        ("[z-a]", "za", "b-"),
        ("[a-cx-z]", "abcxyz", "dw-"),
        ("[a&&b]", "a&b", "c"),
        ("[a--]", "a-", "b"),
        ("[!a||b]", "c&", "a|b"),
        ("[a~~b]", "a~b", "c"),
        ("[-a]", "-a", "b"),
        (r"[\\-a]", "\\_a", "b"),
        ("[[a]", "[a", "b"),
    ],
)
def test_a_set_is_one_of_characters_and_ranges_and_of_nothing_else(pattern: str, fitting: str, others: str) -> None:
    """A range that ran backwards was an error of Python's."""
    rules = Ignore(pattern, "code")
    assert [letter for letter in fitting if not rules.leaves_out(letter)] == []
    assert [letter for letter in others if rules.leaves_out(letter)] == []


def test_certificates_are_not_packed_with_the_files_that_they_are_of(folder: Path) -> None:
    before = names(Code(str(folder)))
    for end in ("json", "svg"):
        (folder / f"train.py.certificate.{end}").write_text("1\n")
    assert names(Code(str(folder))) == before
    (folder / ".schedignore").write_text("!*.certificate.svg\n")
    assert "train.py.certificate.svg" in names(Code(str(folder)))
