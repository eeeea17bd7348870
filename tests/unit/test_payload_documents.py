"""What the payload reads and writes: launch.json, manifests, the stop flag, the command's output."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.payload.lane.command import LOG_BYTES_MAX, TAIL_BYTES, Relay
from jobs.payload.lane.ending import read_stop
from jobs.payload.lane.launch import BadLaunch
from jobs.payload.store.manifest import BadManifest, Component, Manifest, parse_manifest, valid_component_name
from jobs.payload.store.transport import DirectoryTransport
from tests.lab.launch_file import LANE, launch_in


def test_a_launch_is_read(tmp_path: Path) -> None:
    launch = launch_in(tmp_path)
    assert (launch.run, launch.closing_at, launch.work_dir) == (
        "uff-ufm-0007",
        2_000_000_000 - 120,
        tmp_path / "work",
    )
    assert launch.expected_devices == (2, "NvidiaTeslaT4")
    assert launch.lanes[0].lane == 0
    assert launch.started_at > 1_700_000_000  # left out: now


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"format": 2}, "format 2"),
        ({"run": "../etc"}, "is not a name"),
        ({"clock": {"epoch": 0, "origin": 0, "scale": 0}}, "above 0"),
        ({"clock": {"epoch": 0}}, "'origin' is missing"),
        ({"mtbf_seconds": 0}, "above 0"),
        ({"store": {"kind": "tape", "root": ""}}, "'tape' is unknown"),
        ({"lanes": []}, "lanes"),
        ({"lanes": [LANE, LANE]}, "distinct"),
        ({"lanes": [{**LANE, "command": []}]}, "empty"),
        ({"deadline": "soon"}, "soon"),
    ],
)
def test_a_bad_launch_says_what_is_wrong(tmp_path: Path, change: dict[str, Any], why: str) -> None:
    with pytest.raises(BadLaunch, match=why):
        launch_in(tmp_path, **change)


counts = st.integers(0, 10**9)
names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True)
components = st.builds(
    Component,
    names.filter(lambda name: ".." not in name),
    st.text("0123456789abcdef", min_size=64, max_size=64),
    counts,
)
manifests = st.builds(
    Manifest,
    job=names,
    step=counts,
    attempt=st.integers(0, 999_999),
    run=names,
    lane=st.integers(0, 9),
    parent=st.none() | st.just("jobs/a/manifests/000000000001-000001.json"),
    created_at=counts,
    trained_seconds=counts,
    metrics=st.dictionaries(names, st.floats(-1e18, 1e18), max_size=3),
    components=st.lists(components, min_size=1, max_size=4, unique_by=lambda part: part.name).map(tuple),
)


@given(manifests)
def test_a_manifest_reads_back_as_it_was_written(manifest: Manifest) -> None:
    assert parse_manifest(manifest.key, manifest.encode()) == manifest


@given(manifests, st.data())
def test_a_damaged_manifest_is_never_another_ones(manifest: Manifest, data: st.DataObject) -> None:
    """Any byte changed: it is refused, or it says which it is."""
    content = bytearray(manifest.encode())
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] = data.draw(st.integers(0, 255))
    try:
        found = parse_manifest(manifest.key, bytes(content))
    except BadManifest as error:
        assert error.why  # noqa: PT017 - most damage is refused, and some spares the meaning
    else:
        assert found.key == manifest.key


@pytest.mark.parametrize("name", ["../w", "a/../w", "/w", "..", "a//w", "a/b/c/d/e/f/g/h/i", "w\n", ""])
def test_a_component_never_leaves_its_folder(name: str) -> None:
    key = "jobs/a/manifests/000000000001-000001.json"
    manifest = Manifest("a", 1, 1, "r", 0, None, 0, 0, {}, (Component(name, "0" * 64, 1),))
    with pytest.raises(BadManifest):
        parse_manifest(key, manifest.encode())


@pytest.mark.parametrize(
    ("flag", "why"),
    [
        (None, None),
        ('{"reason": "cancelled", "lane": null}', "cancelled"),
        ('{"reason": "cancelled", "lane": 1}', "cancelled"),
        ('{"reason": "cancelled", "lane": 0}', None),
        ("{", "the flag is unreadable"),
    ],
)
def test_the_stop_flag(tmp_path: Path, flag: str | None, why: str | None) -> None:
    if flag is not None:
        path = tmp_path / "runs/r/stop"
        path.parent.mkdir(parents=True)
        path.write_text(flag)
    assert read_stop(DirectoryTransport(tmp_path), "r", 1) == why


def test_output_is_capped_prefixed_and_its_end_remembered(tmp_path: Path) -> None:
    source, writer = os.pipe()
    with (tmp_path / "log").open("wb") as log:
        relay = Relay(source, log.fileno(), "ufm| ")
        line = b"x" * 1023 + b"\n"
        for _ in range(LOG_BYTES_MAX // len(line) + 100):
            os.write(writer, line)
            assert relay.copy() != 0
        os.write(writer, b"the last words")
        os.close(writer)
        relay.drain()
    os.close(source)
    written = (tmp_path / "log").read_bytes()
    assert written.startswith(b"ufm| xxx")
    assert written.count(b"[log cap of 16 MiB reached") == 1
    assert len(written) < LOG_BYTES_MAX * 1.02
    assert relay.tail.endswith("the last words")
    assert len(relay.tail) <= TAIL_BYTES


def test_no_file_of_the_payload_hides_a_standard_module(repository: Path) -> None:
    """Started as a plain script, Python looks into the script's folder first."""
    folder = repository / "jobs/payload"
    stems = {path.stem for path in (*folder.iterdir(), *(folder / "trainers").glob("*.py"))}
    assert stems & sys.stdlib_module_names == set()


@pytest.mark.parametrize(("number", "fits"), [(0, False), (1, True), (10_000, True), (10_001, False)])
def test_a_checkpoint_has_up_to_ten_thousand_files(number: int, *, fits: bool) -> None:
    components = tuple(Component(f"{place}", "0" * 64, 1) for place in range(number))
    manifest = Manifest("ufm", 5, 1, "uff-ufm-0001", 0, None, 1, 1, {}, components)
    if fits:
        assert len(parse_manifest(manifest.key, manifest.encode()).components) == number
    else:
        with pytest.raises(BadManifest, match=f"{number} components"):
            parse_manifest(manifest.key, manifest.encode())


@pytest.mark.parametrize(
    "name",
    [
        ".metadata", "__0_0.distcp", "epoch=3-step=90.ckpt", "pytorch_model_fsdp_0/__0_0.distcp", "ep1-ba100-rank0.pt",
        "global_step100/zero_pp_rank_0_mp_rank_00_optim_states.pt", "random_states_0.pkl", "latest-rank0.pt.symlink",
        "_CHECKPOINT_METADATA", "params.layers_0.kernel/.zarray", "ckpt-1.data-00000-of-00001", "a/b/c/d/e/f/g/h",
    ],
)  # fmt: skip
def test_names_that_frameworks_write_are_components(name: str) -> None:
    assert valid_component_name(name)


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../a", "a/..", "a/./b", "/a", "a//b", "-rf", "a b", "a\nb", "a/" * 9 + "a"]
)
def test_names_that_leave_the_folder_or_mislead_are_none(name: str) -> None:
    assert not valid_component_name(name)
