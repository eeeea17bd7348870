"""What is over on the status page, and when the rest will be."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from jobs.spec import JobSpec
from scheduler.core.job import finish
from scheduler.store import jobs

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.lab.web.world import World


def test_what_finished_lately_is_listed_and_the_plan_says_when_each_model_is_done(
    make_world: Callable[..., World], serve: Any
) -> None:
    world = make_world()
    with world.database.write() as tx:
        jobs.add(tx, JobSpec("over", "manager", ("train",), 100, 10.0), world.now - 500)
        before = jobs.get(tx, "over").state
        jobs.change_state(tx, "over", before, finish(before, world.now - 100), "finish", world.now - 100)
    with serve(world) as site:
        assert "over" in [job["name"] for job in site.json("/api/v1/training")["finished"]]
        assert "schedctl checkpoints pull over ./over" in site.get("/").text
        assert "When jobs are done" in site.get("/plan").text


def test_bars_begin_with_the_colour_of_their_model_and_the_page_stays_light(site: Any) -> None:
    page = site.get("/")
    assert re.search(r'<rect class="h[0-7]"', page.text)
    assert len(page.content) <= 100_000
