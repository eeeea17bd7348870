"""Targets in the settings: what is read, and what is said of what cannot be."""

from typing import Any

import pytest

from config.errors import ConfigError
from config.load import load

GRIFFITH = {"name": "griffith", "kind": "ssh", "options": {"host": "griffith", "path": "/opt/elias/models"}}


def read(*targets: dict[str, Any]) -> Any:
    return load(None, {}, {"targets": list(targets)}).targets


def test_there_is_no_target_until_somebody_names_one() -> None:
    assert load(None, {}).targets == ()


def test_a_target_is_read_with_its_defaults() -> None:
    (found,) = read(GRIFFITH)
    assert (found.kind, found.models, found.automatic, found.watch_seconds) == ("ssh", ("*",), False, 3_600)
    assert found.serves("ufm")


def test_a_target_serves_the_models_that_it_names() -> None:
    (found,) = read({**GRIFFITH, "models": ["ufm", "uam"], "first": "uam", "watch": "30m", "automatic": True})
    assert [found.serves(model) for model in ("ufm", "uam", "ucm")] == [True, True, False]
    assert (found.first, found.watch_seconds) == ("uam", 1_800)


@pytest.mark.parametrize(
    ("change", "key", "said"),
    [
        ({"kind": "ftp"}, "targets.griffith.kind", "no such choice"),
        ({"name": "Griffith!"}, "targets.Griffith!.name", "no usable name"),
        ({"models": []}, "targets.griffith.models", ""),
        ({"models": ["../ufm"]}, "targets.griffith.models.0", "no usable name"),
        ({"models": ["ufm"], "first": "ufn"}, "targets.griffith.first", "none of the models"),
        ({"watch": "0s"}, "targets.griffith.watch", "longer than zero"),
        ({"watch": "90d"}, "targets.griffith.watch", "too long"),
        ({"options": {"host": "griffith"}}, "targets.griffith.options", "needs the option path"),
        ({"options": {}}, "targets.griffith.options", "needs the option host"),
        ({"kind": "vllm"}, "targets.griffith.options", "needs the option url"),
        ({"colour": "red"}, "targets.griffith.colour", "no such key"),
    ],
)
def test_a_wrong_target_is_named_with_its_key(change: dict[str, Any], key: str, said: str) -> None:
    with pytest.raises(ConfigError) as found:
        read({**GRIFFITH, **change})
    assert (found.value.problems[0].key, said in found.value.problems[0].why) == (key, True)
    assert found.value.problems[0].remedy


def test_two_targets_have_two_names() -> None:
    with pytest.raises(ConfigError, match="two targets are named griffith"):
        read(GRIFFITH, GRIFFITH)
