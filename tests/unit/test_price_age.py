"""A price without a date, an old one, and one that no budget bounds are told of."""

from dataclasses import replace

import pytest

from jobs.nouns.pool import Pool
from jobs.nouns.quota import MoneyQuota
from jobs.nouns.window import DAY, Calendar
from scheduler.host.doctor import check_price

NOW = 1_795_219_200.0  # 2026-11-21
BUDGET = MoneyQuota("money of the month", 60_000_000, Calendar("month"))
POOL = Pool(
    name="aws",
    platform="sagemaker",
    accelerator="T4",
    quotas=(BUDGET,),
    price_microdollars_per_hour=736_400,
    as_of="2026-11-01",
)


@pytest.mark.parametrize(
    ("pool", "later", "grade", "said"),
    [
        (POOL, 0, "ok", "$0.7364 an hour, as of 2026-11-01"),
        (POOL, 200 * DAY, "warning", "220 days ago"),
        (replace(POOL, as_of=""), 0, "warning", "of no date"),
        (replace(POOL, quotas=()), 0, "warning", "no budget in money"),
        (replace(POOL, price_microdollars_per_hour=0), 0, "ok", "cost nothing"),
    ],
)
def test_a_price_is_judged_by_its_date_and_its_budget(pool: Pool, later: int, grade: str, said: str) -> None:
    finding = check_price(pool, NOW + later)
    assert finding.grade == grade
    assert said in finding.found
    assert bool(finding.remedy) == (grade != "ok")
