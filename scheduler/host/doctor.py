"""The doctor: independent checks of everything that the scheduler needs, each with a remedy for a bad result."""

import os
import re
import shutil
import smtplib
import socket
import stat
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from importlib.metadata import version as version_of
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Literal

from config.credentials import VARIABLE
from config.errors import ConfigError
from jobs.nouns.pool import Pool
from jobs.nouns.quota import MoneyQuota
from jobs.payload.redact import Redactor
from jobs.problem import Problem
from jobs.size import counted
from platforms import plugin
from platforms.artifacts.base import BlobStore
from platforms.base import Checked, Misconfigured, Platform, PlatformError
from platforms.local.spawn import REMEDY, obstacle
from platforms.registry import shipped
from scheduler.app import App
from scheduler.clock import stopwatch
from scheduler.host.installation import MAIN, ServiceRefused, unit_statuses
from scheduler.notify.deliver import Channel, DeliveryFailed, EmailChannel, SlackChannel
from scheduler.service.facts.snapshot import gives_secrets
from scheduler.service.outside.ports import ServedAt
from scheduler.store import jobs, lease, runs
from scheduler.store.engine import Database

OUR_PACKAGES = frozenset({"config", "jobs", "platforms", "scheduler"})
OUR_DISTRIBUTION = "uff-scheduler"
DEADLINE_SECONDS = 60.0
_PROBE = "doctor/probe"
_FREE_BYTES_WARNING = 1 << 30
_FREE_BYTES_MIN = 1 << 26
_CLOCK_SLACK_SECONDS = 120
_PRICE_DAYS_MAX = 180
_UNKNOWN_MODEL = "doctor-probe"  # a model name that no target has
_REMEDY = "Look at the settings: schedctl config show report"
_UNITS = (Path("/etc/systemd/system"), Path("~/.config/systemd/user"))
_HANDED_OVER = re.compile(r"^LoadCredential(?:Encrypted)?=([A-Z][A-Z0-9_]*):", re.MULTILINE)


def examine(
    checks: Mapping[str, Callable[[], Checked]], deadline_seconds: float = DEADLINE_SECONDS
) -> dict[str, Checked]:
    """Run all checks in parallel and return their findings in the order of ``checks``.

    A check that raises an error is a bad finding. So is a check without a result after ``deadline_seconds`` (real
    time), whose thread is abandoned.
    """
    answers: dict[str, SimpleQueue[Checked]] = {name: SimpleQueue() for name in checks}

    def work(name: str, check: Callable[[], Checked]) -> None:
        try:
            finding = check()
        except Exception as error:  # noqa: BLE001 - a check that fails is a finding
            finding = finding_of(error, "See docs/cli.md, doctor")
        answers[name].put(finding)

    for name, check in checks.items():
        threading.Thread(target=work, args=(name, check), name=f"doctor {name}", daemon=True).start()
    end = stopwatch() + deadline_seconds
    result = {}
    for name, answer in answers.items():
        try:
            result[name] = answer.get(timeout=max(0.0, end - stopwatch()))
        except Empty:
            why = f"no answer within {deadline_seconds:.0f} s"
            result[name] = Checked("bad", why, "See whether its server is reachable, and try again")
    return result


def check_database(database: Database) -> Checked:
    """Check that the database can be read and written."""
    with database.read() as tx:
        live = runs.live(tx)
    with database.write():
        pass  # opening the transaction proves that the lock is free and the disk is writable
    return Checked("ok", f"{database.where}, runs that are live: {len(live)}")


def check_daemon(database: Database) -> Checked:
    """Check whether a daemon holds the lease."""
    with database.read() as tx:
        held = lease.current(tx)
    if held is None:
        return Checked("warning", "no daemon holds the lease: nothing is planned or launched", "Start: schedctl daemon")
    return Checked("ok", f"{held.holder} holds the lease, epoch {held.epoch}")


def check_disk(folder: Path) -> Checked:
    """Check that a folder is writable, and its free space."""
    existing = next(place for place in (folder, *folder.parents) if place.exists())
    if not os.access(existing, os.W_OK):
        return Checked("bad", f"{existing} cannot be written", f"Give its user the right: chown to uid {os.getuid()}")
    free = shutil.disk_usage(existing).free
    room = f"{free / (1 << 30):.1f} GiB free at {existing}"
    if free >= _FREE_BYTES_WARNING:
        return Checked("ok", room)
    grade: Literal["warning", "bad"] = "warning" if free >= _FREE_BYTES_MIN else "bad"
    return Checked(grade, room, "Make room, or move state_dir to a larger disk")


def check_store(artifacts: BlobStore) -> Checked:
    """Check the artifact store by writing, reading and removing a small object."""
    word = os.urandom(8)
    artifacts.put(_PROBE, word)
    intact = artifacts.read(_PROBE) == word
    artifacts.delete(_PROBE)
    if not intact:
        return Checked("bad", "the artifact store returned other bytes than were written", "Use another disk")
    return Checked("ok", "written, read back, removed")


def check_clock(artifacts_now: float, real_now: float) -> Checked:
    """Compare this machine's clock with the time stamps of the store, both in real UTC seconds."""
    off = round(artifacts_now - real_now)
    if abs(off) > _CLOCK_SLACK_SECONDS:
        why = f"the disk's clock is {abs(off)} s {'ahead of' if off > 0 else 'behind'} this machine's"
        return Checked("bad", why, "Synchronise both with NTP: quota windows begin and end by the clock")
    return Checked("ok", f"agrees with the disk's to {abs(off)} s")


def check_platform(load: Callable[[], Platform], now: int) -> Checked:
    """Check a platform by loading its adapter and sending an empty query."""
    try:
        load().find([], now)
    except PlatformError as error:
        return Checked("bad", error.why, error.remedy or "Look at its options: schedctl config show pools")
    return Checked("ok", "answers")


def check_names() -> Checked:
    """Check that no other distribution has packages with our names."""
    owners = packages_distributions()
    foreign = {
        name: sorted(set(owners.get(name, [])) - {OUR_DISTRIBUTION})
        for name in sorted(OUR_PACKAGES)
        if set(owners.get(name, [])) - {OUR_DISTRIBUTION}
    }
    if foreign:
        words = "; ".join(f"{name} also comes from {', '.join(others)}" for name, others in foreign.items())
        return Checked("bad", words, "Install the scheduler into a virtual environment of its own")
    return Checked("ok", f"{', '.join(sorted(OUR_PACKAGES))} are ours alone")


def finding_of(error: Exception, remedy: str) -> Checked:
    """Return a bad finding for an error; ``remedy`` is used for errors without one."""
    if problems := getattr(error, "problems", ()):
        listing = "; ".join(str(replace(problem, remedy="")) for problem in problems)
        remedies = dict.fromkeys(problem.remedy for problem in problems if problem.remedy)
        return Checked("bad", listing, "; ".join(remedies) or remedy)
    why = str(getattr(error, "why", "")) or " ".join(str(error).split()) or type(error).__name__
    return Checked("bad", why, str(getattr(error, "remedy", "")) or remedy)


def check_price(pool: Pool, now: float) -> Checked:
    """Check the age of a pool's price, and that a pool with a price has a budget; ``now`` is real UTC seconds."""
    price = f"${pool.price_microdollars_per_hour / 1_000_000:.4f} an hour"
    bounded = any(isinstance(quota, MoneyQuota) for quota in pool.quotas)
    remedy = "Look it up in the platform's price list and write price_per_hour and as_of"
    if not pool.price_microdollars_per_hour:
        return Checked("ok", "hours cost nothing here")
    if not pool.as_of:
        return Checked("warning", f"{price}, of no date", remedy)
    days = (datetime.fromtimestamp(now, UTC).date() - date.fromisoformat(pool.as_of)).days
    price_text = f"{price}, as of {pool.as_of}{'' if bounded else '; no budget in money bounds it'}"
    if days > _PRICE_DAYS_MAX:
        return Checked("warning", f"{price_text}, which is {counted(days, 'day')} ago", remedy)
    if not bounded:
        return Checked("warning", price_text, "Add a quota of kind money-day, money-week or money-month")
    return Checked("ok", price_text)


def check_target(at: ServedAt, models: list[str]) -> Checked:
    """Check a target by reading the served version of each model, or of an unknown model. Raises TargetError."""
    target = at.open()
    servings = {model: target.read(model) for model in (filter(at.rule.serves, models) if models else [_UNKNOWN_MODEL])}
    served = {model: serving for model, serving in servings.items() if serving.version is not None}
    if unproven := sorted(model for model, serving in served.items() if not serving.proven):
        remedy = f"Let it be brought there again: schedctl models sync {at.rule.name}"
        return Checked("warning", f"{', '.join(unproven)}: no answer yet since the newest change", remedy)
    return Checked("ok", f"answers; {counted(len(served), 'model')} served there")


# Checks of message channels: connection and login only; nothing is sent.
def channel_check(channel: Channel) -> Callable[[], Checked]:
    """Return the check of a configured channel."""
    match channel:
        case EmailChannel():
            return lambda: check_mail(channel)
        case SlackChannel():
            return lambda: check_slack(channel)
        case _:
            return lambda: Checked("ok", "set; only a message can test it: schedctl report weekly --send")


def no_channel() -> Checked:
    """Return the finding if no channel is configured: this is not an error, but no message is sent."""
    return Checked("ok", "no mail server or Slack is set: reports and alerts are shown here, but not sent")


def check_mail(channel: EmailChannel) -> Checked:
    """Check the mail server by connecting, encrypting and logging in, without sending a message."""
    where = f"{channel.host}:{channel.port}"
    try:
        with channel.opened() as server:
            server.noop()
    except smtplib.SMTPAuthenticationError as error:
        return Checked("bad", f"{where} does not take our login (code {error.smtp_code})", "Correct user and password")
    except (OSError, ValueError, smtplib.SMTPException) as error:
        why = Redactor([channel.password])(f"{type(error).__name__}: {error}")
        return Checked("bad", f"{where}: {why}", _REMEDY)
    login = f", takes the login of {channel.user}" if channel.user else ""
    if not channel.starttls and channel.user:
        return Checked("warning", f"{where} answers, but the password goes there in the clear", "Set starttls = true")
    return Checked("ok", f"{where} answers{login}; {counted(len(channel.recipients), 'recipient')}")


def check_slack(channel: SlackChannel) -> Checked:
    """Check the token with Slack. For a webhook, only the form is checked, since a test would send a message."""
    if channel.webhook:
        if not channel.webhook.startswith("https://"):
            return Checked("bad", "the webhook's address does not begin with https://", _REMEDY)
        return Checked("ok", "a webhook is set; only a message can test it: schedctl report weekly --send")
    try:
        answer, headers = channel.call("auth.test")
    except DeliveryFailed as error:
        if error.code:
            return Checked("bad", f"Slack does not take our token: {error.code}", "Set report.slack.bot_token again")
        return Checked("bad", f"Slack: {error}", "Look at the network of this machine")
    details = f"token of {answer.get('team', '')}, writes to {channel.channel}"
    granted = headers.get("x-oauth-scopes")
    if granted is not None:
        scopes = {scope.strip() for scope in str(granted).split(",")}
        if "chat:write" not in scopes:
            return Checked("bad", f"{details}, but its scopes do not allow that", "Give the bot the scope chat:write")
        if "files:write" not in scopes:
            return Checked("warning", f"{details}, without pictures", "Give the bot the scope files:write")
    return Checked("ok", details)


# Checks that the secrets of open jobs exist, as far as this user can see.
def secret_problem(app: App, name: str) -> Problem | None:
    """Return why a secret cannot be read; None if this process or the installed service can read it."""
    try:
        app.read_secret(name)
    except ConfigError as error:
        return None if name in _handed_over() else error.problems[0]
    return None


def check_secrets(app: App) -> Checked:
    """Check that the secrets of open jobs exist, except secrets that sessions read from their platform."""
    with app.database.read() as tx:
        specs = [record.spec for record in jobs.everything(tx, {"queued", "active", "held"})]
    wanted: dict[str, list[str]] = {}
    for spec in specs:
        pools = [pool for name, pool in app.pools.items() if not spec.pools or name in spec.pools]
        for name in spec.secrets if any(map(gives_secrets, pools)) else ():
            wanted.setdefault(name, []).append(spec.name)
    missing = {name: wrong for name in sorted(wanted) if (wrong := secret_problem(app, name))}
    if missing:
        listing = "; ".join(f"{name} of {', '.join(wanted[name])}: {wrong.why}" for name, wrong in missing.items())
        return Checked("bad", listing, next(iter(missing.values())).remedy)
    from_platform = sorted({name for spec in specs for name in spec.secrets} - set(wanted))
    note = f"; sessions read {', '.join(from_platform)} from their platform" if from_platform else ""
    return Checked("ok", f"{counted(len(wanted), 'secret')} of open jobs, all can be read{note}")


def _handed_over() -> set[str]:
    """Return the secrets that systemd passes to the installed service; empty inside the service itself."""
    result: set[str] = set()
    for units in _UNITS if not os.environ.get(VARIABLE) else ():
        try:
            text = (units.expanduser() / f"{MAIN}.d" / "credentials.conf").read_text(encoding="utf-8")
        except (OSError, RuntimeError, UnicodeDecodeError):  # not installed, no home, or not readable
            continue
        result.update(_HANDED_OVER.findall(text))
    return result


# Checks of this machine: versions of libraries, the service, sandbox and privacy.
_REQUIREMENT = re.compile(
    r"(?P<name>[A-Za-z0-9._-]+)(\[[^]]*\])?(?P<bounds>[^;]*)(;.*extra\s*==\s*['\"](?P<extra>\w+)['\"])?"
)
_BOUND = re.compile(r"(>=|<)\s*([\d.]+)")
_BOOTED = Path("/run/systemd/system")


def check_versions(extras: Collection[str]) -> Checked:
    """Compare the installed libraries of the core and of ``extras`` with the tested versions."""
    versions, wrong, missing = [], [], set()
    for line in requires(OUR_DISTRIBUTION) or ():
        match = _REQUIREMENT.match(line)
        if match is None or (match["extra"] and match["extra"] not in extras):
            continue
        try:
            installed = version_of(match["name"])
        except PackageNotFoundError:
            wrong.append(f"{match['name']} is missing")
            missing.add(match["extra"] or "")
            continue
        bounds = match["bounds"].strip()
        if not _within(installed, bounds):
            wrong.append(f"{match['name']} {installed} is not {bounds}")
        elif match["extra"]:
            versions.append(f"{match['name']} {installed}")
    if wrong:
        names = ",".join(sorted(filter(None, missing)) or sorted(extras))
        wanted = f"{OUR_DISTRIBUTION}[{names}]" if names else OUR_DISTRIBUTION
        return Checked("bad", "; ".join(wrong), f"Install what this release was tested with: {wanted}")
    return Checked("ok", ", ".join(sorted(versions)) or "those of the core")


def check_plugin(platform: str) -> Checked:
    """Check a platform of another package by loading it. Our own platform of the same name has priority."""
    words = " and ".join(map(plugin.source, plugin.offered()[platform]))
    if platform in shipped():
        return Checked("warning", f"{words}: not used, {platform} is a platform of ours", "Uninstall it")
    try:
        distribution = plugin.find(platform)
    except Misconfigured as error:
        return Checked("bad", error.why, error.remedy)
    return Checked("ok", f"{words}, contract {distribution.contract if distribution else 0}")


def check_service() -> Checked:
    """Check the daemon's unit if there is systemd."""
    if not _BOOTED.is_dir():
        return Checked("ok", "this machine has no systemd; the daemon runs in the foreground")
    try:
        unit = unit_statuses(("systemctl",))[0]
    except ServiceRefused as error:
        return Checked("warning", error.why, error.remedy)
    if not unit.installed:
        return Checked("ok", "not installed as a service: schedctl service install")
    state = f"{MAIN} is {unit.state}" + (f", restarted {counted(unit.restarts, 'time')}" if unit.restarts else "")
    if unit.well:
        return Checked("ok" if unit.enabled else "warning", state, "" if unit.enabled else f"systemctl enable {MAIN}")
    return Checked("bad" if unit.enabled else "warning", state, f"Look at: journalctl -e -u {MAIN}")


def check_sandbox() -> Checked:
    """Try the sandbox for generated code. Its absence is not an error: only scorers that run such code need it."""
    from jobs.payload.scorers.sandbox.confine import SandboxMissing
    from jobs.payload.scorers.sandbox.sandbox import check_sandbox as tried

    try:
        return Checked("ok", tried())
    except SandboxMissing as missing:
        return Checked("ok", f"none ({missing.why}): scorers that run code refuse here; to have one, {missing.remedy}")


def check_privacy(state_dir: Path, database: Path | None, exposed: Sequence[Problem] = ()) -> Checked:
    """Check that other users cannot read the database, the lock, files of sessions, and secrets in the settings.

    ``exposed`` are the settings whose secrets others can read.
    """
    if exposed:
        return Checked("warning", f"{exposed[0].file}: {exposed[0].key}: {exposed[0].why}", exposed[0].remedy)
    names = [f"{database}{ending}" for ending in ("", "-wal", "-shm")] if database else []
    places = [state_dir, *map(Path, names), *(state_dir / name for name in ("daemon.lock", "wake", "sessions"))]
    closed = _others_access(state_dir) == 0
    open_to_all = [
        str(path) for path in places if _others_access(path) and not (closed and path.is_relative_to(state_dir))
    ]
    if open_to_all:
        remedy = f"Close them: chmod go= {' '.join(open_to_all)}"
        return Checked("warning", f"others on this machine may read {', '.join(open_to_all)}", remedy)
    return Checked("ok", f"only this user reads {state_dir}")


def _others_access(place: Path) -> int:
    """Return the permissions of other users on a file; 0 if it does not exist."""
    try:
        return place.stat().st_mode & (stat.S_IRWXO | stat.S_IRWXG)
    except OSError:
        return 0


def check_isolation() -> Checked:
    """Check whether local sessions can be isolated from the files of the daemon."""
    if why := obstacle():
        warning = f"local sessions can read credentials and write the database and other jobs' objects: {why}"
        return Checked("warning", warning, REMEDY)
    return Checked("ok", "local sessions see no credentials, no database, no settings and no objects of other jobs")


def check_runner(address: str) -> Checked:
    """Check the socket at which the service manager starts local sessions; a connection alone starts none."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
            caller.settimeout(5)
            caller.connect(address)
    except OSError as error:
        why = f"no runner answers at {address}: {error.strerror or error}"
        return Checked("bad", why, "systemctl start uff-local.socket")
    return Checked("ok", f"answers at {address}")


def _within(installed: str, bounds: str) -> bool:
    """Return whether a version is within bounds such as ``>=1.2,<2``; pre-release suffixes are ignored."""
    version = _numbers(installed)
    return all((version >= _numbers(limit)) == (sign == ">=") for sign, limit in _BOUND.findall(bounds))


def _numbers(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version, so that 1.10 is above 1.9; 2.0 equals 2."""
    numbers = [int(part) for part in re.findall(r"\d+", re.split(r"[^\d.]", version)[0])]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)
