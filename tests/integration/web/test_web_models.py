"""Models on the status page: versions, what the gates found, and what a version took."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from scheduler.store import versions

if TYPE_CHECKING:
    from scheduler.store.versions import Version
    from tests.lab.web.site import Served


@pytest.fixture
def version(site: Served) -> Version:
    """The version in force."""
    with site.world.database.read() as tx:
        return versions.everything(tx)[0]


def test_versions_are_listed_and_each_has_a_page(site: Served, version: Version) -> None:
    listed = site.get("/models").text
    assert f'<a class="key" href="/models/{version.model}%401">{version.name}</a>' in listed
    assert "promoted" in listed
    shown = site.get(f"/models/{version.name}").text
    for part in ("atomicity threshold", "0.95", "item-7", "&lt;i&gt;1 gate passed&lt;/i&gt;"):
        assert part in shown
    assert "<i>1 gate" not in shown, "words of a judge are text"
    assert site.get("/models/nobody@7").status_code == 404


def test_the_api_says_the_same(site: Served, version: Version) -> None:
    (model,) = [one for one in site.json("/api/v1/models")["models"] if one["versions"]]
    assert (model["in_force"], model["paused"]) == (version.name, False)
    detail = site.json(f"/api/v1/models/{version.name}")["version"]
    assert (detail["state"], detail["verdicts"][0]["verdict"]) == ("accepted", "accepted")
    assert site.get("/api/v1/models/ufm").status_code == 404


def test_metrics_tell_what_the_version_in_force_took(site: Served, version: Version) -> None:
    text = site.get("/metrics").text
    assert f'uff_version_in_force{{model="{version.model}"}} 1.0\n' in text
    assert 'uff_versions{state="accepted"} 1.0\n' in text
    detail = site.json(f"/api/v1/models/{version.name}")["version"]
    seconds = detail["training"]["seconds"] + detail["evaluating"]["seconds"]
    cost = text.partition(f'\nuff_version_cost_seconds{{model="{version.model}"}} ')[2]
    assert float(cost.partition("\n")[0]) == seconds
