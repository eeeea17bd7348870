"""The documents of the settings against the code: every setting stands there with its default, and nothing else."""

from __future__ import annotations

import re
import tomllib
from dataclasses import fields
from typing import TYPE_CHECKING

import pytest

from config.settings import Settings
from jobs.nouns.pool import Pool
from tests.lab.reference import keys_of, setting_keys

if TYPE_CHECKING:
    from pathlib import Path

ROW = re.compile(r"^- ((?:`[^`]+`(?:, )?)+)(?: \((.*?)\))?: ", re.MULTILINE)
KEY = re.compile(r"`([^`]+)`")


@pytest.fixture
def reference(repository: Path) -> str:
    return (repository / "docs" / "configuration.md").read_text(encoding="utf-8")


@pytest.fixture
def listed(repository: Path) -> dict[str, str]:
    """Key and default of every line of the list of all settings."""
    page = (repository / "docs" / "reference" / "settings.md").read_text(encoding="utf-8")
    found: dict[str, str] = {}
    for keys, defaults in ROW.findall(page.partition("## All settings")[2].partition("\n## ")[0]):
        names = KEY.findall(keys)
        values = [value.strip() for value in defaults.split(",")] if defaults.strip() else [""] * len(names)
        assert len(names) == len(values), keys
        found |= dict(zip(names, values, strict=True))
    return found


def test_every_setting_is_in_the_reference_and_nothing_else(listed: dict[str, str]) -> None:
    wanted = setting_keys()
    assert len(wanted) > 50
    assert set(listed) == wanted


def test_the_defaults_of_the_reference_are_the_shipped_ones(listed: dict[str, str], repository: Path) -> None:
    shipped = tomllib.loads((repository / "config/defaults.toml").read_text(encoding="utf-8"))
    wrong = {}
    for key, default in listed.items():
        value: object = shipped
        for part in key.split("."):
            value = value.get(part, "") if isinstance(value, dict) else ""
        written = ", ".join(value) if isinstance(value, list) else str(value).lower() if value is True else str(value)
        if default != written:
            wrong[key] = (default, written)
    assert wrong == {}


def test_every_key_of_a_pool_and_a_quota_is_in_the_reference(reference: str) -> None:
    pools = reference.partition("## Pools")[2].partition("## Models")[0]
    named = set(re.findall(r"`([a-z_]+)`", pools)) | set(re.findall(r"^([a-z_]+) = ", pools, re.MULTILINE))
    keys = {key.rpartition(".")[2] for key in keys_of(Settings) if key.startswith("pools[]")}
    assert keys - named == set()


def test_every_key_of_a_target_is_in_the_reference(reference: str) -> None:
    targets = reference.partition("## Targets")[2].partition("\n## ")[0]
    keys = {key.removeprefix("targets[].") for key in keys_of(Settings) if key.startswith("targets[]")}
    assert len(keys) > 5
    assert keys - set(re.findall(r"`([a-z_]+)`", targets)) == set()


def test_every_key_of_a_rule_and_a_webhook_is_in_the_reference(reference: str) -> None:
    rules = reference.partition("## Rules and webhooks")[2].partition("\n## ")[0]
    keys = {key.rpartition(".")[2] for key in keys_of(Settings) if key.startswith(("rules[]", "webhooks[]"))}
    assert len(keys) == 7
    assert keys - set(re.findall(r"`([a-z_]+)`", rules)) == set()


def test_every_key_of_a_rule_for_texts_is_in_the_page_of_the_corpus(repository: Path) -> None:
    page = (repository / "docs" / "corpus.md").read_text(encoding="utf-8").partition("## Rules")[2]
    tables = ("corpus.rules[]", "corpus.weights[]")
    keys = {key.rpartition(".")[2] for key in keys_of(Settings) if key.startswith(tables)}
    assert len(keys) > 7
    assert {key for key in keys if f"\n{key} = " not in page} == set()


def test_the_defaults_of_a_pool_are_those_of_the_code(reference: str) -> None:
    pools = reference.partition("## Pools")[2].partition("## Models")[0]
    defaults = {each.name: each.default for each in fields(Pool)}
    shown = {"accelerator": "cpu", "speed": "1.0", "sharing": "1.0", "enabled": "true"}
    for key, default in shown.items():
        assert f"- `{key}` ({default}): " in pools
        assert str(defaults[key]).lower() == default
