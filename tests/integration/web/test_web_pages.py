"""Every page is whole without a script, says the same as the command line, and lets no name break it."""

from __future__ import annotations

import subprocess
import sys
from itertools import product
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urljoin, urlsplit

import pytest

from jobs.spec import Input, JobSpec
from scheduler.core.job import Held
from scheduler.core.ledger import EntryKind, LedgerEntry
from scheduler.service.requests import queue
from scheduler.store import jobs, ledger, limits, outbox, runs, training_data
from tests.lab.web.page import Page

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.lab.web.world import World

EVIL = '<script>alert("1")</script><img src=x onerror=alert(1)>\x1b[2J\u202e&amp;\'"'
LEARNED = {
    "records": {"messages": 7},
    "left_out": [[EVIL, 2, "train-0.jsonl:3"]],
    "cut": 0,
    "rows": 4,
    "tokens": 500,
    "padding": 0.25,
    "samples": [f"2+2=⟦4⟧ {EVIL}"],
}
PLACES = ["/", "/queue", "/runs", "/models", "/quota", "/plan", "/ledger", "/advise", "/compare", "/reports"]


def read(site: Any, path: str) -> Page:
    answer = site.get(path)
    assert answer.status_code == 200, f"{path}: {answer.status_code} {answer.text[:300]}"
    return Page(answer.text)


def kind(path: str) -> str:
    plain = path.partition("?")[0]
    return plain.rpartition("/")[0] if plain.count("/") > 1 else plain


def detail_pages(site: Any) -> list[str]:
    job = site.json("/api/v1/queue")["jobs"][1]["name"]
    live, past = site.json("/api/v1/runs?rows=2")["runs"][0]["key"], site.json("/api/v1/runs?page=3")["runs"][0]["key"]
    week = site.json("/api/v1/reports")["reports"][3]["week"]
    other = site.json("/api/v1/queue")["jobs"][2]["name"]
    compared = f"/compare?jobs={quote(job)},{quote(other)}"
    return [f"/jobs/{job}", compared, f"/runs/{live}", f"/runs/{past}", f"/reports/{week}", "/?from=2026-03-01"]


def test_every_page_has_its_landmarks_one_heading_and_a_name_for_every_table(site: Any) -> None:
    for path in [*PLACES, *detail_pages(site)]:
        page = read(site, path)
        assert page.problems == [], path
        assert [len(page.all(tag)) for tag in ("main", "header", "footer", "h1")] == [1, 1, 1, 1], path
        assert page.all("html")[0]["lang"] == "en"
        assert len(page.all("caption")) == len(page.all("table")), path
        assert all(nav.get("aria-label") for nav in page.all("nav")), path
        assert all(th.get("scope") for th in page.all("th")), path
        ids = [found["id"] for _, found in page.tags if "id" in found]
        assert len(ids) == len(set(ids)), path


def test_compared_jobs_show_their_losses_and_the_settings_that_differ(
    make_world: Callable[..., World], serve: Any
) -> None:
    world = make_world()
    with world.database.write() as tx:
        names = [record.spec.name for record in jobs.everything(tx)]
        for name, rate in (("lr-3", "1e-3"), ("lr-4", "1e-4")):
            command = ("python", "train.py", "--lr", rate)
            jobs.add(tx, JobSpec(name=name, role="job", command=command, target_step=9, steps_per_hour=1), world.now)
    with serve(world) as site:
        words = " ".join(" ".join(read(site, "/compare?jobs=lr-3,%20lr-4").words).split())
        assert "No loss is known for two steps" in words
        assert "Setting lr-3 lr-4 command python train.py --lr 1e-3 python train.py --lr 1e-4" in words
        known = [name for name in names if len(site.json(f"/api/v1/jobs/{name}")["losses"]) > 1][:2]
        curves = site.get(f"/compare?jobs={','.join(known)}").text
        assert [f'class="line h{number}"' in curves for number in range(3)] == [True, True, False]
        assert site.get(f"/compare?jobs={known[0]}&scale=log").text.count("<polyline") == 1
        assert "Name two jobs or more" in site.get("/compare").text
        assert site.get("/compare?jobs=lr-3,none").status_code == 404


def test_the_archive_shows_what_was_sent_and_not_what_the_books_say_now(
    make_world: Callable[..., World], serve: Any
) -> None:
    world = make_world()
    html = '<!doctype html><style>p { color: red; }</style><p>41.0 h</p><img src="cid:week" alt="the week">'
    body = {
        "subject": "Training report 2026-W40",
        "text": f"41.0 h of {EVIL} were kept",
        "html": html,
        "pictures": {"week": "iVBORw0KGgo="},
    }
    with world.database.write() as tx:
        for channel in ("email", "slack"):
            outbox.add(tx, "weekly-report", "2026-W40", channel, body, world.now)
        outbox.sent(tx, outbox.pending(tx, world.now)[0].id, world.now)
        outbox.add(tx, "weekly-report", "2026-W39", "email", {}, world.now - 99)
    with serve(world) as site:
        answer = site.get("/reports/2026-W40/letters/email")
        assert answer.text == html.replace("cid:week", "data:image/png;base64,iVBORw0KGgo=")
        assert answer.headers["content-security-policy"].endswith("; sandbox")
        assert "script-src" not in answer.headers["content-security-policy"]
        page = read(site, "/reports/2026-W40/letters/slack")
        assert page.problems == []
        assert "41.0 h of <script>" in "".join(page.words)
        assert "not sent yet" in "".join(page.words)
        told = site.json("/api/v1/reports/2026-W40/letters/email")
        assert told == {
            "week": "2026-W40", "channel": "email", "sent": world.now, "subject": body["subject"], "text": body["text"]
        }  # fmt: skip
        assert "/?from=2026-09-28" in {a.get("href") for a in read(site, "/reports/2026-W40").all("a")}
        for path in ("/reports", "/reports/2026-W40"):
            assert "/reports/2026-W40/letters/slack" in {a.get("href") for a in read(site, path).all("a")}, path
        assert "its text was deleted" in site.get("/reports/2026-W39/letters/email").text
        for path in ("/reports/2026-W40/letters/pigeon", "/reports/2026-W39/letters/email"):
            assert site.get(path).status_code == site.get(f"/api/v1{path}").status_code == 404


def test_no_page_runs_or_styles_anything_inline_or_loads_from_elsewhere(site: Any) -> None:
    for path in [*PLACES, *detail_pages(site)]:
        page = read(site, path)
        assert page.all("style") == []
        assert all(script.get("src", "").startswith("/assets/") for script in page.all("script"))  # type: ignore[union-attr]
        for tag, attributes in page.tags:
            assert "style" not in attributes, (path, tag)
            assert not [name for name in attributes if name.startswith("on")], (path, tag)
            for name in ("src", "href", "action"):
                assert (attributes.get(name) or "/").startswith(("/", "#")), (path, tag, attributes)


def test_every_link_of_every_page_leads_somewhere(site: Any) -> None:
    pending, seen = list(PLACES), set[str]()
    while pending and len(seen) < 120:
        path = pending.pop(0)
        if path in seen:
            continue
        seen.add(path)
        answer = site.get(path)
        assert answer.status_code == 200, path
        if answer.headers["content-type"].startswith("text/html"):
            links = {link["href"] for link in Page(answer.text).all("a")}
            found = {urlsplit(urljoin(path, str(link)))._replace(fragment="").geturl() for link in links}
            # A few of each kind: the pages of other jobs are no different.
            pending += [
                link
                for link in sorted(found)
                if sum(other.split("/")[1:2] == link.split("/")[1:2] for other in seen) < 12
            ]
    assert len(seen) > 40


def test_the_overview_shows_what_ran_runs_and_is_planned(site: Any) -> None:
    page = read(site, "/")
    bars = [str(found.get("class")) for found in page.all("rect")]
    assert {"past", "running", "planned"} <= set(bars)
    span = site.json("/api/v1/sessions")
    assert f"The {len(span['sessions'])} sessions as a table" in page.text
    assert {session["phase"] for session in span["sessions"]} >= {"past", "running", "planned"}


def test_the_queue_is_leafed_through_filtered_and_searched(site: Any) -> None:
    first = site.json("/api/v1/queue?rows=15")
    assert (first["total"], first["pages"], len(first["jobs"])) == (40, 3, 15)
    names = [job["name"] for number in (1, 2, 3) for job in site.json(f"/api/v1/queue?rows=15&page={number}")["jobs"]]
    assert len(set(names)) == 40
    held = site.json("/api/v1/queue?state=held")
    assert [job["state"] for job in held["jobs"]] == ["held"]
    assert "by mia: wrong learning rate" in read(site, "/queue?state=held").text
    assert [job["name"] for job in site.json("/api/v1/queue?name=m0013")["jobs"]] == ["m0013"]
    assert "No job has “nothing-like-it” in its name" in read(site, "/queue?name=nothing-like-it").text


def test_a_job_shows_its_losses_and_a_run_its_lanes(site: Any) -> None:
    name = next(job["name"] for job in site.json("/api/v1/queue")["jobs"] if job["attempts"] > 3)
    page = read(site, f"/jobs/{name}")
    assert len(page.all("polyline")) == 1
    run = site.json(f"/api/v1/jobs/{name}")["runs"][0]["key"]
    assert name in read(site, f"/runs/{run}").text


def test_an_empty_database_says_what_to_do_next(make_world: Callable[..., World], serve: Any) -> None:
    world = make_world()
    (world.config.parent / "state" / "scheduler.db").rename(world.config.parent / "state" / "old.db")
    from scheduler.store.engine import upgrade

    upgrade(f"sqlite:///{world.config.parent / 'state' / 'scheduler.db'}")
    with serve(world) as site:
        assert "No daemon runs" in read(site, "/").text
        assert "schedctl queue add --models" in read(site, "/queue").text
        for path in PLACES:
            assert read(site, path).problems == []
        assert site.json("/api/v1/plan") == {"plan": None}
        assert site.get("/api/v1/plan/difference").status_code == 404
        assert site.get("/metrics").status_code == 200


@pytest.fixture
def hostile(make_world: Callable[..., World]) -> World:
    """A world in which everything that can hold text holds markup and terminal commands."""
    world = make_world()
    with world.database.write() as tx:
        jobs.add(tx, JobSpec(name=EVIL, role="manager", command=(EVIL,), target_step=9, steps_per_hour=1.0), world.now)
        record = jobs.get(tx, EVIL)
        jobs.change_state(tx, EVIL, record.state, Held(EVIL, EVIL, world.now), "hold", world.now, EVIL, why=EVIL)
        limits.close_pool(tx, "desk", None, EVIL, world.now)
        ledger.append(tx, [LedgerEntry(EntryKind.ADJUST, "desk", None, 0, 9, world.now, evidence=EVIL)])
        live = runs.live(tx)[0]
        runs.note_heartbeat(tx, live.key, 0, {"step": 1, "loss": float("nan"), "phase": EVIL})
        training_data.record(tx, live.lanes[0].job, live.key, LEARNED, world.now)
    return world


def test_hostile_text_is_shown_as_text_everywhere(hostile: World, serve: Any) -> None:
    with serve(hostile) as site:
        live = next(run for run in site.json("/api/v1/runs")["runs"][::-1] if run["state"] == "running")["key"]
        with hostile.database.read() as tx:
            learning = runs.live(tx)[0].lanes[0].job
        said = "records: 7 of messages; left out: 2: "
        page = Page(site.get(f"/jobs/{quote(learning)}").text)
        assert said in page.text
        assert "2+2=⟦4⟧" in page.text
        assert site.json(f"/api/v1/jobs/{learning}")["training_data"] == LEARNED
        command = [sys.executable, "-m", "scheduler", "--config", str(hostile.config), "queue", "show", learning]
        assert said in subprocess.run(command, check=True, capture_output=True, text=True).stdout
        shown = 0
        for path in [
            *PLACES,
            f"/jobs/{quote(EVIL)}",
            f"/runs/{live}",
            f"/jobs/{quote(learning)}",
            f"/queue?name={quote(EVIL)}",
        ]:
            answer = site.get(path)
            if path == f"/jobs/{quote(EVIL)}":
                assert answer.status_code == 404  # no address can hold a slash; the page must stand all the same
            page = Page(answer.text)
            assert "<img" not in answer.text, path
            assert "<script>" not in answer.text, path
            assert page.problems == [], path
            shown += "alert(" in page.text
        assert shown >= 5
        assert site.get("/api/v1/status").headers["content-type"] == "application/json"
        assert site.json(f"/api/v1/runs/{live}")["lanes"][0]["heartbeat"]["loss"] is None


def test_no_secret_shows_anywhere(make_world: Callable[..., World], serve: Any) -> None:
    canary = "canary-0123456789"
    world = make_world()
    spec = JobSpec(
        name="keyed",
        role="manager",
        command=("train",),
        target_step=9,
        steps_per_hour=1.0,
        environment={"HUB_TOKEN": canary, "BATCH": "16"},
        inputs=(Input("base", f"hf:{EVIL}", "d" * 64, "c" * 40),),
    )
    with world.database.write() as tx:
        jobs.add(tx, spec, world.now)
        run = next(run for run in runs.live(tx) if run.pool == "desk")
    log = world.config.parent / "state" / "sessions" / "desk" / run.key / "output.log"
    log.parent.mkdir(parents=True)
    log.write_text(f"password {canary}\n", encoding="utf-8")
    with serve(world, SCHEDCTL_REPORT__SMTP__PASSWORD=canary, SCHEDCTL_REPORT__SLACK__WEBHOOK_TOKEN_URL=canary) as site:
        assert "16" in site.json("/api/v1/jobs/keyed")["spec"]["environment"]["BATCH"]
        page = Page(site.get("/jobs/keyed").text)
        assert (page.problems, "d" * 12 in page.text, f"commit {'c' * 12}" in page.text) == ([], True, True)
        paths = [
            *PLACES,
            "/jobs/keyed",
            f"/runs/{run.key}",
            f"/api/v1/runs/{run.key}/log",
            "/api/v1/jobs/keyed",
            "/api/v1/status",
            "/api/v1/queue",
            "/metrics",
        ]
        for path in paths:
            answer = site.get(path)
            assert answer.status_code == 200
            assert canary not in answer.text, path
            assert canary not in str(answer.headers), path
        assert "password [secret]" in site.get(f"/runs/{run.key}").text
    assert canary not in world.config.with_name("web.log").read_text(encoding="utf-8")


def test_closures_of_a_pool_are_drawn_from_when_to_when(make_world: Callable[..., World], serve: Any) -> None:
    world = make_world()
    now = world.now
    with world.database.write() as tx:
        limits.close_pool(tx, "desk", None, "an outage", now - 50_000)
        limits.open_pool(tx, "desk", now - 40_000)
        limits.close_pool(tx, "desk", now + 9_000, "refused", now - 3_000)
        limits.close_pool(tx, "kaggle", None, "by hand", now - 1_000)
    from config.load import load
    from scheduler.app import App
    from scheduler.verbs.source import Source
    from scheduler.views.chart_facts import closures

    source = Source(App(load(world.config, {})))
    with source.read() as tx:
        assert [(shut.start - now, shut.end - now) for shut in closures(tx, "desk", now, now + 99)] == [
            (-50_000, -40_000),
            (-3_000, 9_000),
        ]
        assert [(shut.start - now, shut.end - now) for shut in closures(tx, "kaggle", now, now + 99)] == [(-1_000, 99)]
        assert closures(tx, "sagemaker", now, now + 99) == []
    source.app.reading.close()
    with serve(world) as site:
        states = {pool["name"]: pool["state"] for pool in site.json("/api/v1/status")["pools"]}
        assert states == {"desk": "closed", "kaggle": "closed", "sagemaker": "open"}


def test_a_page_that_does_not_exist_and_a_bad_question_say_so(site: Any) -> None:
    for path, code, words in (
        ("/nothing", 404, "no such page"),
        ("/jobs/nobody", 404, "no job has this name"),
        ("/runs/nothing", 404, "no run has this key"),
        ("/?from=yesterday", 404, "is not a day"),
        ("/?from=9999-12-31", 404, "outside the years"),
        ("/queue?page=0", 422, "page"),
        ("/reports/2026-W60", 404, "no week"),
    ):
        answer = site.get(path)
        assert answer.status_code == code, path
        page = Page(answer.text)
        assert words in page.text, page.text
        assert page.problems == []


def test_a_database_that_goes_away_is_said_and_comes_back(make_world: Callable[..., World], serve: Any) -> None:
    world = make_world()
    with serve(world) as site:
        assert site.get("/queue").status_code == 200
        with world.database.write() as tx:
            from sqlalchemy import text

            tx.execute(text("ALTER TABLE jobs RENAME TO jobs_away"))
        world.change()
        answer = site.get("/queue")
        assert answer.status_code in {500, 503}
        assert "Traceback" not in answer.text
        assert site.get("/health/live").status_code == 200
        with world.database.write() as tx:
            tx.execute(text("ALTER TABLE jobs_away RENAME TO jobs"))
        assert site.get("/queue").status_code == 200


def test_assets_may_be_kept_for_ever_and_change_their_address_with_their_content(site: Any) -> None:
    sheet = read(site, "/").all("link")[1]["href"]
    answer = site.get(sheet)
    assert answer.headers["content-type"].startswith("text/css")
    assert "immutable" in answer.headers["cache-control"]
    assert site.get("/assets/000000000000/style.css").status_code == 404
    assert site.get("/assets/x/..%2f..%2fserver.py").status_code == 404


def test_a_damaged_row_is_said_with_what_to_do_and_the_page_lives_on(
    make_world: Callable[..., World], serve: Any
) -> None:
    """One page goes through every damage of two columns, and each time lives on when it is mended."""
    from sqlalchemy import literal_column, select, update

    from scheduler.store.schema import jobs as table

    world = make_world()
    with serve(world) as site:
        for damage, column in product(("'{'", "CAST(x'ff80fe' AS TEXT)", "'[1]'", "x'00ff'"), ("spec", "state_detail")):
            with world.database.write() as tx:
                kept = list(tx.execute(select(table.c.name, table.c[column])))
                tx.execute(update(table).values({column: literal_column(damage)}))
            world.change()
            for path in ("/", "/queue", "/api/v1/queue"):
                answer = site.get(path)
                assert answer.status_code == 503, (path, damage, column, answer.text)
                assert "Traceback" not in answer.text
                assert "schedctl db verify" in answer.text, path
            assert site.get("/health/live").status_code == 200
            assert site.get("/quota").status_code == 200
            with world.database.write() as tx:
                for row, value in kept:
                    tx.execute(update(table).where(table.c.name == row).values({column: value}))
            assert site.get("/queue").status_code == 200


def test_a_reason_with_half_a_character_is_shown(make_world: Callable[..., World], serve: Any) -> None:
    """Python gives odd names of files such halves, and a reason may quote a name."""
    world = make_world()
    queue.hold(world.database, "m0010", "no file bad-\udcff", world.now, "somebody")
    with serve(world) as site:
        for path in ("/queue?state=held", "/jobs/m0010", "/api/v1/jobs/m0010", "/api/v1/queue?state=held"):
            answer = site.get(path)
            assert (answer.status_code, "no file bad-?" in answer.text) == (200, True), path
