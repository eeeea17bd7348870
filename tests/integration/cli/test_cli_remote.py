"""`remote`: the schedctl of another machine runs on the daemon's host, with the folders that it names copied there."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from scheduler.cli.shell.exits import Exit
from tests.lab.sshd import SshServer, ssh_server

# In place of ssh: its last word runs in the home folder of the host, with the host's environment.
SSH = (
    '#!/bin/sh\nfor word; do last=$word; done\ncd {home} && exec env -i HOME={home} PATH=/usr/bin:/bin sh -c "$last"\n'
)
HOST = '#!/bin/sh\nSCHEDCTL_STATE_DIR={home}/state exec {python} -m scheduler "$@"\n'
Run = Callable[..., subprocess.CompletedProcess[str]]


def program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The home folder on the host, where schedctl is in bin."""
    made = tmp_path / "gpu box"
    program(made / "bin" / "schedctl", HOST.format(home=f"'{made}'", python=sys.executable))
    return made


@pytest.fixture
def laptop(tmp_path: Path, home: Path) -> Run:
    """Runs schedctl in a folder of a machine from which ssh reaches that host."""
    program(tmp_path / "path" / "ssh", SSH.format(home=f"'{home}'"))
    (tmp_path / "My Model").mkdir()
    (tmp_path / "My Model" / "train.py").write_text("print('trained')\n")
    (tmp_path / "My Model" / ".schedignore").write_text("*.log\n")
    (tmp_path / "My Model" / "old.log").write_text("not copied")
    link = tmp_path / "schedctl"
    link.symlink_to(home / "bin" / "schedctl")  # an address has no blanks

    def run(*words: str, remote: str = f"ssh://ann@gpu-box:2222{link}") -> subprocess.CompletedProcess[str]:
        environment = os.environ | {"PATH": f"{tmp_path / 'path'}:{os.environ['PATH']}", "HOME": str(tmp_path)}
        return subprocess.run(
            [sys.executable, "-m", "scheduler", *words],
            cwd=tmp_path / "My Model",
            env=environment | ({"SCHEDCTL_REMOTE": remote} if remote else {}),
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def test_a_script_is_submitted_to_the_host_with_its_folder(laptop: Run, home: Path) -> None:
    assert laptop("db", "init").returncode == 0
    done = laptop(
        "--json", "submit", "train.py", "--max-time", "1h", "--name", "mine", "--", "it's", "--config", "$HOME"
    )
    assert done.returncode == 0, done.stderr
    shown = json.loads(laptop("queue", "show", "mine", "--json").stdout)["job"]["spec"]
    assert shown["command"][-3:] == ["it's", "--config", "$HOME"]
    folder = Path(shown["code"]["source"])
    assert folder.is_relative_to(home)
    assert [path.name for path in folder.iterdir()] == ["train.py"]
    assert laptop("queue", "show", "other").returncode == Exit.NOT_FOUND


def test_what_changed_is_copied_again_and_only_once_for_each_command(laptop: Run, home: Path, tmp_path: Path) -> None:
    assert laptop("db", "init").returncode == 0
    assert laptop("submit", "train.py", "--max-time", "1h", "--name", "mine").returncode == 0
    (tmp_path / "My Model" / "train.py").write_text("print('trained better')\n")
    assert laptop("queue", "update", "mine", "--code", ".").returncode == 0
    (folder,) = (home / ".cache" / "schedctl").glob("*/*")
    assert (folder / "train.py").read_text() == "print('trained better')\n"


def test_an_input_of_this_machine_is_refused_with_the_way_to_copy_it(laptop: Run, tmp_path: Path) -> None:
    done = laptop("submit", "train.py", "--max-time", "1h", "--input", f"rows={tmp_path}")
    assert done.returncode == Exit.USAGE
    assert f"rsync -a {tmp_path} ann@gpu-box:" in done.stderr


@pytest.mark.parametrize(
    ("remote", "code", "words"),
    [
        ("gpu-box", Exit.USAGE, "remote = gpu-box cannot be read"),
        ("ssh://-oProxyCommand=x", Exit.USAGE, "cannot be read"),
        ("ssh://gpu-box/no/such/schedctl", Exit.PLATFORM, "was not found on gpu-box"),
    ],
    ids=["no scheme", "an option", "no program"],  # a test's own name must not hold the address
)
def test_an_address_that_leads_nowhere_is_named(laptop: Run, remote: str, code: Exit, words: str) -> None:
    done = laptop("queue", remote=remote)
    assert done.returncode == code
    assert words in done.stderr


def test_a_host_that_ssh_cannot_reach_is_named(laptop: Run, tmp_path: Path) -> None:
    program(tmp_path / "path" / "ssh", "#!/bin/sh\necho 'no route' >&2\nexit 255\n")
    for words in (["queue"], ["submit", "train.py", "--max-time", "1h"]):
        done = laptop(*words)
        assert done.returncode == Exit.PLATFORM
        assert "no route" in done.stderr
        assert "ann@gpu-box was not reached" in done.stderr


def test_the_settings_file_names_the_host_and_help_stays_here(laptop: Run, tmp_path: Path) -> None:
    file = tmp_path / ".config" / "uff-scheduler" / "config.toml"
    file.parent.mkdir(parents=True)
    file.write_text(f'remote = "ssh://gpu-box{tmp_path}/schedctl"\n')
    assert laptop("db", "init", remote="").returncode == 0
    assert (tmp_path / "gpu box" / "state").is_dir()
    program(tmp_path / "path" / "ssh", "#!/bin/sh\nexit 255\n")
    assert laptop("queue", "--help", remote="").returncode == 0


@pytest.fixture
def sshd() -> Iterator[SshServer]:
    """A real sshd."""
    with ssh_server() as running:
        yield running


def test_words_arrive_as_they_were_typed_over_a_real_ssh(laptop: Run, sshd: SshServer, tmp_path: Path) -> None:
    options = sshd.options
    keys = f"-F none -i {options['identity']} -o UserKnownHostsFile={options['known_hosts']}"
    program(tmp_path / "path" / "ssh", f'#!/bin/sh\nexec /usr/bin/ssh {keys} "$@"\n')
    words = ["queue", "it's", "a  b", "$HOME", "\\n", '"', "*"]
    done = laptop(*words, remote=f"ssh://{options['host']}:{options['port']}/bin/echo")
    assert done.stdout == " ".join(words) + "\n"
