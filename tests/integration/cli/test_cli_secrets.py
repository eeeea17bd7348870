"""Secrets on the command line: named in every way, their values never told, and what is missing said at once."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scheduler.store.engine import Database

Schedctl = Callable[..., Any]
CANARY = "canary-91f3-never-told"
ADD = ("queue", "add", "--name", "gated", "--command", "{python} -c pass", "--target-step", "9", "--code", "")


@pytest.fixture(autouse=True)
def nothing_handed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """No credentials of whoever runs this."""
    monkeypatch.delenv("CREDENTIALS_DIRECTORY", raising=False)


def test_a_secret_that_is_missing_is_told_when_it_is_named_and_by_the_doctor_until_it_is_there(
    world: Database, schedctl: Schedctl
) -> None:
    added = schedctl(*ADD, "--secret", "HF_TOKEN", "--secret", "WANDB_API_KEY")
    assert added.code == 0, added.err
    assert "gated waits for its secret HF_TOKEN: there is no such credential" in added.err
    shown = schedctl("queue", "show", "gated").out
    assert "HF_TOKEN, WANDB_API_KEY" in shown
    assert schedctl("queue", "show", "gated", "--json").document["job"]["spec"]["secrets"] == [
        "HF_TOKEN",
        "WANDB_API_KEY",
    ]

    def found() -> Any:
        checks = schedctl("doctor", "--json").document["checks"]
        return next(check for check in checks if check["check"] == "secrets of jobs")

    assert found()["grade"] == "bad"
    assert "HF_TOKEN of gated" in found()["found"]
    folder = Path(found()["remedy"].split("mkdir -p ")[1].split(";")[0])
    folder.mkdir(mode=0o700)
    for name in ("HF_TOKEN", "WANDB_API_KEY"):
        (folder / name).write_text(f"{CANARY}\n")
        (folder / name).chmod(0o600)
    assert found()["grade"] == "ok"
    updated = schedctl("queue", "update", "gated", "--secret", "HF_TOKEN")
    assert "gated has HF_TOKEN from its next session on." in updated.out
    assert "waits for its secret" not in updated.err
    cloned = schedctl("queue", "clone", "gated", "--set", "name=other")
    assert cloned.code == 0, cloned.err
    assert schedctl("queue", "show", "other", "--json").document["job"]["spec"]["secrets"] == ["HF_TOKEN"]
    assert "no secrets" in schedctl("queue", "update", "gated", "--secret", "").out
    assert schedctl("queue", "edit", "other", "--set", 'secrets=["OTHER_TOKEN"]').code == 0
    assert schedctl("queue", "show", "other", "--json").document["job"]["spec"]["secrets"] == ["OTHER_TOKEN"]


def test_a_value_in_place_of_a_name_is_refused_and_not_repeated(world: Database, schedctl: Schedctl) -> None:
    refused = schedctl(*ADD, "--secret", CANARY)
    assert refused.code != 0
    assert "never the value" in refused.err
    assert CANARY not in refused.err + refused.out
