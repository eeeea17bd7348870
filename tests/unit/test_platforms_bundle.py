"""Archives: the payload packed the same everywhere, and hostile ones refused whole."""

import os
import stat
import tarfile
import warnings
import zipfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from platforms.bundle import BadArchive, BundleLimits, build_bundle, extract
from tests.lab.night import share


def member(name: str, content: bytes = b"", mode: int = 0) -> tuple[zipfile.ZipInfo, bytes]:
    made = zipfile.ZipInfo(name)
    made.external_attr = mode << 16
    return made, content


def packed(path: Path, *members: tuple[zipfile.ZipInfo, bytes]) -> Path:
    with warnings.catch_warnings(), zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        warnings.simplefilter("ignore")  # of names that come twice
        for made, content in members:
            archive.writestr(made, content, zipfile.ZIP_DEFLATED)
    return path


def left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != "archive")


@pytest.fixture
def payload(tmp_path: Path) -> Path:
    folder = tmp_path / "jobs" / "payload"
    (folder / "trainers" / "__pycache__").mkdir(parents=True)
    (folder / "agent.py").write_text("print('agent')\n")
    (folder / "trainers" / "charlm.py").write_text("print('trainer')\n")
    (folder / "trainers" / "__pycache__" / "charlm.cpython-311.pyc").write_bytes(b"\0")
    return folder


def test_a_bundle_holds_the_sources_and_unpacks_to_them(payload: Path, tmp_path: Path) -> None:
    bundle = build_bundle(payload, tmp_path / "bundles")
    with tarfile.open(bundle.path) as archive:
        archive.extractall(tmp_path / "there", filter="data")
        assert archive.getnames() == ["payload/agent.py", "payload/trainers/charlm.py"]
    assert (tmp_path / "there" / "payload" / "agent.py").read_text() == "print('agent')\n"


def test_a_bundle_is_the_same_bytes_whatever_the_files_ages_and_rights(payload: Path, tmp_path: Path) -> None:
    first = build_bundle(payload, tmp_path / "first")
    for path in payload.rglob("*.py"):
        os.utime(path, (1, 1))
        path.chmod(0o600)
    second = build_bundle(payload, tmp_path / "second")
    assert first.sha256 == second.sha256
    assert first.path.name == second.path.name == f"payload-{first.sha256}.tar.gz"
    assert first.path.read_bytes() == second.path.read_bytes()


def test_a_bundle_of_other_sources_has_another_name_and_an_old_one_is_kept(payload: Path, tmp_path: Path) -> None:
    first = build_bundle(payload, tmp_path / "bundles")
    assert build_bundle(payload, tmp_path / "bundles") == first
    (payload / "agent.py").write_text("print('newer')\n")
    second = build_bundle(payload, tmp_path / "bundles")
    assert sorted(path.name for path in (tmp_path / "bundles").iterdir()) == sorted([first.path.name, second.path.name])


def test_plain_files_and_folders_are_taken(tmp_path: Path) -> None:
    archive = packed(
        tmp_path / "archive",
        member("./"),
        member("./sub/"),
        member("./sub/a.bin", b"\0" * 3_000_000),
        member("b c.txt", b"b", stat.S_IFREG | 0o4777),
    )
    assert extract(archive, tmp_path / "out", BundleLimits(ratio=10_000)) == ["b c.txt", "sub/a.bin"]
    assert (tmp_path / "out" / "sub" / "a.bin").stat().st_size == 3_000_000
    assert stat.S_IMODE((tmp_path / "out" / "b c.txt").stat().st_mode) & (stat.S_ISUID | stat.S_IXUSR) == 0


LINK = member("a", b"/etc", stat.S_IFLNK | 0o777)
HOSTILE = {
    "dot dot": [member("../out2", b"x")],
    "dot dot inside": [member("a/../../out2", b"x")],
    "absolute": [member("/out2", b"x")],
    "backslash": [member("a\\..\\b", b"x")],
    "control character": [member("a\nb", b"x")],
    "not ASCII": [member("ключ", b"x")],
    "symbolic link": [LINK],
    "through a symbolic link": [LINK, member("a/passwd", b"x")],
    "device": [member("a", mode=stat.S_IFCHR)],
    "pipe": [member("a", mode=stat.S_IFIFO)],
    "a folder that says it is a file": [member("a/", mode=stat.S_IFREG)],
    "twice": [member("a", b"1"), member("a", b"2")],
    "twice but for its case": [member("a", b"1"), member("A", b"2")],
    "file as folder": [member("a", b"1"), member("a/b", b"2")],
    "too deep": [member("/".join("abcdefghij"), b"x")],
    "too many": [member(str(number), b"") for number in range(21)],
    "too large a file": [member("a", b"x" * 5001)],
    "too much in all": [member("a", os.urandom(4000)), member("b", os.urandom(4000)), member("c", os.urandom(4000))],
    "after good ones": [member("good", b"1"), member("../bad", b"2")],
}
SMALL = BundleLimits(files=20, file_bytes=5000, total_bytes=10_000, depth=8)


@pytest.mark.parametrize("name", sorted(HOSTILE))
def test_a_hostile_archive_is_refused_whole(tmp_path: Path, name: str) -> None:
    archive = packed(tmp_path / "archive", *HOSTILE[name])
    with pytest.raises(BadArchive, match="none of its files were kept"):
        extract(archive, tmp_path / "out", SMALL)
    assert left_in(tmp_path) == []


@pytest.mark.parametrize("name", ["../up", "/etc/x", "a/../../b", "a\\b", "a//b"])
def test_a_zip_with_a_bad_name_is_refused(tmp_path: Path, name: str) -> None:
    with zipfile.ZipFile(tmp_path / "archive", "w") as archive:
        archive.writestr("good", b"1")
        archive.writestr(zipfile.ZipInfo(name), b"x")
    with pytest.raises(BadArchive):
        extract(tmp_path / "archive", tmp_path / "out")
    assert left_in(tmp_path) == []


def test_a_zip_with_a_link_is_refused(tmp_path: Path) -> None:
    link = zipfile.ZipInfo("a")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(tmp_path / "archive", "w") as archive:
        archive.writestr(link, b"/etc")
    with pytest.raises(BadArchive, match="plain file"):
        extract(tmp_path / "archive", tmp_path / "out")


def test_a_zip_bomb_is_refused_by_its_ratio(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "archive", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a", bytes(50_000_000))
    with pytest.raises(BadArchive, match="200 times"):
        extract(tmp_path / "archive", tmp_path / "out")
    assert left_in(tmp_path) == []


def test_a_plain_zip_is_taken(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "archive", "w") as archive:
        archive.writestr("sub/", b"")
        archive.writestr("sub/a", b"1")
    assert extract(tmp_path / "archive", tmp_path / "out") == ["sub/a"]


def test_an_existing_folder_is_never_unpacked_into(tmp_path: Path) -> None:
    archive = packed(tmp_path / "archive", member("a", b"1"))
    (tmp_path / "out").mkdir()
    with pytest.raises(FileExistsError):
        extract(archive, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


@settings(max_examples=share(150), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(edits=st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), max_size=6), cut=st.integers(0, 2000))
@example(edits=[], cut=2000)
def test_a_damaged_archive_is_taken_whole_or_refused_whole(
    tmp_path: Path, edits: list[tuple[int, int]], cut: int
) -> None:
    """Whatever bytes are changed and wherever it is cut: a clean refusal, or plain files inside the target."""
    data = bytearray(packed(tmp_path / "archive", member("sub/a", b"hello" * 20)).read_bytes())
    for position, value in edits:
        data[position % len(data)] = value
    folder = Path(os.path.realpath(tmp_path)) / os.urandom(8).hex()
    folder.mkdir()
    (folder / "archive").write_bytes(data[: max(cut, 1)] if cut < 2000 else data)
    try:
        names = extract(folder / "archive", folder / "out")
    except BadArchive:
        assert left_in(folder) == []
    else:
        assert left_in(folder) == ["out"]
        assert all((folder / "out" / name).is_file() and not (folder / "out" / name).is_symlink() for name in names)
