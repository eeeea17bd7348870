"""Pictures for the documents: the status page in a real Chromium, ``schedctl status`` in a terminal; a made-up week.

    python benchmarks/pictures.py [--out docs/pictures]
    python benchmarks/pictures.py --approve tests/integration/web/approved

With ``--approve`` it takes the pictures that tests compare instead: every state of the page, on screens of three sizes.
It needs Chromium and playwright, as the browser tests do. Look at what it wrote before it is committed.
"""

from __future__ import annotations

import argparse
import io
import os
import pty
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from tests.lab.web.photographs import FONT, has_font, looks, photograph, show, window
from tests.lab.web.site import chromium, missing, served
from tests.lab.web.states import STATES, write_state
from tests.lab.web.world import World, write_world

COLUMNS = 100
PAGES = {"overview": "/"}
# rich's own frame fetches a font from elsewhere; this one takes the reader's.
FRAME = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">
<style>.{unique_id}-matrix {{ font-family: monospace; font-size: {char_height}px; line-height: {line_height}px; }}
{styles}</style>
<defs>{lines}</defs><rect width="100%" height="100%" rx="8" fill="#0c0c0c"/>
<g transform="translate({terminal_x}, 12)">{backgrounds}<g class="{unique_id}-matrix">{matrix}</g></g></svg>
"""


def main() -> int:
    """Write every picture and say how large each is."""
    parser = argparse.ArgumentParser(description="Make the pictures of the documents.")
    parser.add_argument("--out", type=Path, default=Path("docs/pictures"))
    parser.add_argument("--approve", type=Path, metavar="FOLDER")
    options = parser.parse_args()
    if why := missing():
        raise SystemExit(why)
    if options.approve:
        approve(options.approve)
        return 0
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="pictures-") as name:
        world = write_world(Path(name), 8, 60, int(time.time()))
        (out / "status.svg").write_text(drawn(typed(world, "status")), encoding="utf-8")
        with served(world) as site, chromium() as browser:
            for page, path in PAGES.items():
                shown = browser.new_page(viewport={"width": 1_000, "height": 900}, color_scheme="light")
                shown.goto(site.address + path, wait_until="load")
                shown.screenshot(path=out / f"{page}.png")
        world.database.close()
    for file in sorted(out.iterdir()):
        print(f"{file.name}: {file.stat().st_size // 1024} KiB")
    return 0


def typed(world: World, *words: str) -> str:
    """Return what a command prints on a terminal of 100 columns, with its colours."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "scheduler", "--config", str(world.config), *words]
    environment = {**os.environ, "COLUMNS": str(COLUMNS), "LINES": "40", "TERM": "xterm-256color"}
    process = subprocess.Popen(command, stdout=theirs, stderr=theirs, stdin=theirs, env=environment)
    os.close(theirs)
    said = b""
    try:
        while part := os.read(ours, 65_536):
            said += part
    except OSError:  # so Linux says that the other end was closed
        pass
    os.close(ours)
    if process.wait():
        raise SystemExit(said.decode(errors="replace"))
    return said.decode().replace("\r\n", "\n").rstrip()


def drawn(text: str) -> str:
    """Return a terminal's text with its escape sequences as an SVG."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(Text.from_ansi(text))
    return console.export_svg(title="", theme=MONOKAI, code_format=FRAME, unique_id="t")


def approve(folder: Path) -> None:
    """Write a picture of every look at every state, and remove those that nobody looks at any more."""
    folder.mkdir(parents=True, exist_ok=True)
    known = set()
    with chromium() as browser:
        for state in STATES:
            with tempfile.TemporaryDirectory(prefix="state-") as name:
                world = write_state(Path(name), state, time.time())
                with served(world) as site:
                    page = window(browser)
                    for look in looks(state):
                        show(page, site.address, look)
                        if not has_font(page):
                            raise SystemExit(f"no font {FONT}: install it (Debian: fonts-dejavu-core)")
                        (folder / look.file(state)).write_bytes(photograph(page))
                        known.add(look.file(state))
                    page.context.close()
                world.database.close()
    for file in folder.iterdir():
        if file.name not in known:
            file.unlink()
    print(f"{len(known)} pictures, {sum(file.stat().st_size for file in folder.iterdir()) // 1024} KiB")


if __name__ == "__main__":
    sys.exit(main())
