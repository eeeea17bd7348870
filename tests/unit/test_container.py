"""The container's files against the program: what they copy, start and hand over is there."""

from __future__ import annotations

import re
import tomllib
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from scheduler.cli.root import COMMANDS
from scheduler.web.actors import READERS

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def compose(repository: Path) -> Any:
    return yaml.safe_load((repository / "examples/container/compose.yaml").read_text(encoding="utf-8"))


def test_the_image_is_built_of_what_the_wheel_needs(repository: Path) -> None:
    text = (repository / "examples/container/Containerfile").read_text(encoding="utf-8")
    copied = {word for line in re.findall(r"^COPY (?!--)(.*)$", text, re.MULTILINE) for word in line.split()[:-1]}
    assert all((repository / word).exists() for word in copied), copied
    project = tomllib.loads((repository / "pyproject.toml").read_text(encoding="utf-8"))
    assert set(project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]) <= copied
    assert project["project"]["readme"] in copied
    lines = (repository / "examples/container/Containerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    assert {line.removeprefix("!") for line in lines if line.startswith("!")} == copied
    assert "*" in lines, "what is not named stays out of the image: secrets/ above all"
    assert "--require-hashes" in text
    assert "USER uff" in text


def test_the_services_start_commands_and_hand_over_credentials_that_there_are(compose: Any) -> None:
    for name, service in compose["services"].items():
        if service["image"] != "uff-scheduler":
            continue
        for word in service.get("command", [])[:1]:
            assert word in COMMANDS, name
        assert service["environment"] == {"CREDENTIALS_DIRECTORY": "/run/secrets"}
        assert service["secrets"] == ["database_url", READERS]
    used = {secret for service in compose["services"].values() for secret in service["secrets"]}
    assert used == set(compose["secrets"])
    assert compose["services"]["page"]["ports"] == ["127.0.0.1:8765:8765"]


def test_every_secret_is_made_by_a_command_of_the_readme(repository: Path, compose: Any) -> None:
    text = (repository / "examples/container/README.md").read_text(encoding="utf-8")
    for secret in compose["secrets"].values():
        assert f"> {secret['file'].removeprefix('./')}" in text


def test_the_settings_are_read_and_ask_for_a_token(repository: Path) -> None:
    from config.load import load

    settings = load(repository / "examples/container/config.toml", {})
    assert settings.web.exposed
    assert str(settings.state_dir) == "/var/lib/uff-scheduler"


def test_the_image_installs_the_versions_that_are_tested(repository: Path) -> None:
    def pins(name: str) -> dict[str, str]:
        text = (repository / "requirements" / name).read_text(encoding="utf-8")
        return dict(re.findall(r"^([a-z0-9._-]+)==([^ ;\\]+)", text, re.MULTILINE))

    image, tested = pins("container.txt"), pins("dev.txt")
    assert len(image) > 30
    assert {name: pin for name, pin in image.items() if tested.get(name, pin) != pin} == {}
    assert "psycopg" in image
