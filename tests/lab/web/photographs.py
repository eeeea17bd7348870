"""Photographs: pages of every state as Chromium draws them, and how far two pictures of a page are apart.

Pictures are half as large as the screen and of modest quality, for people to look at and for a comparison that cares
for what stands where and in which colour, not for the edges of letters.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.lab.web.states import PAGES

if TYPE_CHECKING:
    from collections.abc import Iterator

WIDTHS, SCHEMES = (375, 768, 1_280), ("light", "dark")
FONT = "DejaVu Sans"
_TALLEST = 1_600  # pixels of a page that are looked at
_STYLE = f"""* {{ font-family: "{FONT}" !important; }}
code, code *, pre, pre * {{ font-family: "DejaVu Sans Mono" !important; }}
section:has(#log) {{ display: none; }}"""  # whether a platform answers within a second is luck
_HAS_FONT = """(font) => {
  const context = document.createElement("canvas").getContext("2d");
  const wide = (names) => { context.font = `72px ${names}`; return context.measureText("mmmmmlliiW").width; };
  return ["monospace", "serif"].some((other) => wide(`"${font}", ${other}`) !== wide(other));
}"""
# Mean difference, 0 to 255, of the worst window of 32 by 32 pixels of the screen; heights that differ are told first.
_APART = """async ([one, other]) => {
  const load = (data) => new Promise((done, failed) => {
    const image = new Image(); image.onload = () => done(image); image.onerror = failed; image.src = data;
  });
  const [a, b] = [await load(one), await load(other)];
  if (a.width !== b.width || Math.abs(a.height - b.height) > 0.03 * a.height + 8) return 255;
  const CELL = 4, WINDOW = 4;
  const across = Math.floor(a.width / CELL), down = Math.floor(Math.min(a.height, b.height) / CELL);
  const cells = (image) => {
    const canvas = new OffscreenCanvas(across * CELL, down * CELL), context = canvas.getContext("2d");
    context.drawImage(image, 0, 0);
    const pixels = context.getImageData(0, 0, across * CELL, down * CELL).data;
    const found = new Float32Array(across * down * 3);
    for (let y = 0; y < down * CELL; y++) for (let x = 0; x < across * CELL; x++) for (let c = 0; c < 3; c++)
      found[3 * (Math.floor(y / CELL) * across + Math.floor(x / CELL)) + c] += pixels[4 * (y * across * CELL + x) + c];
    return found.map((sum) => sum / CELL / CELL);
  };
  const before = cells(a), after = cells(b);
  let worst = 0;
  for (let y = 0; y + WINDOW <= down; y++) for (let x = 0; x + WINDOW <= across; x++) {
    let sum = 0;
    for (let v = 0; v < WINDOW; v++) for (let u = 0; u < WINDOW; u++) for (let c = 0; c < 3; c++) {
      const at = 3 * ((y + v) * across + x + u) + c;
      sum += Math.abs(before[at] - after[at]);
    }
    worst = Math.max(worst, sum / WINDOW / WINDOW / 3);
  }
  return worst;
}"""


@dataclass(frozen=True, slots=True)
class Look:
    """A page of a state on a screen of so many pixels."""

    path: str
    width: int
    scheme: str

    def file(self, state: str) -> str:
        """Return the name of its picture's file."""
        page = "".join(c if c.isalnum() else "-" for c in self.path.strip("/")) or "overview"
        return f"{state}-{page}-{self.width}-{self.scheme}.jpg"


def looks(state: str) -> Iterator[Look]:
    """Yield what is looked at of a state: its first page on every screen, the others on a phone and a wide one."""
    first, *others = PAGES[state]
    for width in WIDTHS:
        for scheme in SCHEMES:
            yield Look(first, width, scheme)
    for path in others:
        yield Look(path, WIDTHS[0], "dark")
        yield Look(path, WIDTHS[-1], "light")


def window(browser: Any) -> Any:
    """Return a page to look at many pages in: Chromium starts three processes for each window. Close its context."""
    context = browser.new_context(
        device_scale_factor=0.5,
        reduced_motion="reduce",
        timezone_id="UTC",
        locale="en-GB",
        bypass_csp=True,  # for our own style below
    )
    return context.new_page()


def show(page: Any, address: str, look: Look) -> None:
    """Show a page as it looks, with a font that is the same everywhere."""
    page.set_viewport_size({"width": look.width, "height": 800})
    page.emulate_media(color_scheme=look.scheme)
    page.goto(address + look.path)
    page.add_style_tag(content=_STYLE)


def photograph(page: Any) -> bytes:
    """Return the page's beginning as a JPEG."""
    tall = page.evaluate("document.documentElement.scrollHeight")
    wide = page.viewport_size["width"]
    box = {"x": 0, "y": 0, "width": wide, "height": min(tall, _TALLEST)}
    found: bytes = page.screenshot(type="jpeg", quality=45, full_page=True, clip=box)
    return found


def has_font(page: Any) -> bool:
    """Return whether the browser has the font that the approved pictures are written in."""
    return bool(page.evaluate(_HAS_FONT, FONT))


def apart(page: Any, one: bytes, other: bytes) -> float:
    """Return how far two pictures are apart where they differ most, 0 to 255; ``page`` is any page to compute in."""
    data = ["data:image/jpeg;base64," + base64.b64encode(each).decode() for each in (one, other)]
    return float(page.evaluate(_APART, data))
