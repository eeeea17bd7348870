"""A job's own code: what of a folder is taken, what names it, and what a session unpacks of it."""

import gzip
import hashlib
import io
import json
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from jobs.code.git import CodeError
from jobs.code.pack import names, pack
from jobs.payload.store.tree import (
    CODE_LIMITS,
    CONTENT,
    LISTING,
    BadListing,
    Entry,
    encode_listing,
    parse_listing,
    stays_inside,
    unpack,
)
from jobs.spec import Code

Git = Callable[..., str]


def taken(folder: Path, revision: str = "") -> tuple[Code, dict[str, Entry], bytes]:
    sink = io.BytesIO()
    code, listing = pack(Code(str(folder), revision), sink)
    assert hashlib.sha256(listing).hexdigest() == code.digest
    return code, {entry.path: entry for entry in parse_listing(listing, CODE_LIMITS)[0]}, sink.getvalue()


def stored(folder: Path, target: Path, revision: str = "") -> Code:
    """Write what the store would hold of a folder's code."""
    sink = io.BytesIO()
    code, listing = pack(Code(str(folder), revision), sink)
    target.mkdir()
    (target / LISTING).write_bytes(listing)
    (target / CONTENT).write_bytes(gzip.compress(sink.getvalue()))
    return code


def test_without_git_all_but_hidden_and_generated_files_are_taken(folder: Path) -> None:
    code, entries, _ = taken(folder)
    assert sorted(entries) == ["lib/model.py", "newest.py", "run.sh", "train.py"]
    assert [entries[name].kind for name in ("newest.py", "run.sh", "train.py")] == ["link", "program", "file"]
    assert (code.files, code.bytes, code.commit, code.dirty) == (4, 25, "", False)
    assert names(Code(str(folder))) == set(entries)


@pytest.mark.parametrize("has_git", [False, True])
def test_a_state_folder_inside_is_no_code(folder: Path, git: Git, has_git: bool) -> None:
    """Its database changes all the time, holds other jobs, and its sessions have pipes, which are refused."""
    if has_git:
        git("init")
    before = names(Code(str(folder)))
    (folder / "state" / "sessions").mkdir(parents=True)
    (folder / "state" / "scheduler.db").write_bytes(b"rows")
    os.mkfifo(folder / "state" / "sessions" / "progress")
    assert names(Code(str(folder))) == before
    assert set(taken(folder)[1]) == before


def test_its_digest_tells_names_modes_links_and_bytes_and_nothing_else(folder: Path) -> None:
    first = taken(folder)[0].digest
    os.utime(folder / "train.py", (1, 1))
    (folder / "train.py").chmod(0o600)
    assert taken(folder)[0].digest == first
    digests = {first}
    changes: list[Callable[[], object]] = [
        lambda: (folder / "train.py").chmod(0o700),
        lambda: (folder / "train.py").write_text("print(2)\n"),
        lambda: (folder / "train.py").rename(folder / "train2.py"),
        lambda: (folder / "newer.py").symlink_to("train2.py"),
    ]
    for change in changes:
        change()
        digests.add(taken(folder)[0].digest)
    assert len(digests) == 5


def test_a_session_unpacks_what_was_taken(folder: Path, tmp_path: Path) -> None:
    (folder / "two\nlines 'ü.py").write_text("odd")
    (folder / "empty").write_text("")
    code = stored(folder, tmp_path / "store")
    target = tmp_path / "fresh"
    target.mkdir()
    unpack(tmp_path / "store", code.digest, target)
    assert (target / "two\nlines 'ü.py").read_text() == "odd"
    assert (target / "newest.py").read_text() == "X = 1\n"
    assert [(target / name).stat().st_mode & 0o777 for name in ("run.sh", "train.py")] == [0o755, 0o644]
    again = pack(Code(str(target)), io.BytesIO())[0]
    assert again.digest == code.digest


def test_git_tells_what_is_taken_and_whether_it_is_what_the_commit_holds(folder: Path, git: Git) -> None:
    git("init", "-q")
    (folder / ".gitignore").write_text("data/\n*.log\n")
    (folder / "data").mkdir()
    (folder / "data" / "big").write_text("big")
    (folder / "kept.log").write_text("log")
    git("add", "train.py", "lib", "run.sh", "newest.py", ".gitignore")
    git("add", "-f", "kept.log")
    assert taken(folder)[0].commit == ""
    git("commit", "-qm", "first")
    (folder / ".git" / "info" / "exclude").write_text("venv\nenv3\n__pycache__\n.hidden\n")
    code, entries, _ = taken(folder)
    assert sorted(entries) == [".gitignore", "kept.log", "lib/model.py", "newest.py", "run.sh", "train.py"]
    assert (code.commit, code.dirty) == (git("rev-parse", "HEAD"), False)
    (folder / ".schedignore").write_text("*.log\n.schedignore\n")
    code, entries, _ = taken(folder)
    assert "kept.log" not in entries
    assert not code.dirty, "what stays at home is no difference"
    for change in (
        lambda: (folder / "new.py").write_text(""),
        lambda: (folder / "train.py").write_text("x"),
        (folder / "train.py").unlink,
        lambda: (folder / "run.sh").chmod(0o644),
    ):
        change()
        assert taken(folder)[0].dirty
        git("reset", "-q", "--hard")
        git("clean", "-qf")
        (folder / ".schedignore").write_text("*.log\n.schedignore\n")
        assert not taken(folder)[0].dirty


def test_a_commit_is_taken_out_of_the_repository_whatever_is_checked_out(folder: Path, git: Git) -> None:
    git("init", "-q")
    git("add", "train.py", "lib", "run.sh", "newest.py")
    git("commit", "-qm", "first")
    first = git("rev-parse", "HEAD")
    plain = taken(folder, "HEAD")[0]
    (folder / "train.py").write_text("print(3)\n")
    git("commit", "-qam", "second")
    code, entries, content = taken(folder, first[:10])
    assert (code.commit, code.digest, code.dirty) == (first, plain.digest, False)
    assert sorted(entries) == ["lib/model.py", "newest.py", "run.sh", "train.py"]
    assert b"print(1)" in content
    with pytest.raises(CodeError, match="no commit nowhere"):
        taken(folder, "nowhere")
    with pytest.raises(CodeError, match="no commit --help"):
        taken(folder, "--help")


def test_a_submodule_comes_along_and_its_commit_counts(folder: Path, git: Git) -> None:
    git("init", "-q")
    inner = folder / "lib"
    for words in (("init", "-q"), ("add", "."), ("commit", "-qm", "inner")):
        git("-C", str(inner), *words)
    (folder / ".git" / "info" / "exclude").write_text("venv\nenv3\n__pycache__\n.hidden\n")
    git("add", ".")
    git("commit", "-qm", "outer")
    code, entries, _ = taken(folder)
    assert "lib/model.py" in entries
    assert not code.dirty
    (inner / "model.py").write_text("X = 2\n")
    assert taken(folder)[0].dirty
    git("-C", str(inner), "commit", "-qam", "moved")
    assert taken(folder)[0].dirty
    with pytest.raises(CodeError, match="'lib' is a submodule"):
        taken(folder, "HEAD")


def test_a_repository_has_git_run_nothing(folder: Path, git: Git, tmp_path: Path) -> None:
    """Hooks, a file system monitor, filters and a remote for missing objects: each would leave a mark."""
    mark = tmp_path / "ran"
    script = tmp_path / "evil"
    script.write_text(f"#!/bin/sh\necho ran >> {mark}\ncat\n")
    script.chmod(0o755)
    git("init", "-q")
    git("add", "train.py", "lib")
    git("commit", "-qm", "first")
    for key, value in {
        "core.fsmonitor": str(script),
        "core.hooksPath": str(tmp_path / "hooks"),
        "filter.evil.clean": str(script),
        "filter.evil.smudge": str(script),
        "filter.evil.process": str(script),
        "core.sshCommand": str(script),
        "core.pager": str(script),
        "diff.external": str(script),
        "extensions.partialClone": "origin",
        "remote.origin.promisor": "true",
        "remote.origin.url": f"ext::{script}",
        "protocol.ext.allow": "always",
        "uploadpack.packObjectsHook": str(script),
    }.items():
        git("config", key, value)
    (tmp_path / "hooks").mkdir()
    for hook in ("post-index-change", "reference-transaction", "post-checkout", "fsmonitor-watchman"):
        (tmp_path / "hooks" / hook).symlink_to(script)
    (folder / ".gitattributes").write_text("* filter=evil\n")
    (folder / "train.py").write_text("changed\n")
    code, entries, _ = taken(folder)
    assert code.dirty
    assert entries["train.py"].content == hashlib.sha256(b"changed\n").hexdigest()
    taken(folder, "HEAD")
    blob = git("rev-parse", "HEAD:train.py")
    (folder / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
    with pytest.raises(CodeError, match=r"missing|git says"):
        taken(folder, "HEAD")
    assert not mark.exists()


def refused(folder: Path, match: str) -> None:
    with pytest.raises(CodeError, match=match):
        taken(folder)


def test_what_leads_out_or_is_no_file_is_refused_and_can_be_left_out(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("secret")
    for target in ("../outside", "/etc/passwd", "lib/../../outside"):
        (folder / "out").symlink_to(target)
        refused(folder, "'out' is a link out of the folder.*schedignore")
        (folder / "out").unlink()
    os.mkfifo(folder / "pipe")
    refused(folder, "'pipe' is a device, a socket or a pipe")
    (folder / "pipe").unlink()
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(folder / "socket"))
        refused(folder, "'socket' is a device, a socket or a pipe")
        (folder / ".schedignore").write_text("/socket\n")
        assert "socket" not in taken(folder)[1]
    (folder / os.fsdecode(b"no-\xff-text")).write_text("")
    refused(folder, "a name that is no text")


def test_it_is_not_too_large(folder: Path) -> None:
    with (folder / "weights").open("wb") as sparse:
        sparse.truncate(50 << 30)
    refused(folder, r"with 'weights' \(53,687,091,200 bytes\) it is too large.*schedignore")
    (folder / "weights").unlink()
    for number in range(CODE_LIMITS.files - 3):
        (folder / f"n{number}").touch()
    refused(folder, "more than 20,000 files.*schedignore")


def test_nothing_is_no_code(tmp_path: Path) -> None:
    refused(tmp_path / "nowhere", "there is no such folder")
    refused(tmp_path, "nothing is in it")


def test_a_tracked_file_behind_a_link_is_not_followed(folder: Path, git: Git, tmp_path: Path) -> None:
    git("init", "-q")
    git("add", "lib", "train.py")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "model.py").write_text("secret")
    (folder / "lib" / "model.py").unlink()
    (folder / "lib").rmdir()
    (folder / "lib").symlink_to(tmp_path / "elsewhere")
    refused(folder, "'lib' is a link out of the folder")
    (folder / ".schedignore").write_text("lib\n/env3\n/venv\n.hidden\n__pycache__\nnewest.py\n")
    assert "lib/model.py" not in taken(folder)[1]


def listing(*entries: Entry) -> bytes:
    return json.dumps({"format": 1, "entries": entries}).encode()


@pytest.mark.parametrize(
    "entries",
    [
        [Entry("../x", "file", "0" * 64, 0)],
        [Entry("/x", "file", "0" * 64, 0)],
        [Entry("a//x", "file", "0" * 64, 0)],
        [Entry("a/./x", "file", "0" * 64, 0)],
        [Entry("", "file", "0" * 64, 0)],
        [Entry("a\0", "file", "0" * 64, 0)],
        [Entry("n" * 256, "file", "0" * 64, 0)],
        [Entry("a", "file", "0" * 64, -1)],
        [Entry("a", "file", "0" * 64, 200 << 20)],
        [Entry("a", "device", "0" * 64, 0)],  # type: ignore[arg-type] # what a hostile one says
        [Entry("b", "file", "0" * 64, 0), Entry("a", "file", "0" * 64, 0)],
        [Entry("a", "file", "0" * 64, 0), Entry("a", "file", "0" * 64, 0)],
        [Entry("a", "link", "b", 0), Entry("a/x", "file", "0" * 64, 0)],
        [Entry("a", "link", "../x", 0)],
        [Entry("a", "link", "/etc", 0)],
        [Entry("a", "link", "", 0)],
        [Entry("a", "link", "a", 0)],
        [Entry("a/b/d", "link", "../..", 0), Entry("x", "link", "a/b/d/../secret", 0)],
    ],
)
def test_a_hostile_listing_is_refused_before_anything_is_written(entries: list[Entry]) -> None:
    with pytest.raises(BadListing):
        parse_listing(listing(*entries), CODE_LIMITS)


def test_links_among_each_other_stay_inside() -> None:
    links = {"a/b": "../c", "c": "d", "loop": "pool", "pool": "loop"}
    assert stays_inside("x", "a/b/../y", links)
    assert not stays_inside("x", "a/b/../../y", links)
    assert not stays_inside("x", "loop", links)
    chain = {str(number): str(number + 1) for number in range(41)}
    assert stays_inside("x", "1", chain), "forty links, as many as the kernel follows"
    assert not stays_inside("x", "0", chain)


@pytest.mark.parametrize(
    "damage",
    [
        lambda store: (store / LISTING).write_bytes((store / LISTING).read_bytes() + b" "),
        lambda store: (store / CONTENT).write_bytes((store / CONTENT).read_bytes()[:-9]),
        lambda store: (store / CONTENT).write_bytes(b"no gzip"),
        lambda store: (store / CONTENT).write_bytes(
            gzip.compress(gzip.decompress((store / CONTENT).read_bytes())[:-1])
        ),
        lambda store: (store / CONTENT).write_bytes(
            gzip.compress(gzip.decompress((store / CONTENT).read_bytes()) + b"x")
        ),
        lambda store: (store / CONTENT).write_bytes(
            gzip.compress(gzip.decompress((store / CONTENT).read_bytes())[::-1])
        ),
    ],
)
def test_damage_in_the_store_is_found(folder: Path, tmp_path: Path, damage: Callable[[Path], object]) -> None:
    code = stored(folder, tmp_path / "store")
    damage(tmp_path / "store")
    (tmp_path / "fresh").mkdir()
    with pytest.raises(BadListing):
        unpack(tmp_path / "store", code.digest, tmp_path / "fresh")


def test_a_listing_has_one_form() -> None:
    entries = [Entry("b", "file", "0" * 64, 0), Entry("a", "file", "1" * 64, 0)]
    assert encode_listing(entries, CODE_LIMITS) == encode_listing(reversed(entries), CODE_LIMITS)
    with pytest.raises(BadListing, match="format 2"):
        parse_listing(b'{"format":2,"entries":[]}', CODE_LIMITS)
    with pytest.raises(BadListing, match="not a listing"):
        parse_listing(b"[]", CODE_LIMITS)
