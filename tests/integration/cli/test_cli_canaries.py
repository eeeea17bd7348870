"""Canaries: a value of its own in every place that holds a secret, and none of them in anything that comes out.

What comes out: standard output and error of commands that work and that fail, with and without ``--debug``, log lines,
pages and the API, messages, files that are written, and every row of the database.
"""

import asyncio
import base64
import json
import re
from collections.abc import Callable, Iterator
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
import structlog

from config.load import load
from config.logging import configure
from jobs.payload import redact
from scheduler.app import App
from scheduler.notify.deliver import DeliveryFailed, deliver
from scheduler.store import events, jobs, lease, outbox, runs
from scheduler.store.engine import Database, open_database
from scheduler.store.schema import metadata
from scheduler.web.site import site
from tests.integration.cli.conftest import NOW, SETTINGS, spec
from tests.lab.typed import Typed

KEY = "uff-uff-main-0001"
_NUMBER = count(1_000)
NAMES = (
    "smtp", "slack-bot", "slack-hook", "apprise", "database", "database-query", "kaggle-file", "kaggle-home",
    "aws-file", "aws-home", "aws-env", "reader", "web", "pgpass", "pg-env", "hub-env", "endpoint",
)  # fmt: skip
CANARIES = {name: f"cnry{next(_NUMBER)}{name}+Zz9~0123456789abcdefghij" for name in NAMES}
REMOTE = f"postgresql+psycopg://me:{quote(CANARIES['database'], safe='')}@127.0.0.1:1/x?connect_timeout=2"
NOWHERE = f"http://me:{quote(CANARIES['endpoint'], safe='')}@127.0.0.1:1"
FORMS = {
    "url": REMOTE,
    "bare": f"postgresql+psycopg://me:{CANARIES['database']}@127.0.0.1:1/x?connect_timeout=2",
    "query": f"postgresql+psycopg://me@127.0.0.1:1/x?password={quote(CANARIES['database-query'], safe='')}",
    "dsn": f"host=127.0.0.1 port=1 user=me password={CANARIES['database']}",
    "unknown": f"oracle://me:{CANARIES['database']}@127.0.0.1:1/x",
}


def found_in(text: str) -> list[str]:
    """Return the canaries that stand in a text, as they are or encoded."""

    def forms(canary: str) -> Iterator[str]:
        yield canary
        yield canary[: len(canary) // 2 + 4]
        yield quote(canary, safe="")
        yield json.dumps(canary)[1:-1].replace("/", "\\/")
        yield canary.encode().hex()
        for before in range(3):
            yield base64.b64encode(b"\0" * before + canary.encode()).decode()[4:-4]

    return [name for name, canary in CANARIES.items() if any(form in text for form in forms(canary))]


@pytest.fixture(scope="module", autouse=True)
def forms_once() -> Iterator[None]:
    """Encode each canary once: a command computes the forms of all of them, which takes most of its time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(redact, "_forms", cache(lambda secret, forms=redact._forms: tuple(forms(secret))))
        yield


@pytest.fixture
def salted(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a scheduler that has a canary in every place that may hold a secret."""
    files = {
        "kaggle.json": json.dumps({"username": "me", "key": CANARIES["kaggle-file"]}),
        ".kaggle/kaggle.json": json.dumps({"username": "me", "key": CANARIES["kaggle-home"]}),
        "aws.ini": f"[default]\naws_access_key_id = AKIAX\naws_secret_access_key = {CANARIES['aws-file']}\n",
        ".aws/credentials": f"[default]\naws_secret_access_key = {CANARIES['aws-home']}\n",
        ".pgpass": f"127.0.0.1:1:x:me:{CANARIES['pgpass']}\n",
        "reader": CANARIES["reader"],
        "handed/web": CANARIES["web"],
    }
    for name, text in files.items():
        (home / name).parent.mkdir(exist_ok=True)
        (home / name).write_text(text)
        (home / name).chmod(0o600)
    (home / "config.toml").write_text(
        f"""{SETTINGS}
[[pools]]
name = "far"
platform = "kaggle"
enabled = true
accelerator = "P100"
vram_gib = 16
options = {{ credentials = "{home}/kaggle.json", emulator = "{NOWHERE}" }}

[report.smtp]
host = "127.0.0.1"
port = 1
user = "me"
password = "{CANARIES["smtp"]}"
sender = "me@example.org"
recipients = ["you@example.org"]
timeout = "1s"

[report.slack]
bot_token = "{CANARIES["slack-bot"]}"
webhook_token_url = "https://127.0.0.1:1/services/{CANARIES["slack-hook"]}"
channel = "c"
timeout = "1s"

[report.apprise]
token_urls = ["ntfy://{CANARIES["apprise"]}@127.0.0.1"]

[web]
bearer_file = "{home}/reader"
"""
    )
    environ = {
        "HOME": str(home),
        "AWS_SHARED_CREDENTIALS_FILE": str(home / "aws.ini"),
        "AWS_SECRET_ACCESS_KEY": CANARIES["aws-env"],
        "PGPASSWORD": CANARIES["pg-env"],
        "HF_TOKEN": CANARIES["hub-env"],
        "CREDENTIALS_DIRECTORY": str(home / "handed"),
    }
    for name, text in environ.items():
        monkeypatch.setenv(name, text)
    return home


def leaked(home: Path) -> list[str]:
    """Return the canaries in any row of the database, or in a file that is none of those that were salted."""
    database = open_database(f"sqlite:///{home}/state/scheduler.db")
    with database.read() as tx:
        rows = "".join(str(tuple(row)) for table in metadata.sorted_tables for row in tx.execute(table.select()))
    database.close()
    assert len(rows) > 100
    return found_in(rows)


def gossip() -> str:
    """What a session, a platform or a library says that repeats all it knows; the database here has no password."""
    return "; ".join(canary for name, canary in CANARIES.items() if not name.startswith("database"))


@pytest.fixture
def gossiping(world: Database, salted: Path) -> Path:
    """The same, where whatever came from outside, or was written by a version before this one, tells everything."""
    (salted / "state" / "sessions" / "kaggle" / KEY / "output.log").write_text(f"uff-main| {gossip()}\n")
    with world.write() as tx:
        said = {"phase": "training", "step": 121, "loss": 2.25, "message": gossip(), "why": gossip()}
        runs.note_heartbeat(tx, KEY, 0, said)
        jobs.add(tx, spec("gossip"), NOW)
        events.append(tx, "pool.closed", "far", NOW, why=gossip())
        events.append(tx, "launch.refused", KEY, NOW, why=gossip())
        body = {"subject": "x", "text": gossip(), "html": f"<p>{gossip()}</p>", "blocks": [{"text": gossip()}]}
        outbox.add(tx, "alerts", "1", "email", body, NOW)
    return salted


@pytest.mark.parametrize(
    "words",
    [
        "config show", "config check", "status", "status --all", "queue list", "queue show uff-main", "runs list",
        f"runs show {KEY}", f"runs logs {KEY}", f"runs logs {KEY} --raw", "report weekly", "doctor", "quota",
        "report weekly --format html", "report weekly --out week.html", "report weekly --send", "pools", "plan show",
        "plan explain ucm", "checkpoints list", "db verify", "db backup copy.db", "handover list", "prompt",
        "top --once", "no such command",
    ],
)  # fmt: skip
@pytest.mark.parametrize("flags", [(), ("--json", "--debug")], ids=["people", "json"])
def test_no_command_shows_a_canary(
    words: str, flags: tuple[str, ...], gossiping: Path, schedctl: Callable[..., Typed], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(gossiping)
    done = schedctl(*words.split(), *flags)
    assert done.code not in {1, 3}, done.err
    assert found_in(done.out + done.err) == []
    for name in ("week.html",):
        assert not (gossiping / name).exists() or found_in((gossiping / name).read_text()) == []


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("words", ["status", "queue list", "doctor", "daemon", "db init", "config show", "db verify"])
def test_a_database_that_cannot_be_reached_shows_no_password(
    form: str, words: str, salted: Path, schedctl: Callable[..., Typed], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCHEDCTL_DATABASE_URL", FORMS[form])
    told = ((), ("--json",), ("--debug",))
    for flags in told[2:] if words == "doctor" and form != "url" else told:  # it looks for seconds, and says all then
        done = schedctl(*words.split(), *flags)
        assert done.code != 0 or words == "config show"
        assert done.out + done.err
        assert found_in(done.out + done.err) == []


@pytest.mark.parametrize("form", FORMS)
def test_a_database_that_nothing_can_be_moved_to_shows_no_password(
    form: str, salted: Path, schedctl: Callable[..., Typed]
) -> None:
    moved = schedctl("db", "move", FORMS[form], "--debug")
    assert moved.code != 0
    assert found_in(moved.out + moved.err) == []


def test_no_page_shows_a_canary(gossiping: Path) -> None:
    app = App(load(gossiping / "config.toml"))
    guarded = site(app, None, structlog.get_logger())
    places = ["/", "/queue", "/jobs/uff-main", "/runs", f"/runs/{KEY}", "/quota", "/plan", "/ledger", "/reports"]
    places += ["/metrics", "/health/ready", "/api/v1/status", "/api/v1/queue", "/api/v1/runs", f"/api/v1/runs/{KEY}"]
    places += [f"/api/v1/runs/{KEY}/log", f"/jobs/{quote(CANARIES['smtp'], safe='')}", "/nothing"]

    async def ask() -> dict[str, str]:
        transport = httpx.ASGITransport(guarded, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8765") as client:
            return {place: (await client.get(place)).text for place in places}

    answers = asyncio.run(ask())
    app.reading.close()
    assert {place: found for place, text in answers.items() if (found := found_in(text))} == {}
    assert all(answers.values())
    assert "[secret]" in answers[f"/runs/{KEY}"]


class Parrot:
    """A channel that does not take a message and says all it knows."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def send(self, key: str, body: Any) -> str | None:
        """Keep what it was given, then fail."""
        self.messages.append(json.dumps([key, body]))
        raise DeliveryFailed(f"535 {gossip()}")


def test_no_message_row_or_line_of_the_log_holds_a_canary(gossiping: Path, capsys: pytest.CaptureFixture[str]) -> None:
    app = App(load(gossiping / "config.toml"))
    configure(app.settings.logging, app.redact)
    held = lease.acquire(app.database, "a test", 60)
    assert held is not None
    parrot = Parrot()
    with app.database.read() as tx:
        before = events.newest_id(tx)
    deliver(app.ports(structlog.get_logger(), held.epoch), {"email": parrot}, NOW + 1)
    with app.database.read() as tx:
        told = str(events.tail(tx, before))
        stuck = str(outbox.stuck(tx, 1))
    app.database.close()
    out, err = capsys.readouterr()
    assert len(parrot.messages) == 1
    assert "letter.failed" in err
    assert "letter.failed" in told
    assert found_in("".join(parrot.messages)) == []
    assert found_in(told + stuck) == []
    assert found_in(out + err) == []


def test_a_daemon_whose_platforms_and_mail_fail_writes_no_canary(
    database: Database, salted: Path, schedctl: Callable[..., Typed], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first cycle asks Kaggle, which does not answer; its messages find no mail server."""
    monkeypatch.setenv("SCHEDCTL_DAEMON__STOP_AT", "2026-01-01T00:00:00Z")
    config = salted / "config.toml"
    config.write_text(re.sub(r"\[clock\]\n(\w.*\n)+", "", config.read_text()))
    with database.write() as tx:
        outbox.add(tx, "alerts", "1", "email", {"subject": "x", "text": gossip()}, NOW - 60)
    done = schedctl("daemon")
    assert "daemon" in done.err
    assert found_in(done.out + done.err) == []
    with database.write() as tx:
        tx.execute(metadata.tables["outbox"].delete())
    assert leaked(salted) == []
