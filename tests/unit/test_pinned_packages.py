"""Pinned packages: each has a licence that we may use, and a check for vulnerabilities never looks clean by silence."""

from __future__ import annotations

import json
import zipfile
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks import packages
from jobs.payload.deadline import HttpAnswer

if TYPE_CHECKING:
    from pathlib import Path

PINS = (packages.Pin("alembic", "1.20.1"), packages.Pin("rich", "15.0.0"))
OF_TESTS = {"dev.txt", "evaluators.txt", "nightly.txt", "sagemaker.txt", "skypilot.txt"}


def test_every_pin_is_listed_under_a_licence_that_we_may_use() -> None:
    """To list what is new: python benchmarks/packages.py licences."""
    pins, listed = packages.pins(), packages.licences()
    assert sorted(pins) == list(listed)
    assert [pin for pin in pins if not packages.is_allowed(pin, listed[pin], pins[pin])] == []
    assert len(pins) > 300


def test_what_is_an_exception_is_pinned_for_tests_alone() -> None:
    found = {pin.name: files for pin, files in packages.pins().items() if pin.name in packages.EXCEPTIONS}
    assert set(found) == set(packages.EXCEPTIONS)
    assert set.union(*found.values()) <= OF_TESTS


@pytest.mark.parametrize(
    ("licence", "files", "allowed"),
    [
        ("MIT", {"run.txt"}, True),
        ("Apache-2.0 WITH LLVM-exception AND (MIT OR ISC)", {"run.txt"}, True),
        ("MIT OR GPL-3.0-only", {"run.txt"}, False),
        ("AGPL-3.0-only", {"dev.txt"}, False),
        ("", {"run.txt"}, False),
        (packages.NVIDIA, {"torch-cuda.txt"}, True),
        (packages.NVIDIA, {"torch-cuda.txt", "run.txt"}, False),
    ],
)
def test_a_licence_is_allowed_with_all_of_its_parts(licence: str, files: set[str], *, allowed: bool) -> None:
    assert packages.is_allowed(PINS[0], licence, files) is allowed


@pytest.mark.parametrize(
    ("metadata", "licence"),
    [
        ({"license_expression": "MIT AND PSF-2.0", "license": "GPL"}, "MIT AND PSF-2.0"),
        ({"license": "Apache License, Version 2.0"}, "Apache-2.0"),
        ({"license": "3-Clause BSD License"}, "BSD-3-Clause"),
        ({"license": "BSD 2-Clause License", "classifier": ["License :: OSI Approved :: BSD License"]}, "BSD-2-Clause"),
        ({"license": "Copyright (c) 2001", "classifier": ["License :: OSI Approved :: BSD License"]}, "BSD"),
        ({"classifier": ["License :: OSI Approved :: MIT License", "Topic :: MIT License"]}, "MIT"),
        ({"license": "GNU GPL", "classifier": ["License :: Something Else"]}, ""),
        ({}, ""),
    ],
)
def test_metadata_name_a_licence_in_one_of_three_ways(metadata: dict[str, Any], licence: str) -> None:
    assert packages.spdx(metadata) == licence


def answered(monkeypatch: pytest.MonkeyPatch, status: int, body: Any) -> None:
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    monkeypatch.setattr(packages, "exchange", lambda *_: HttpAnswer(status, {}, text))


KNOWN = {"vulns": [{"id": "PYSEC-2014-8"}]}


def test_the_service_names_what_is_vulnerable(monkeypatch: pytest.MonkeyPatch) -> None:
    answered(monkeypatch, 200, {"results": [KNOWN, {}, {"vulns": [{"id": "GHSA-1"}, {"id": "GHSA-2"}]}]})
    assert packages.ask(PINS) == {PINS[1]: ["GHSA-1", "GHSA-2"]}


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, {"results": [{}, {}, {}]}),  # it finds nothing, not even what everybody knows
        (200, {"results": [KNOWN, {}]}),
        (200, {"results": [KNOWN, {}, {"vulns": [{}]}]}),
        (200, {"results": None}),
        (200, b"<html>"),
        (503, {}),
    ],
)
def test_an_answer_that_means_nothing_is_no_clean_one(monkeypatch: pytest.MonkeyPatch, status: int, body: Any) -> None:
    answered(monkeypatch, status, body)
    with pytest.raises(packages.NotAsked):
        packages.ask(PINS)


def test_a_service_that_cannot_be_reached_is_said_loudly(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def nobody(*_: Any) -> None:
        raise OSError("no route")

    monkeypatch.setattr(packages, "exchange", nobody)
    stamp = tmp_path / "night" / "advisories"
    stamp.parent.mkdir()
    stamp.touch()
    assert packages.report(None, stamp) == 0
    assert "WARNING" in (said := capsys.readouterr().out)
    assert "NOT checked for known vulnerabilities: https://api.osv.dev/v1/querybatch does not answer: no route" in said
    assert not stamp.exists()


def document(name: str, *versions: str, **more: Any) -> dict[str, Any]:
    affected = [{"package": {"name": name, "ecosystem": "PyPI"}, "versions": list(versions)}]
    return {"id": f"PYSEC-{name}", "affected": affected, **more}


def test_documents_in_a_file_do_as_well(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    documents = [
        document("jinja2", "2.4.1"),
        document("Rich", "14.0.0", "15.0.0"),
        document("alembic", "1.20.1", withdrawn="2026-01-01T00:00:00Z"),
    ]
    with zipfile.ZipFile(file := tmp_path / "all.zip", "w") as archive:
        for number, one in enumerate(documents):
            archive.writestr(f"{number}.json", json.dumps(one))
    assert packages.read_documents(file, PINS) == {PINS[1]: ["PYSEC-Rich"]}
    assert packages.report(file, stamp := tmp_path / "night" / "advisories") == 1
    assert "rich 15.0.0 (" in (said := capsys.readouterr().out)
    assert f"1 of {len(packages.pins())} pinned packages have known vulnerabilities" in said
    assert stamp.exists()


@pytest.mark.parametrize("content", [None, b"no zip file", "empty"])
def test_a_file_that_says_nothing_is_no_clean_one(tmp_path: Path, content: bytes | str | None) -> None:
    file = tmp_path / "all.zip"
    if content == "empty":
        zipfile.ZipFile(file, "w").close()
    elif isinstance(content, bytes):
        file.write_bytes(content)
    with pytest.raises(packages.NotAsked):
        packages.read_documents(file, PINS)
