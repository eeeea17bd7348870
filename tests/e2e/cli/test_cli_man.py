"""The manual page tells of every command, and troff takes it."""

import shutil
import subprocess
from typing import Any, cast

import pytest

from scheduler.cli.root import COMMANDS, tree
from scheduler.cli.shell.exits import Exit


def test_the_manual_page_has_every_command_option_and_exit_code(schedctl: Any) -> None:
    page = schedctl("man").out.replace("\\-", "-")
    root = tree()
    for name in COMMANDS:
        found: Any = root.get_command(cast("Any", None), name)
        for word, command in getattr(found, "commands", {}).items() or ():
            assert f'.SS "schedctl {name} {word}' in page
            for option in (option for each in command.params for option in each.opts if option.startswith("--")):
                assert f"\\fB{option}\\fR" in page, (name, word, option)
    assert '.SS "schedctl submit' in page
    for code in Exit:
        assert f"\n.B {int(code)}\n" in page
    assert schedctl("man", "--json").document["page"].startswith(".TH SCHEDCTL 1")


@pytest.mark.skipif(shutil.which("groff") is None, reason="no groff")
def test_troff_takes_the_manual_page_without_a_warning(schedctl: Any) -> None:
    command = ["groff", "-man", "-Tutf8", "-ww", "-b", "-P-cbou"]
    done = subprocess.run(command, input=schedctl("man").out, capture_output=True, text=True, check=True, timeout=60)
    assert done.stderr == ""
    assert "EXIT STATUS" in done.stdout
