"""docs/configuration.md against the code: every setting stands in it with its default, and none that is not there."""

from __future__ import annotations

import re
import tomllib
from typing import TYPE_CHECKING, get_args

import pytest
from pydantic import BaseModel

from config.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ROW = re.compile(r"^\| (`[^|]*`) \|([^|]*)\|", re.MULTILINE)
KEY = re.compile(r"`([^`]+)`")


@pytest.fixture
def reference(repository: Path) -> str:
    return (repository / "docs" / "configuration.md").read_text(encoding="utf-8")


@pytest.fixture
def told(reference: str) -> dict[str, str]:
    """Key and default of every row of the table of all settings."""
    found: dict[str, str] = {}
    for keys, defaults in ROW.findall(reference.partition("## All settings")[2]):
        names = KEY.findall(keys)
        values = [value.strip() for value in defaults.split(",")] if defaults.strip() else [""] * len(names)
        assert len(names) == len(values), keys
        found |= dict(zip(names, values, strict=True))
    return found


def keys_of(model: type[BaseModel], before: str = "") -> Iterator[str]:
    """Every key below a model as ``config show`` names it; of lists of tables ``[]`` stands for the place."""
    for name, field in model.model_fields.items():
        key = before + (field.alias or (field.validation_alias if isinstance(field.validation_alias, str) else name))
        kinds = [field.annotation, *get_args(field.annotation)]
        tables = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
        if tables:
            yield from keys_of(tables[0], f"{key}." if tables[0] is field.annotation else f"{key}[].")
        else:
            yield key


def test_every_setting_is_in_the_reference_and_nothing_else(told: dict[str, str]) -> None:
    wanted = {key for key in keys_of(Settings) if not key.startswith(("pools[]", "targets[]", "rules[]", "webhooks[]"))}
    assert len(wanted) > 50
    assert set(told) == wanted


def test_the_defaults_of_the_reference_are_the_shipped_ones(told: dict[str, str], repository: Path) -> None:
    shipped = tomllib.loads((repository / "config/defaults.toml").read_text(encoding="utf-8"))
    wrong = {}
    for key, default in told.items():
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
