"""What may be sent to a target, and what never is."""

import os
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

from platforms.targets.base import BadRelease
from platforms.targets.release import SUMS, open_release, seal
from tests.lab.releases import CONFIG, WEIGHTS, make_folder, weights


class Hostile:
    """Runs a command where it is unpickled."""

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, ("true",)


def test_a_folder_that_was_sealed_opens_with_all_its_digests(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "v", b"weights", {"tokenizer/merges.txt": b"a b\n", "LICENSE": b"free"})
    release = open_release("ufm", 7, folder)
    assert set(release.files) == {WEIGHTS, CONFIG, "README.md", "tokenizer/merges.txt", "LICENSE"}
    assert release.sums == (folder / SUMS).read_bytes()
    assert open_release("ufm", 7, folder).digest == release.digest
    (folder / "README.md").write_bytes(b"# another\n")
    seal(folder)
    assert open_release("ufm", 7, folder).digest != release.digest


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("adapter_model.bin", b"\x00" * 20, "is a pickle"),
        ("model.pt", b"anything", "is a pickle"),
        ("weights.safetensors", pickle.dumps(Hostile()), "is a pickle"),
        ("notes.txt", pickle.dumps([1, 2], protocol=2), "is a pickle"),
        ("weights.npz", b"PK\x03\x04" + bytes(40), "no archive of arrays"),
        ("weights.npy", b"PK\x03\x04" + bytes(40), "is a pickle or an archive"),
        (
            "objects.npy",
            b"\x93NUMPY\x01\x00\x76\x00{'descr': '|O', 'fortran_order': False, 'shape': (1,), }",
            "no array",
        ),
        ("strange.npy", b"no array at all", "no array"),
        ("modeling_ufm.py", b"print('hello')", "no kind of file"),
        ("libufm.so", b"\x7fELF", "no kind of file"),
        ("config.json", b'{"auto_map": {"AutoModel": "modeling.M"}}', "asks for code of its own"),
        ("tokenizer_config.json", b"[" * 100_000, "is no JSON"),
        ("more.safetensors", b"\xff" * 8 + b"{}", "cut off, or no safetensors"),
        ("more.safetensors", b"", "cut off, or no safetensors"),
        ("more.safetensors", (2).to_bytes(8, "little") + b"{}", "cut off, or longer"),
        ("more.safetensors", (9).to_bytes(8, "little") + b"[[[[[[[[[", "header that cannot be read"),
        ("more.safetensors", weights(b"some weights")[:-1], "cut off, or longer"),
        ("more.safetensors", weights(b"some weights") + b"x", "cut off, or longer"),
        ("more.safetensors", weights(b"abc").replace(b"[0, 3]", b"[1, 3]"), "where its shape"),
        ("more.safetensors", weights(b"abc").replace(b"[0, 3]", b"[1, 4]"), "overlap or leave gaps"),
        ("more.safetensors", weights(b"abcd", "F32"), None),
        ("more.safetensors", weights(b"\0\0\xc0\x7f", "F32"), "w has a number that is not finite"),
        ("model.safetensors.index.json", b'{"weight_map": {"w": "adapter_model.safetensors"}}', None),
        (
            "model.safetensors.index.json",
            b'{"weight_map": {"w": "adapter_model.safetensors", "v": "adapter_model.safetensors"}}',
            "v is in model",
        ),
        ("model.safetensors.index.json", b'{"weight_map": {"w": "../secret.safetensors"}}', "w is in model"),
    ],
)
def test_what_runs_code_or_is_damaged_is_refused_by_name(
    tmp_path: Path, name: str, data: bytes, said: str | None
) -> None:
    folder = make_folder(tmp_path / "v", b"weights", {name: data})
    if said is None:
        assert name in open_release("ufm", 1, folder).files
        return
    with pytest.raises(BadRelease, match=said) as found:
        open_release("ufm", 1, folder)
    assert name in str(found.value)
    assert found.value.remedy


def test_a_file_that_is_not_listed_is_refused(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "v", b"weights")
    (folder / "extra.txt").write_text("hello")
    with pytest.raises(BadRelease, match=r"extra\.txt is not in SHA256SUMS"):
        open_release("ufm", 1, folder)


def test_a_file_that_is_missing_or_changed_is_refused(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "v", b"weights")
    (folder / "README.md").write_text("changed")
    with pytest.raises(BadRelease, match=r"README\.md is not as"):
        open_release("ufm", 1, folder)
    (folder / "README.md").unlink()
    with pytest.raises(BadRelease, match=r"README\.md is in SHA256SUMS and not there"):
        open_release("ufm", 1, folder)


@pytest.mark.parametrize("sums", ["", "nothing\n", f"{'a' * 64}  ../../etc/passwd\n", f"{'a' * 64}  {SUMS}\n"])
def test_a_list_that_is_none_is_refused(tmp_path: Path, sums: str) -> None:
    folder = make_folder(tmp_path / "v", b"weights")
    (folder / SUMS).write_text(sums)
    with pytest.raises(BadRelease):
        open_release("ufm", 1, folder)


def test_links_and_pipes_are_refused(tmp_path: Path) -> None:
    for make in (lambda path: path.symlink_to("/etc/passwd"), os.mkfifo):
        folder = make_folder(tmp_path / f"{make}", b"weights")
        make(folder / "odd.txt")
        with pytest.raises(BadRelease, match=r"odd\.txt is no plain file"):
            open_release("ufm", 1, folder)


def test_an_empty_folder_is_no_release(tmp_path: Path) -> None:
    with pytest.raises(BadRelease, match="no files"):
        open_release("ufm", 1, tmp_path)


@pytest.mark.parametrize(("model", "version"), [("../ufm", 1), ("UFM", 1), ("ufm", 0), ("", 1), ("u f m", 1)])
def test_what_is_no_name_of_a_version_is_refused(tmp_path: Path, model: str, version: int) -> None:
    folder = make_folder(tmp_path / "v", b"weights")
    with pytest.raises(BadRelease, match="not a release name"):
        open_release(model, version, folder)
