"""Facts about Kaggle that a session contradicts, as the adapter reports them with its end."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import structlog

from jobs.spec import JobSpec
from platforms.base import SessionState
from scheduler.app import App, load_app
from scheduler.core.plan import Placement, Plan, PlannedLane
from scheduler.report.report import Need
from scheduler.service.cycle.cycle import Cycle
from scheduler.service.facts.contradictions import settle
from scheduler.service.requests import queue
from scheduler.store import lease
from scheduler.views.needs import needs
from tests.lab.faults import Fault
from tests.lab.patience import until

Account = Any
KEY = "uff-ufm-0001"


def test_a_session_that_agrees_with_every_fact_contradicts_none(account: Account) -> None:
    account.adapter().launch(account.request(KEY, "finish"), account.now())
    assert account.until(KEY, SessionState.ENDED).contradicts == {}


def test_a_session_that_is_cut_before_its_time_limit_contradicts_the_session_cap(
    account_at: Callable[..., Account],
) -> None:
    account = account_at(240.0, session_cap_seconds=1_200)
    account.adapter().launch(account.request(KEY, "wait"), account.now())
    shown = account.until(KEY, SessionState.ENDED).contradicts
    assert set(shown) == {"session_cap_seconds"}
    assert shown["session_cap_seconds"].startswith("Kaggle's time limit ended it after ")


def test_a_session_that_is_cut_at_its_own_time_limit_contradicts_nothing(account_at: Callable[..., Account]) -> None:
    account = account_at(240.0)
    request = account.request(KEY, "wait", seconds=900, command=["sleep", "1000"])
    request.launch["deadline"] = account.now() + 7_200  # as if the payload did not see its deadline
    account.adapter().launch(request, account.now())
    ended = account.until(KEY, SessionState.ENDED)
    assert "exceeded the maximum" in ended.detail
    assert ended.contradicts == {}


def test_a_session_that_fails_early_contradicts_nothing(account: Account) -> None:
    account.adapter().launch(account.request(KEY, "wait"), account.now())
    account.until(KEY, SessionState.RUNNING)
    account.place.sessions()[0].cut("ERROR", "Your notebook failed")
    assert account.until(KEY, SessionState.ENDED).contradicts == {}


def test_a_log_that_is_cut_contradicts_the_log_limit(account_at: Callable[..., Account]) -> None:
    account = account_at(log_bytes_max=2_000)
    account.adapter().launch(account.request(KEY, "finish", command=["{python}", "-c", PRINTS]), account.now())
    ended = account.until(KEY, SessionState.ENDED)
    assert ended.detail == "complete"
    assert ended.contradicts == {"log-limit": "its log ends after 0.1 MB"}


PRINTS = "print('x' * 99_999)"


@pytest.mark.parametrize("how", ["was refused", "did not end it"])
def test_a_cancel_that_does_not_work_contradicts_the_way_to_stop(
    account: Account, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    if how == "was refused":
        account.place.faults.always["CancelKernelSession"] = Fault.FORBIDDEN
    else:
        monkeypatch.setattr(account.place, "cancel", lambda session_id: {})
    account.adapter().launch(account.request(KEY, "wait"), account.now())
    account.until_said(KEY, "resumed from")
    began = account.now()
    for later in (0, 121):
        account.adapter().stop(KEY, began + later, force=True)
    shown = account.until(KEY, SessionState.ENDED).contradicts
    assert shown == {"stop-session": f"a cancel by its session id {how}"}


def test_a_kernel_that_is_deleted_without_a_cancel_contradicts_nothing(account: Account) -> None:
    account.adapter().launch(account.request(KEY, "wait"), account.now())
    account.until_said(KEY, "resumed from")
    account.adapter(force_stop="delete").stop(KEY, account.now(), force=True)
    until(lambda: not account.place.sessions() or not account.place.sessions()[0].live, "the end")
    assert account.until(KEY, SessionState.ENDED).contradicts == {}


def required(app: App) -> list[Need]:
    """Return the actions about facts."""
    with app.database.read() as tx:
        return [need for need in needs(tx, app.pools, 0, app.clock.now()) if need.what == "fact contradicted"]


def test_a_lower_session_cap_is_an_action_until_the_settings_say_it(
    account_at: Callable[..., Account], tmp_path: Path
) -> None:
    """From the push of a session by the daemon's cycle to the list of actions."""
    account = account_at(240.0, session_cap_seconds=1_200)
    account.app(tmp_path).database.close()
    file = tmp_path / "settings.toml"
    text = file.read_text()
    file.write_text(text.replace('session_cap = "12h"\n', ""))
    app = load_app(file, {})
    spec = JobSpec("ufm", "manager", ("{python}", "-c", "import signal; signal.pause()"), 100, 1_000.0)
    queue.add(app.database, [spec], account.now(), "test")
    owner = lease.acquire(app.database, "test", 600)
    assert owner is not None
    log = structlog.get_logger()

    def plan(snapshot: Any, _: Plan | None) -> Plan:
        placement = Placement("kaggle", snapshot.now, snapshot.now + 7_200, (PlannedLane("ufm", 1, 1),))
        return Plan(snapshot.now, () if account.place.sessions() else (placement,), ())

    cycle = Cycle(replace(app.ports(log, owner.epoch), plan=plan, data_prefix=lambda _: ""))
    until(lambda: cycle.run() and required(app), "an action", every=0.05)
    (need,) = required(app)
    assert (need.subject, need.remedy) == ("session_cap_seconds of kaggle", "schedctl config show")
    start = "session_cap is 12h (shipped, Kaggle's documentation 2026-11-21), but uff-ufm-0001 shows otherwise: "
    assert need.why.startswith(f"{start}Kaggle's time limit ended it after ")
    settle(app.ports(log, owner.epoch), account.now())
    assert required(app) == [need]
    file.write_text(text)
    reloaded = load_app(file, {})
    settle(reloaded.ports(log, owner.epoch), account.now())
    assert required(app) == []
    reloaded.database.close()
    app.database.close()
