"""Pictures of a report: its charts as SVG for pages, and as PNG for e-mails, because mail programs remove SVG."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from scheduler.report.chart import STYLE

_ZOOM = 2.0  # pixels of the PNG per pixel of the chart, for screens with a high resolution
# Common fonts of Linux distributions, plain and bold. Text in PNG pictures needs one of them.
_FONT_FOLDERS = (Path("/usr/share/fonts"), Path("/usr/local/share/fonts"))
_FONTS = (
    ("DejaVu Sans", "DejaVuSans.ttf", "DejaVuSans-Bold.ttf"),
    ("Liberation Sans", "LiberationSans-Regular.ttf", "LiberationSans-Bold.ttf"),
    ("Noto Sans", "NotoSans-Regular.ttf", "NotoSans-Bold.ttf"),
    ("FreeSans", "FreeSans.ttf", "FreeSansBold.ttf"),
)


@dataclass(frozen=True, slots=True)
class Picture:
    """One chart: ``fluid`` is an SVG that fills its container, ``fixed`` a stand-alone SVG of ``width`` pixels."""

    name: str
    caption: str
    fluid: str
    fixed: str
    width: int


@dataclass(frozen=True, slots=True)
class Font:
    """A font of this machine: its family, and the files of its plain and bold characters."""

    family: str
    files: tuple[str, ...]


def find_font(folders: Iterable[Path] = _FONT_FOLDERS) -> Font | None:
    """Return a font of this machine for the text in pictures; None without a font, and then pictures are left out."""
    there = [folder for folder in folders if folder.is_dir()]
    for family, *names in _FONTS:
        fonts = [path for name in names for folder in there for path in sorted(folder.rglob(name))[:1]]
        if fonts:
            return Font(family, tuple(str(path) for path in fonts))
    return None


def png_of(svg: str, font: Font) -> bytes:
    """Return a chart of fixed width as PNG, in light colours. Raises ImportError without resvg."""
    from resvg_py import svg_to_bytes

    return svg_to_bytes(
        svg_string=svg.replace(STYLE.replace(":root", "svg"), _flat(font.family)),
        background="#ffffff",
        skip_system_fonts=True,
        font_files=list(font.files),
        font_family=font.family,
        sans_serif_family=font.family,
        zoom=_ZOOM,
    )


def _flat(family: str) -> str:
    """Return the style of the charts without variables, media queries and shorthands, which resvg does not support."""
    light = dict(re.findall(r"(--[a-z-]+): ([^;]+);", STYLE.partition("@media")[0]))
    rules = re.findall(r"^(\.chart[^{@]*)\{([^}]*)\}|(\.chart[^{@]*)\{([^}]*)\}", STYLE, re.MULTILINE)
    flat = []
    for selector, body, other, rest in rules:
        plain = re.sub(r"var\((--[a-z-]+)\)", lambda match: light[match[1]], body or rest)
        plain = re.sub(r"font: (\d+)px/1 [^;]+;", rf"font-size: \1px; font-family: '{family}';", plain)
        flat.append(f"{(selector or other).strip()} {{{plain}}}")
    return "\n".join(flat)
