"""What an hour costs is told from the catalogue, and no machine is launched that costs more than is booked."""

import json
import sys
from typing import TYPE_CHECKING

import pytest

from platforms.base import HourPrice, SessionState, Unreachable
from platforms.registry import PlatformContext, load
from scheduler.clock import real_now

if TYPE_CHECKING:
    from platforms.base import Platform
    from tests.integration.skypilot.conftest import World

# name, region, price and price of spot, of an hour with as many cards as are asked for
OFFERS = [("a", "us-east-1", 6.0, 2.0), ("b", "us-west-2", 4.0, 3.0), ("c", "eu-1", 9.0, float("nan"))]


def pool(world: "World", options: dict[str, str], *, is_priced: bool = False) -> "Platform":
    """A pool of two cards a session."""
    context = PlatformContext(
        world.folder / "state", sys.executable, world.folder / "bundle", devices_per_session=2, is_priced=is_priced
    )
    usual = {"address": world.server.address, "accelerator": "H100", "python": sys.executable}
    given = {name: value for name, value in {**usual, **options}.items() if value}
    return load("skypilot", given, context)


@pytest.mark.parametrize(
    ("options", "price", "where"),
    [
        ({}, 4_000_000, "us-west-2"),
        ({"infra": "aws/us-east-1"}, 6_000_000, "us-east-1"),
        ({"max_hourly_cost": "8.5"}, 6_000_000, "us-east-1"),
        ({"max_hourly_cost": "4"}, 4_000_000, "us-west-2"),
        ({"use_spot": "yes"}, 2_000_000, "us-east-1"),
    ],
)
def test_it_is_the_dearest_offer_within_the_ceiling_else_the_cheapest_and_nothing_dearer_is_launched(
    world: "World", options: dict[str, str], price: int, where: str
) -> None:
    world.server.catalogue = OFFERS
    adapter = pool(world, options)
    assert adapter.capabilities.tells_price
    assert list(adapter.read_quota(int(real_now()))) == [HourPrice(price, f"SkyPilot's catalogue: aws {where}")]
    adapter.launch(world.request("one"), int(real_now()))
    assert world.server.tasks[0]["resources"]["max_hourly_cost"] == price / 1_000_000


def test_a_price_that_a_person_declared_stands_and_nothing_is_asked(world: "World") -> None:
    world.server.catalogue = OFFERS
    adapter = pool(world, {}, is_priced=True)
    assert not adapter.capabilities.tells_price
    assert list(adapter.read_quota(int(real_now()))) == []
    adapter.launch(world.request("one"), int(real_now()))
    assert "max_hourly_cost" not in world.server.tasks[0]["resources"]


def test_without_a_catalogue_or_an_offer_within_the_ceiling_no_price_is_told(world: "World") -> None:
    world.server.catalogue = None
    assert list(pool(world, {}).read_quota(int(real_now()))) == []
    world.server.catalogue = OFFERS
    assert list(pool(world, {"max_hourly_cost": "1"}).read_quota(int(real_now()))) == []


def test_what_an_hour_of_an_ended_session_cost_is_told_again_by_whoever_asks_later(world: "World") -> None:
    world.running("one")
    world.adapter().stop("one", int(real_now()), force=True)
    ended = world.until("one", SessionState.ENDED)
    # A session of less than a second has no price by the hour.
    seconds = (ended.ended or 0) - (ended.started or 0)
    assert ended.price_microdollars_per_hour == (2_500_000 if seconds else None)
    assert world.find("one") == ended
    record = world.folder / "state" / "sessions" / "one" / "end.json"
    before = {name: value for name, value in json.loads(record.read_text()).items() if name != "price"}
    record.write_text(json.dumps(before))  # as an earlier version wrote it
    assert world.until("one", SessionState.ENDED).price_microdollars_per_hour is None


def test_a_pool_without_a_card_has_no_price_in_the_catalogue_and_says_that_it_needs_one(world: "World") -> None:
    adapter = pool(world, {"accelerator": ""})
    assert adapter.capabilities.tells_price  # so that a budget in money is not spent as if hours were free
    assert list(adapter.read_quota(int(real_now()))) == []


def test_a_server_that_cannot_be_reached_tells_nothing(world: "World") -> None:
    with pytest.raises(Unreachable):
        pool(world, {"address": "http://127.0.0.1:1"}).read_quota(int(real_now()))
