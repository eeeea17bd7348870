"""The status page in a real Chromium: on a phone and a wide screen, light and dark, with and without a script."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from config.load import load
from scheduler.app import App
from scheduler.core.run import Ended, Outcome
from scheduler.notify.mail import message_of
from scheduler.service.requests import queue
from scheduler.store import runs
from scheduler.views.chart_facts import pictures_of
from scheduler.views.weekly_report import make_report, render, week_named

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.lab.web.world import World

PLACES = ["/", "/queue", "/runs", "/models", "/quota", "/plan", "/ledger", "/advise", "/compare", "/reports"]
WIDE, PHONE = {"width": 1_200, "height": 800}, {"width": 375, "height": 720}
# Each size and each scheme with every push, all four pairs in the night.
LOOKS = [
    pytest.param(WIDE, "light", id="wide-light"),
    pytest.param(PHONE, "dark", id="phone-dark"),
    pytest.param(WIDE, "dark", id="wide-dark", marks=pytest.mark.nightly),
    pytest.param(PHONE, "light", id="phone-light", marks=pytest.mark.nightly),
]

# Contrast of every visible text with the nearest painted ground behind it (WCAG 2, relative luminance).
CONTRAST = """() => {
  const numbers = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const linear = (part) => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  const light = (colour) => {
    const [r, g, b] = colour.map((part) => linear(part / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (element) => {
    for (let each = element; each; each = each.parentElement) {
      const colour = numbers(getComputedStyle(each).backgroundColor);
      if (colour.length < 4 || colour[3] === 1) return colour.slice(0, 3);
    }
    return [255, 255, 255];
  };
  const unseen = ".hidden, [hidden], details:not([open]) > :not(summary), svg";
  const poor = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement, words = walker.currentNode.textContent.trim();
    if (!words || element.closest(unseen)) continue;
    const ink = light(numbers(getComputedStyle(element).color).slice(0, 3)), paper = light(ground(element));
    const ratio = (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
    if (ratio < 4.5) poor.push([element.className, words.slice(0, 30), ratio]);
  }
  return poor;
}"""

# Words of a chart that lie on one another; a bar cuts its own label, which is left out here.
OVERLAPS = """() => [...document.querySelectorAll("svg.chart")].flatMap((chart) => {
  const said = [...chart.querySelectorAll("text:not(.bar-label)")]
    .map((text) => [text.textContent, text.getBoundingClientRect()]).filter(([, box]) => box.width > 0);
  return said.flatMap(([one, a], place) => said.slice(place + 1)
    .filter(([, b]) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom)
    .map(([other]) => `${one} | ${other}`));
})"""


@pytest.fixture
def open_page(browser: Any) -> Iterator[Callable[..., Any]]:
    """Opens pages; whatever a page complains about in its console fails the test."""
    contexts = []
    complaints: list[str] = []

    def open_one(**options: Any) -> Any:
        context = browser.new_context(**{"viewport": WIDE, **options})
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda said: complaints.append(said.text) if said.type in {"error", "warning"} else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        return page

    yield open_one
    for context in contexts:
        context.close()
    assert complaints == []


@pytest.mark.parametrize(("viewport", "scheme"), LOOKS)
def test_every_page_fits_and_can_be_read(site: Any, open_page: Any, viewport: dict[str, int], scheme: str) -> None:
    page = open_page(viewport=viewport, color_scheme=scheme)
    job = site.json("/api/v1/queue")["jobs"][1]["name"]
    run = site.json("/api/v1/runs")["runs"][0]["key"]
    week = site.json("/api/v1/reports")["reports"][2]["week"]
    grounds = set()
    for path in [*PLACES, f"/jobs/{job}", f"/runs/{run}", f"/reports/{week}"]:
        assert page.goto(site.address + path).status == 200
        root = "document.documentElement"
        assert page.evaluate(f"{root}.scrollWidth - {root}.clientWidth") == 0, f"{path} is wider than the screen"
        assert page.evaluate(CONTRAST) == [], path
        grounds.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert grounds == {"rgb(251, 251, 250)" if scheme == "light" else "rgb(17, 20, 23)"}


@pytest.mark.parametrize("width", [375, 768, 1_280])
def test_no_word_of_a_chart_lies_on_another(site: Any, open_page: Any, width: int) -> None:
    page = open_page(viewport={"width": width, "height": 800})
    job = site.json("/api/v1/queue")["jobs"][1]["name"]
    drawn = 0
    for path in ["/", "/quota", "/plan", f"/jobs/{job}"]:
        page.goto(site.address + path)
        assert page.evaluate(OVERLAPS) == [], path
        drawn += page.locator("svg.chart text:not(.bar-label)").count()
    assert drawn > 20
    page.context.close()


@pytest.mark.parametrize(("viewport", "scheme"), LOOKS)
def test_the_weekly_report_fits_and_can_be_read_as_a_file_and_as_a_message(
    year: World, tmp_path: Path, open_page: Any, viewport: dict[str, int], scheme: str
) -> None:
    """Its HTML has no page of ours around it; a message's pictures come beside it and its reader places them."""
    app = App(load(year.config, {}))
    report = make_report(year.database, app.pools, week_named("last", "UTC", year.now), "UTC", year.now)
    pictures = pictures_of(year.database, app.pools, report)
    message = message_of(report, pictures)
    html = message["html"]
    for name, png in message["pictures"].items():
        html = html.replace(f"cid:{name}", f"data:image/png;base64,{png}")
    page = open_page(viewport=viewport, color_scheme=scheme)
    for name, text in (("file", render(report, "html", pictures)), ("letter", html)):
        file = tmp_path / f"{name}.html"
        file.write_text(text, encoding="utf-8")
        page.goto(file.as_uri())
        root = "document.documentElement"
        assert page.evaluate(f"{root}.scrollWidth - {root}.clientWidth") == 0, f"the {name} is wider than the screen"
        assert page.evaluate(CONTRAST) == [], name
        assert page.locator("h1").inner_text() == f"Training report {report.label}"
    assert page.locator("img").count() == len(pictures)
    assert page.evaluate("[...document.images].filter((each) => !each.naturalWidth).length") == 0


def test_very_long_names_break_nothing(make_world: Callable[..., World], serve: Any, open_page: Any) -> None:
    world = make_world(suffix="-" + "x" * 60 + ".end", outage=True)
    with serve(world) as site:
        page = open_page(viewport=PHONE)
        for path in PLACES:
            page.goto(site.address + path)
            root = "document.documentElement"
            assert page.evaluate(f"{root}.scrollWidth - {root}.clientWidth") == 0, path
        page.goto(site.address + "/")
        assert page.get_by_text("HTTP 503 for 40 minutes").first.is_visible()
        assert page.locator(".chart .closed").count() > 0
        page.context.close()


def test_what_changes_appears_without_a_reload_and_what_is_open_stays_open(
    make_world: Callable[..., World], serve: Any, open_page: Any
) -> None:
    world = make_world()
    with serve(world) as site:
        page = open_page()
        page.clock.install()
        page.goto(site.address + "/queue")
        page.evaluate("window.stayed = true")
        row = page.locator("tr", has_text="m0010")
        assert "queued" in row.inner_text()
        queue.hold(world.database, "m0010", "the data are wrong", world.now, "mia")
        page.clock.run_for(6_000)
        page.locator("tr", has_text="the data are wrong").wait_for()
        assert "held" in page.locator("tr", has_text="m0010").inner_text()
        assert page.evaluate("window.stayed")

        page.goto(site.address + "/")
        page.locator("#sessions summary").click()
        page.locator("body").click(position={"x": 2, "y": 2})
        page.evaluate("document.activeElement.blur()")
        world.change()
        queue.hold(world.database, "m0011", "also wrong", world.now, "mia")
        page.clock.run_for(6_000)
        page.locator("#needs", has_text="also wrong").wait_for()
        assert page.locator("#sessions").evaluate("each => each.open")
        page.context.close()


def test_a_page_that_loses_the_server_says_so_and_finds_it_again(
    make_world: Callable[..., World], serve: Any, browser: Any
) -> None:
    with serve(make_world()) as site:
        page = browser.new_page()
        page.clock.install()
        page.goto(site.address + "/")
        page.context.set_offline(True)
        page.clock.run_for(6_000)
        page.get_by_text("No answer from the scheduler's page").wait_for()
        page.context.set_offline(False)
        page.clock.run_for(6_000)
        # Not wait_for_function: it compiles a string in the page, and the page's own rule forbids that.
        page.locator("#live-note:empty").wait_for(state="attached")
        page.close()


def test_a_log_grows_as_the_session_prints_and_ends_with_it(
    make_world: Callable[..., World], serve: Any, open_page: Any
) -> None:
    world = make_world()
    with world.database.read() as tx:
        run = next(run for run in runs.live(tx) if run.pool == "desk")
    folder = world.config.parent / "state" / "sessions" / "desk" / run.key
    folder.mkdir(parents=True)
    log: Path = folder / "output.log"
    log.write_bytes(b"step 1 loss 2.5\n\x1b[31m<b>not bold</b>\x1b[0m\nhalf a li")
    with serve(world) as site:
        page = open_page()
        page.clock.install()
        page.goto(f"{site.address}/runs/{run.key}")
        assert page.locator("#log").inner_text() == "step 1 loss 2.5\n<b>not bold</b>\n"
        with log.open("ab") as more:
            more.write(b"ne\nstep 2 loss 2.4\n")
        page.wait_for_timeout(1_600)  # the server asks a platform at most so often
        page.clock.run_for(3_000)
        page.locator("#log", has_text="step 2").wait_for()
        assert page.locator("#log").inner_text().endswith("half a line\nstep 2 loss 2.4\n")
        with world.database.write() as tx:
            runs.change_state(
                tx, run.key, run.state, Ended(Outcome.YIELDED, world.now, world.now - 60), "end", world.now
            )
        page.clock.run_for(9_000)
        page.locator("#run .chip.yielded").first.wait_for()
        page.context.close()


def test_without_a_script_every_page_says_the_same(site: Any, open_page: Any) -> None:
    page = open_page(java_script_enabled=False)
    for path in PLACES:
        page.goto(site.address + path)
        assert page.locator("main h1").is_visible()
    page.goto(site.address + "/")
    assert page.locator(".chart .past, .chart .bad").count() >= 2  # half a week of sessions 22 hours apart, or less
    page.locator("#sessions summary").click()
    assert page.locator("#sessions tbody tr").first.is_visible()


def test_the_keyboard_reaches_everything_and_is_seen_where_it_is(site: Any, open_page: Any) -> None:
    page = open_page()
    page.goto(site.address + "/")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    assert page.locator(".skip").bounding_box()["y"] >= 0
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    for _ in range(12):
        page.keyboard.press("Tab")
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline == "solid", page.evaluate("document.activeElement.outerHTML.slice(0, 200)")
    stops = page.locator("main a:not([tabindex='-1']), main summary, main [tabindex='0']").count()
    assert stops < 120


def test_a_screen_reader_finds_landmarks_headings_and_described_pictures(site: Any, open_page: Any) -> None:
    page = open_page()
    page.goto(site.address + "/")
    for role in ("banner", "navigation", "main", "contentinfo"):
        assert page.get_by_role(role).count() >= 1, role
    levels = page.evaluate("[...document.querySelectorAll('h1,h2,h3')].map(h => Number(h.tagName[1]))")
    assert levels[0] == 1
    assert set(levels[1:]) == {2}
    assert page.get_by_role("group", name="Sessions of all pools over time").count() == 1
    assert "past sessions" in page.locator("svg.chart desc").first.text_content()
    assert page.get_by_role("link", name="Overview", exact=True).get_attribute("aria-current") == "page"


def test_people_sign_in_once_and_come_back_to_where_they_were(
    make_world: Callable[..., World], serve: Any, browser: Any, tmp_path: Path
) -> None:
    token = "0123456789abcdef" * 3
    (tmp_path / "web").write_text(token, encoding="utf-8")
    with serve(make_world(), CREDENTIALS_DIRECTORY=str(tmp_path)) as site:
        page = browser.new_page()
        page.goto(site.address + "/ledger?pool=desk")
        assert page.url.endswith("/sign-in?next=%2Fledger%3Fpool%3Ddesk")
        page.get_by_label("Token").fill("not the token")
        page.get_by_role("button", name="Sign in").click()
        assert page.get_by_role("alert").inner_text() == "This is not the token."
        page.get_by_label("Token").fill(token)
        page.keyboard.press("Enter")
        page.wait_for_url("**/ledger?pool=desk")
        assert page.locator("h1").inner_text() == "Ledger"
        assert token not in str(page.context.cookies())
        assert page.evaluate("document.cookie") == ""
        page.close()
