"""Commands that users of Slurm, Kubernetes, Docker, SkyPilot, Git and W&B try first, and ours in place of them."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from scheduler.cli.shell.exits import UsageFault

ALIASES: dict[str, str] = {
    "jobs": "queue",
    "logs": "runs logs",
    "cancel": "queue cancel",
    "gpus": "pools list --columns pool,accelerator,devices,memory,peak,sessions",
}
"""Aliases of commands."""

# Our command -> the guesses for it. Words in capitals are placeholders; "|" separates alternatives.
# A key that begins with "!" is no command: it holds the reason and the remedy, separated by "|".
_MEANT: dict[str, str] = {
    "jobs": "ls, ps, list, squeue, get jobs, get job, job, job list, job ls",
    "runs list": "get pods, get runs, sessions, run list, run ls, history, sacct, queue history",
    "pools": "sinfo, nodes, get nodes, clusters, get pools, platforms",
    "gpus": "nvidia-smi, gpu, show-gpus, accelerators, gpus list",
    "cost": "costs, usage, billing, sreport, cost-report, spend, money",
    "quota": "quotas, limits, budget, kaggle quota",
    "events": "get events, event, audit",
    "checkpoints list": "artifacts, artifact, checkpoint, ckpt, ckpts, artifact list",
    "queue show JOB": "job JOB, describe, describe job, describe jobs, get jobs JOB, get job JOB, show, show job, "
    "inspect, info, job show, job status, scontrol show job, eta, progress, queue describe, queue status, queue info, "
    "queue get, when",
    "plan explain JOB": "why, explain, queue why, queue explain",
    "plan show": "next, schedule, sprio",
    "plan diff": "diff",
    "logs JOB": "log, attach, tail, job logs, queue logs, queue log, runs log, run logs, daemon logs JOB",
    "top": "watch, htop, monitor",
    "submit SCRIPT": "launch, run, train, sbatch, srun, queue submit, queue run, queue launch, job submit",
    "queue add FILE": "add, apply, create, queue create, queue apply, queue new",
    "submit SCRIPT --target-step N --sweep KEY=VALUES": "sweep, agent",
    "queue hold JOB | cancel JOB | pause": "stop, kill, down, terminate, queue stop",
    "cancel JOB": "scancel, abort, queue kill, queue abort, job cancel, runs cancel, runs kill",
    "queue remove JOB": "rm, delete, delete job, remove, queue rm, queue delete, queue del",
    "queue hold JOB": "hold, suspend, queue pause, queue suspend",
    "queue release JOB": "release, unhold, queue start, queue resume, queue unpause, queue unhold",
    "queue release JOB | submit SCRIPT": "start",
    "queue clone JOB": "clone, copy, duplicate",
    "queue retry JOB": "retry, requeue, queue requeue",
    "queue edit JOB": "edit, edit job, update, queue set",
    "queue priority JOB PRIORITY": "priority, nice, renice, queue nice",
    "queue move JOB POSITION": "move, queue reorder, queue top",
    "web serve": "dashboard, ui, web ui, web start, web open, open, serve, server",
    "backup DIR": "db dump, snapshot, backup create",
    "checkpoints pull JOB DIR": "pull, download, cp, export, artifact get, artifact download",
    "models promote MODEL@N": "promote",
    "models deploy MODEL@N": "deploy, release model",
    "models rollback MODEL": "rollback, revert, undeploy",
    "models evaluate MODEL@N": "eval, evaluate, score, benchmark",
    "models compare MODEL@N MODEL@N": "compare",
    "report weekly": "reports, email, mail, report show, report list, report send, summary",
    "config show report": "report recipients, report config",
    "doctor": "check, health, diagnose, ping, test, notify, notify test, slack, slack test, email test",
    "init": "setup, configure",
    "db upgrade": "migrate, db migrate, upgrade",
    "config show": "settings, env, config list, config get, config view",
    "!settings are a file | Edit {config}, then: schedctl config check": "config edit, config set, pools add, "
    "pools create, pools edit, pool add",
    "!systemd does it | Use: systemctl restart uff-scheduler": "service restart, service start, service reload, "
    "daemon restart, restart",
    "!systemd does it | Use: journalctl -e -u uff-scheduler": "service logs, service log, service journal, daemon logs",
    "!platforms have credentials instead of a login | See: docs/kaggle.md, docs/sagemaker.md. To check them: "
    "schedctl doctor": "login, auth, auth login, whoami",
    "!sessions of platforms have no shell | Use: schedctl logs JOB -f": "ssh, shell, exec, connect",
    "!pools are on platforms | Use: schedctl pools, schedctl doctor. See: docs/how-to.md": "kaggle, sagemaker, slurm",
    "!curves are exported | See: docs/how-to.md, Use Weights & Biases (W&B)": "wandb, tensorboard, mlflow",
    "!it is a document | See: docs/tutorial.md, docs/how-to.md": "tutorial, quickstart, docs, examples",
    "!the manual page was removed | See: schedctl --help, schedctl COMMAND --help, docs/reference/commands.md": "man",
    "!it is removed the way it was installed | See: docs/how-to.md, Uninstall": "uninstall",
    "!the status page has them | See: docs/how-to.md, Show metrics in Grafana": "metrics, prometheus, grafana",
    "!a person does it, with the daemon stopped | See: docs/service.md, Back up and restore": "restore, backup restore",
}
_NOT_OFFERED = (
    "queue remove",
    "queue hold",
    "cancel",
    "pause",
)  # they stop work, so they are only suggested, never run


def in_our_words(words: Sequence[str]) -> list[str]:
    """Return the arguments with options of other programs (``-o json``, ``-V``) and ``help`` translated to ours."""
    written = list(words)
    end = written.index("--") if "--" in written else len(written)
    ours, after = written[:end], written[end:]
    for at, word in reversed(list(enumerate(ours))):
        if word in {"-ojson", "-o=json", "--output=json"}:
            ours[at] = "--json"
        elif word in {"-o", "--output"} and ours[at + 1 : at + 2] == ["json"]:
            ours[at : at + 2] = ["--json"]
    if ours[:1] == ["-V"]:
        ours[0] = "--version"
    elif ours[:1] == ["help"] or ours[1:] == ["help"]:
        ours = [*(word for word in ours if word != "help"), "--help"]
    return ours + after


def meant(args: Sequence[str], config: str) -> list[str] | None:
    """Return our command line for a known guess, if the user confirms it at the terminal; None for no known guess.

    ``config`` is the path of the settings file. Raises UsageFault with the command to type if it is not confirmed, has
    alternatives or placeholders left, or stops work.
    """
    guess = _longest(args)
    if guess is None:
        return None
    commands, length = guess
    wrong, rest = f'There is no command "{" ".join(args[:length])}"', list(args[length:])
    if commands.startswith("!"):
        why, remedy = commands[1:].split(" | ")
        raise UsageFault(wrong, why, remedy.format(config=config))
    from shlex import join

    choices = commands.split(" | ")
    # Among several alternatives, one without JOB applies to everything: it takes no name.
    typed = [_filled(one, rest if "JOB" in one or not choices[1:] else ()) for one in choices]
    suggestions = [f"schedctl {join(command)}" for command in typed]
    is_whole = not choices[1:] and not any(word.isupper() for word in typed[0])
    if is_whole and not commands.startswith(_NOT_OFFERED) and _agreed(suggestions[0]):
        return typed[0]
    raise UsageFault(wrong, "schedctl has another word for it", f"Use: {', or: '.join(suggestions)}")


def _longest(args: Sequence[str]) -> tuple[str, int] | None:
    """Return the entry of ``_MEANT`` for the longest guess that ``args`` begin with, and its length in words."""
    meanings = {guess: command for command, guesses in _MEANT.items() for guess in guesses.split(", ")}
    for length in (3, 2, 1):
        words = list(args[:length])
        for guess in (" ".join(words), " ".join([*words[:-1], "JOB"])):
            if len(words) == length and guess in meanings:
                return meanings[guess], length - guess.endswith(" JOB")
    return None


def _filled(command: str, rest: Sequence[str]) -> list[str]:
    """Return the words of a command with its placeholders replaced by ``rest``, as far as there are values."""
    words, arguments = command.split(), list(rest)
    for at, word in enumerate(words):
        if word.isupper() and arguments and not arguments[0].startswith("-"):
            words[at] = arguments.pop(0)
    return [*words, *arguments]


def _agreed(command: str) -> bool:
    """Ask whether to run the command; False if this is not a terminal."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    sys.stderr.write(f"Did you mean: {command}? Run it? [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in {"y", "yes"}
