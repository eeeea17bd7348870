"""`schedctl db` creates, upgrades, copies and checks the database; `schedctl backup` saves it with the settings."""

import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from config.layers import SYSTEM_FILE, own_file
from jobs.problem import Refusal
from jobs.size import counted, size
from scheduler.cli.shell.command import argument, command, option
from scheduler.cli.shell.context import Cli
from scheduler.cli.shell.exits import Violations
from scheduler.service.requests.backup import back_up
from scheduler.store import backup as backups
from scheduler.store import due
from scheduler.store.backup import move as copy_all
from scheduler.store.engine import upgrade as to_newest
from scheduler.store.verify import verify as problems_of


@command("schedctl db init")
def init(cli: Cli) -> None:
    """Make the database. One that is there is left as it is."""
    upgrade(cli)


@command("schedctl db upgrade")
def upgrade(cli: Cli) -> None:
    """Bring the database to this version's schema; back up first."""
    before, after = to_newest(cli.paths.database_url)
    cli.out.data({"from": before, "to": after})
    if before == after:
        cli.out.line(f"The database is at {after} already.")
    else:
        cli.out.line(f"The database is at {after} now" + (f", it was at {before}." if before else ", and new."))


@command("schedctl db backup /backups/scheduler-$(date +%F).db")
def backup(
    cli: Cli,
    file: Annotated[Path, argument("FILE", "Where to write the copy.")],
    force: Annotated[bool, option("--force", "Replace a file that is there.")] = False,
) -> None:
    """Write a consistent, checked copy of the database while the daemon works. `schedctl backup` copies more."""
    if os.path.lexists(file) and not force:
        raise Refusal("no backup made", f"{file} is there already", "Name another file, or replace it with --force")
    backups.backup(cli.app.database, file)
    bytes_written = file.stat().st_size
    cli.out.data({"file": str(file.absolute()), "bytes": bytes_written})
    cli.out.line(f"Wrote {file} ({size(bytes_written)}).")


@command("schedctl db restore /backups/scheduler-2026-11-21.db")
def restore(cli: Cli, file: Annotated[Path, argument("FILE", "A backup of SQLite.")]) -> None:
    """Put a whole backup in place of the database. Stop the daemon first."""
    url = cli.paths.database_url
    if not url.startswith("sqlite:///"):
        raise Refusal("not restored", "the database is not SQLite", "Use pg_restore (docs/service.md)")
    backups.restore(file, Path(url.removeprefix("sqlite:///")))
    cli.out.data({"restored": str(file.absolute())})
    cli.out.line(f"Restored {file}. Check it with: schedctl db verify")


@command("schedctl db move postgresql+psycopg://scheduler@db.example.org/scheduler")
def move(cli: Cli, url: Annotated[str, argument("URL", "A new or empty database.")]) -> None:
    """Copy everything into another database, checked. Stop the daemon first; then set database_url."""
    copied = copy_all(cli.app.database, url)
    cli.out.data({"rows": copied})
    cli.out.line(f"Copied {counted(sum(copied.values()), 'row')}. The old database stays; now set database_url.")


@command("schedctl db restored")
def restored(cli: Cli) -> None:
    """Report that another program, such as pg_restore, restored a backup. Not needed after db restore.

    Before it launches anything, the daemon then looks for sessions and checkpoints that are newer than the backup.
    """
    with cli.app.database.write() as tx:
        due.set_due(tx, due.RESTORED, 0)
    cli.out.data({"restored": True})
    cli.out.line("When the daemon starts, it looks for work that is newer than the backup. If it runs, restart it.")


@command("schedctl db verify")
def verify(cli: Cli) -> None:
    """Check the database, its events and ledger. Exits with 9 when something is off."""
    problems = problems_of(cli.app.database)
    cli.out.data({"problems": problems})
    for problem in problems:
        cli.out.line(problem)
    if problems:
        raise Violations(
            f"{counted(len(problems), 'problem')} in the database",
            "rows, events and ledger do not agree",
            "Keep a copy (schedctl db backup FILE), then restore the newest good backup: schedctl db restore FILE",
        )
    cli.out.say("The database is in order.")


@command("schedctl backup /backups/$(date +%F)", "schedctl backup /backups/whole-$(date +%F) --artifacts")
def backup_all(
    cli: Cli,
    folder: Annotated[Path, argument("DIR", "A new or empty folder.")],
    artifacts: Annotated[bool, option("--artifacts", "Also the store: checkpoints, code, inputs, corpora.")] = False,
) -> None:
    """Write database and settings into a folder while the daemon goes on, and prove that they can be restored.

    The copy is restored into a temporary folder and checked there, with --artifacts every byte of each checkpoint too.
    Credentials are not inside: secret values of settings read [secret].
    """
    if os.path.lexists(folder) and not (folder.is_dir() and not any(folder.iterdir())):
        raise Refusal("no backup made", f"{folder} is there already and not an empty folder", "Name another folder")
    app = cli.app
    own = own_file(cli.options.config, os.environ)
    files = [file for file in (own if own.exists() else SYSTEM_FILE, *app.settings.models) if file.exists()]
    store = app.artifacts if artifacts else None
    copy = back_up(app.database, dict.fromkeys(files), store, folder, app.redact, cli.now)
    cli.out.data({"folder": str(folder.absolute()), **asdict(copy)})
    cli.out.line(f"Wrote {folder}: {copy.database}, {counted(len(copy.settings), 'file')} of settings.")
    if copy.artifacts is not None:
        checked = counted(copy.checkpoints_verified, "checkpoint")
        cli.out.line(f"Copied {counted(copy.artifacts, 'object')} of the artifact store; {checked} read whole.")
    cli.out.line("A restore into a temporary folder was in order.")
    left_out = list(copy.not_inside) + ([] if copy.artifacts is not None else ["artifacts (--artifacts)"])
    cli.out.say(f"Not inside: {', '.join(left_out)}. To restore: docs/service.md, Back up and restore.")
