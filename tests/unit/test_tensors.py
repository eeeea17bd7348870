"""Weights are read number by number before they go anywhere: what cannot be used is refused with the tensor's name."""

import io
import json
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from platforms.targets import release
from platforms.targets.release import (
    BadTensors,
    check_array,
    check_arrays,
    check_pairs,
    check_safetensors,
    read_header,
)


def write(path: Path, parts: dict[str, tuple[str, list[int], bytes]], **header: Any) -> Path:
    """Write a safetensors file of tensors by name: type, shape and bytes."""
    told: dict[str, Any] = {}
    at = 0
    for name, (kind, shape, data) in parts.items():
        told[name] = {"dtype": kind, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps({**told, **header}).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(data for _, _, data in parts.values()))
    return path


def bf16(number: float) -> bytes:
    return struct.pack("<f", number)[2:]


INF, NAN = float("inf"), float("nan")
PACKED = {
    "F64": lambda number: struct.pack("<d", number),
    "F32": lambda number: struct.pack("<f", number),
    "F16": lambda number: struct.pack("<e", number),
    "BF16": bf16,
}
GOOD = (0.0, -0.0, 1.0, -1.5, 6.1e-5, 65_504.0, -65_504.0)


@pytest.mark.parametrize("kind", PACKED)
def test_finite_numbers_of_every_size_pass_and_one_that_is_not_is_found_wherever_it_lies(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(release, "_PIECE_BYTES", 64)
    pack = PACKED[kind]
    good = [pack(number) for number in GOOD] * 20
    before = ("F32", [2], struct.pack("<ff", 1, 2))
    path = tmp_path / "w.safetensors"
    check_safetensors(write(path, {"a": before, "layer.q": (kind, [7, 20], b"".join(good))}))
    for odd in (NAN, INF, -INF):
        for place in (0, 31, 32, 139):
            data = b"".join([*good[:place], pack(odd), *good[place + 1 :]])
            write(path, {"a": before, "layer.q": (kind, [7, 20], data)})
            with pytest.raises(BadTensors, match=r"layer\.q has a number that is not finite"):
                check_safetensors(path)


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [("F8_E5M2", b"\x00\x3c\x7b\xfb", b"\x7c\xfd\xfe"), ("F8_E4M3", b"\x00\x38\x7e\xfe", b"\x7f\xff")],
)
def test_eight_bits_have_their_own_numbers_that_are_none(tmp_path: Path, kind: str, good: bytes, bad: bytes) -> None:
    check_safetensors(write(tmp_path / "w", {"w": (kind, [len(good)], good)}))
    for byte in bad:
        with pytest.raises(BadTensors, match="not finite"):
            check_safetensors(write(tmp_path / "w", {"w": (kind, [2], bytes([0, byte]))}))


def test_whole_numbers_may_have_any_bits(tmp_path: Path) -> None:
    check_safetensors(write(tmp_path / "w", {"ids": ("I64", [2], b"\xff" * 16), "mask": ("BOOL", [3], b"\1\0\1")}))


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ({"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}, "w has 8 bytes, where its shape"),
        ({"dtype": "F4", "shape": [8], "data_offsets": [0, 8]}, "w is of the type 'F4'"),
        ({"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]}, "header that cannot be read"),
        ({"dtype": "F32", "shape": [2.0], "data_offsets": [0, 8]}, "header that cannot be read"),
        ({"dtype": "F32", "shape": [True, 2], "data_offsets": [0, 8]}, "header that cannot be read"),
        ({"dtype": "F32", "shape": [2] * 9, "data_offsets": [0, 8]}, "header that cannot be read"),
        ({"dtype": ["F32"], "shape": [2], "data_offsets": [0, 8]}, "header that cannot be read"),
        ({"dtype": "F32", "shape": [2], "data_offsets": [0, 4, 8]}, "header that cannot be read"),
        ({"dtype": "F32", "shape": [10**17], "data_offsets": [0, 8]}, "header that cannot be read"),
        ({"shape": [2], "data_offsets": [0, 8]}, "header that cannot be read"),
        (["F32"], "header that cannot be read"),
    ],
)
def test_a_header_that_does_not_add_up_is_refused(tmp_path: Path, told: Any, why: str) -> None:
    path = write(tmp_path / "w", {}, w=told)
    with path.open("ab") as stream:
        stream.write(bytes(8))
    with pytest.raises(BadTensors, match=why):
        check_safetensors(path)


def test_a_name_that_stands_twice_is_refused(tmp_path: Path) -> None:
    one = '"w": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}'
    text = f"{{{one}, {one}}}".encode()
    (tmp_path / "w").write_bytes(len(text).to_bytes(8, "little") + text + b"\0")
    with pytest.raises(BadTensors, match="cannot be read"):
        read_header(tmp_path / "w")


def test_halves_of_an_adapter_belong_together_and_have_one_rank(tmp_path: Path) -> None:
    def half(rows: int, columns: int) -> tuple[str, list[int], bytes]:
        return "F16", [rows, columns], bytes(2 * rows * columns)

    a, b = "model.q_proj.lora_A.weight", "model.q_proj.lora_B.weight"
    whole = read_header(write(tmp_path / "w", {a: half(4, 8), b: half(8, 4), "norm.weight": half(1, 1)}))
    check_pairs({"w": whole})
    with pytest.raises(BadTensors, match=r"lora_A\.weight has no other half"):
        check_pairs({"w": read_header(write(tmp_path / "w", {a: half(4, 8)}))})
    with pytest.raises(BadTensors, match=r"lora_A\.weight has the rank 4, and its other half 2"):
        check_pairs({"w": read_header(write(tmp_path / "w", {a: half(4, 8), b: half(8, 2)}))})


@pytest.mark.parametrize("kind", ["<f2", "<f4", "<f8", ">f4", ">f8"])
def test_arrays_are_read_as_well_in_either_order_of_bytes(tmp_path: Path, kind: str) -> None:
    numbers = np.linspace(-60_000, 60_000, 500).astype(kind).reshape(5, 100)
    np.save(tmp_path / "w.npy", numbers)
    check_array(tmp_path / "w.npy")
    np.savez_compressed(tmp_path / "w.npz", q=numbers, ids=np.arange(9))
    check_arrays(tmp_path / "w.npz")
    numbers[3, 7] = np.nan
    np.save(tmp_path / "w.npy", numbers)
    with pytest.raises(BadTensors, match=r"w\.npy has a number that is not finite"):
        check_array(tmp_path / "w.npy")
    np.savez(tmp_path / "w.npz", ids=np.arange(9), q=numbers)
    with pytest.raises(BadTensors, match="q has a number that is not finite"):
        check_arrays(tmp_path / "w.npz")


def test_an_archive_holds_arrays_of_numbers_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "w.npz"

    def refused(why: str, **members: bytes) -> None:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in members.items():
                archive.writestr(name.replace("_", "."), data)
        with pytest.raises(BadTensors, match=why):
            check_arrays(path)

    objects = io.BytesIO()
    np.save(objects, np.array([{}], dtype=object), allow_pickle=True)
    whole = io.BytesIO()
    np.save(whole, np.zeros(1_000_000))
    refused("no array of plain numbers", a_npy=objects.getvalue())
    refused("'a.pkl' in it is no array", a_pkl=b"x")
    refused("it has 0 arrays")
    refused("a is cut off", a_npy=whole.getvalue()[:200])
    refused("unpacks to more than 100 times", a_npy=whole.getvalue())
    path.write_bytes(b"PK\x03\x04 and no archive")
    with pytest.raises(BadTensors, match="no archive of arrays"):
        check_arrays(path)
