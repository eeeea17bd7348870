"""What tests of deployments share: a server that is one file, in a folder here or behind a real sshd."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from platforms.targets.base import Target, TargetContext, open_target
from tests.lab.releases import WEIGHTS
from tests.lab.sshd import SshServer, ssh_server

CONTEXT = TargetContext(Path, str)


@dataclass
class Served:
    """A place where a "server" runs: a file ``running`` with the weights that it took up when it was restarted.

    Restart and health check are commands that a test replaces; a version whose weights hold "bad" is not healthy.
    """

    kind: str
    root: Path
    options: dict[str, str] = field(default_factory=dict)

    @property
    def restart(self) -> str:
        """Take up what is pointed at."""
        return f"cat {self.root}/models/$MODEL/current/{WEIGHTS} > {self.root}/running"

    @property
    def health(self) -> str:
        """Tell whether what runs is what should, and good."""
        return f"cmp -s {self.root}/running $FOLDER/{WEIGHTS} && ! grep -q bad {self.root}/running"

    def target(self, **more: str) -> Target:
        """Open the target, with these commands and times unless told otherwise."""
        usual = {"restart": self.restart, "health": self.health, "restart_time": "10s", "health_time": "10s"}
        return open_target("there", self.kind, {**self.options, **usual, **more}, CONTEXT)

    @property
    def running(self) -> bytes:
        """What the server has in memory; empty before its first start."""
        place = self.root / "running"
        return place.read_bytes() if place.exists() else b""

    @property
    def folder(self) -> Path:
        """The folder of the model ufm."""
        return self.root / "models" / "ufm"


@pytest.fixture
def sshd() -> Iterator[SshServer]:
    with ssh_server() as server:
        yield server


@pytest.fixture
def here(tmp_path: Path) -> Served:
    (tmp_path / "served").mkdir()
    return Served("directory", tmp_path / "served", {"path": str(tmp_path / "served" / "models")})


@pytest.fixture
def there(sshd: SshServer) -> Served:
    return Served("ssh", sshd.folder, sshd.options)


@pytest.fixture(params=["here", pytest.param("there", marks=pytest.mark.nightly)])
def served(request: pytest.FixtureRequest) -> Served:
    """A folder here; in the night the same behind ssh, which with every push is tried by its own tests."""
    found: Served = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def writes(tmp_path: Path) -> Callable[[str, str], Path]:
    """Put programs of a test before those of the system; see its uses."""

    def write(name: str, text: str) -> Path:
        folder = tmp_path / "programs"
        folder.mkdir(exist_ok=True)
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
        return folder

    return write
