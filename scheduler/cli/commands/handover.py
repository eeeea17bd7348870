"""`schedctl handover`: claim, submit and release manual sessions, on platforms where only a person may start them."""

from collections.abc import Iterator, Mapping
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any

from jobs.problem import NotFound
from platforms.manual.adapter import ManualPlatform
from platforms.plugin import traits
from scheduler.cli.shell.command import Listing, Reason, argument, command, option
from scheduler.cli.shell.context import Cli
from scheduler.cli.shell.names import suggest
from scheduler.views.documents import picked

Key = Annotated[str, argument("RUN", "ID of the run, as handover list shows it.")]


@command("schedctl handover list", kind=Listing)
def list_(cli: Cli) -> None:
    """List offered, claimed and lately submitted sessions."""
    hand_overs = [
        (pool, key, *offered)
        for pool, platform in _desks(cli)
        for key in sorted(platform.keys())
        if (offered := platform.show(key, cli.now)) is not None
    ]
    documents: list[dict[str, Any]] = [
        {
            "key": key,
            "pool": pool,
            "jobs": list(offer.jobs),
            "state": observed.state.value,
            "offered": offer.offered_at,
            "lapses": offer.lapses_at,
            "deadline": offer.deadline,
            **picked(observed, "started", "ended", "detail"),
            "wanted_back": wanted_back,
        }
        for pool, key, offer, observed, wanted_back in hand_overs
    ]
    cli.out.data({"handovers": documents})
    cli.out.listing(
        documents,
        {
            "run": itemgetter("key"),
            "-pool": itemgetter("pool"),
            "-jobs": lambda one: " and ".join(one["jobs"]),
            "state": itemgetter("state"),
            "-until": lambda one: cli.out.moment(one["lapses" if one["state"] == "queued" else "deadline"]),
            "_next": _next_step,
        },
        none="Nothing was offered. What is planned: schedctl plan show",
    )


@command("schedctl handover claim uff-ufm-0007", "schedctl handover claim uff-ufm-0007 --out ~/studio-lab")
def claim(
    cli: Cli, key: Key, out: Annotated[Path, option("--out", "Folder of files to upload.", file_okay=False)] = Path()
) -> None:
    """Claim an offered session: write its notebook. Its quota counts from now on."""
    from scheduler.store import events
    from scheduler.views.needs import CLAIMED

    files = _desk_of(cli, key).take(key, cli.who, out, cli.now)
    with cli.app.database.write() as tx:
        events.append(tx, CLAIMED, key, cli.now, cli.who)
    cli.out.data({"key": key, "files": [str(path) for path in files]})
    for path in files:
        cli.out.line(str(path))
    cli.out.say(f"Upload and run {files[0].name}; then: schedctl handover submit {key} {key}-result.zip")
    cli.wake_daemon()


@command("schedctl handover submit uff-ufm-0007 uff-ufm-0007-result.zip")
def submit(
    cli: Cli, key: Key, file: Annotated[Path, argument("FILE", "What the notebook left.", exists=True, dir_okay=False)]
) -> None:
    """Submit a session's result."""
    end = _desk_of(cli, key).give(key, file, cli.app.artifacts, cli.now)
    cli.out.data({"key": key, "started": end.started, "ended": end.ended})
    cli.out.line(f"{key} was submitted: {(end.ended - end.started) / 3600:.1f} h count.")
    cli.wake_daemon()


@command("schedctl handover release uff-ufm-0007 --reason 'no GPU to be had'")
def release(cli: Cli, key: Key, why: Reason = "released by hand") -> None:
    """Release a session: withdraw an offer, or give up a claim."""
    _desk_of(cli, key).drop(key, f"{why} ({cli.who})", cli.now)
    cli.out.data({"key": key, "dropped": True})
    cli.out.line(f"{key} was released; its jobs go back to the queue.")
    cli.wake_daemon()


def _desks(cli: Cli) -> Iterator[tuple[str, ManualPlatform]]:
    """Yield the pools with manual sessions and their adapters. Raises PlatformError."""
    for name, pool in cli.app.pools.items():
        if traits(pool.platform).needs_person and isinstance(platform := cli.app.platform(name), ManualPlatform):
            yield name, platform


def _desk_of(cli: Cli, key: str) -> ManualPlatform:
    """Return the adapter that offered the run ``key``. Raises NotFound, PlatformError."""
    all_keys: set[str] = set()
    for _, platform in _desks(cli):
        keys = platform.keys()
        if key in keys:
            return platform
        all_keys |= keys
    raise NotFound("unknown session", f"{key} was not offered here", suggest(key, all_keys, "schedctl handover list"))


def _next_step(document: Mapping[str, Any]) -> str:
    """Return what the person does next with a session: a command or an instruction, else the detail of its state."""
    match document["state"]:
        case "queued":
            return f"schedctl handover claim {document['key']}"
        case "running" if document["wanted_back"]:
            return "interrupt its cell, then submit its result"
        case "running":
            return f"schedctl handover submit {document['key']} FILE"
        case _:
            return str(document["detail"])
