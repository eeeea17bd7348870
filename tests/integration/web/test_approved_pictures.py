"""Every state of the page looks as approved, in a real browser, and is accessible.

``make pictures`` takes the pictures anew; whoever commits them has looked at them.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from scheduler.clock import real_now
from tests.lab.web.photographs import FONT, Look, apart, has_font, looks, photograph, show, window
from tests.lab.web.site import served
from tests.lab.web.states import PAGES, STATES, write_state

if TYPE_CHECKING:
    from collections.abc import Iterator

APPROVED = Path(__file__).with_name("approved")
# Two drawings of one page by one Chromium differ by 0. Another version moves letters by parts of a pixel, which stays
# below this; a bar in another colour or a column elsewhere does not, as the test of mutated styles shows.
TOLERANCE = 12.0


EACH_PUSH = ("running",)
"""States that every push looks at; the night looks at all. That odd names fit tests test_web_browser.py."""


@pytest.fixture(
    scope="module",
    params=[each if each in EACH_PUSH else pytest.param(each, marks=pytest.mark.nightly) for each in STATES],
)
def state(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def shown(state: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the page over one state."""
    world = write_state(tmp_path_factory.mktemp(state), state, real_now())
    with served(world) as site:
        yield site.address
    world.database.close()


def test_it_looks_as_approved(state: str, shown: str, browser: Any) -> None:
    worse = {}
    page = window(browser)
    for look in looks(state):
        show(page, shown, look)
        if not has_font(page):
            pytest.skip(f"no font {FONT}: the approved pictures are written in it")
        approved = APPROVED / look.file(state)
        assert approved.exists(), f"{approved.name} is missing; run `make pictures` and look at it"
        distance = apart(page, approved.read_bytes(), photograph(page))
        if distance > TOLERANCE:
            worse[approved.name] = round(distance)
    page.context.close()
    assert worse == {}, "look at them with `make pictures` and `git diff`; commit them if they are as they should be"


def test_nobody_is_kept_from_reading_it(state: str, shown: str, browser: Any) -> None:
    """WCAG 2.2 AA, as far as axe can tell, in both schemes and on a phone and a wide screen."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed").Axe()
    tags = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
    wrong = {}
    page = window(browser)
    for path in PAGES[state]:
        for width, scheme in ((375, "dark"), (1_280, "light")):
            show(page, shown, Look(path, width, scheme))
            found = axe.run(page, options={"runOnly": {"type": "tag", "values": tags}}).response["violations"]
            if found:
                wrong[path, width] = [(each["id"], each["nodes"][0]["html"][:200]) for each in found]
    page.context.close()
    assert wrong == {}


@pytest.mark.parametrize(
    "style",
    [
        ".bar-part { fill: none !important; }",
        ".legend { display: none !important; }",
        *(
            pytest.param(style, marks=pytest.mark.nightly)  # a colour and a place are enough for each push
            for style in (
                ".chart .planned { fill: #1d5fbf !important; }",
                "main { padding-left: 60px !important; }",
                "h1 { font-size: 40px !important; }",
                ".chip::before { width: 40px !important; }",
                ".scroll { overflow: visible !important; width: 1600px !important; }",
            )
        ),
    ],
)
def test_a_mutated_style_is_noticed(style: str, running: str, browser: Any) -> None:
    """Otherwise the comparison above would compare nothing."""
    looked = Look("/", 1_280, "light")
    page = window(browser)
    show(page, running, looked)
    if not has_font(page):
        pytest.skip(f"no font {FONT}: the approved pictures are written in it")
    page.add_style_tag(content=style)
    approved = (APPROVED / looked.file("running")).read_bytes()
    assert apart(page, approved, photograph(page)) > TOLERANCE
    page.context.close()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the page over a running week."""
    world = write_state(tmp_path_factory.mktemp("mutated"), "running", real_now())
    with served(world) as site:
        yield site.address
    world.database.close()


def test_the_approved_pictures_are_those_that_are_compared_and_are_small() -> None:
    expected = {look.file(state) for state in STATES for look in looks(state)}
    assert {file.name for file in APPROVED.iterdir()} == expected
    assert sum(file.stat().st_size for file in APPROVED.iterdir()) < 3_000_000
