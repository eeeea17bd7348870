"""First guesses: what users of Slurm, Kubernetes, Docker, SkyPilot, W&B and Git type does, or says, the right thing.

Each row is what was typed and what must stand in the answer. ``does`` rows are answered by the command itself, with
exit code 0. The others print the command to type.
"""

import io
from collections.abc import Callable
from typing import Any

import pytest

from scheduler.cli import main as entry
from scheduler.cli.guesses import ALIASES, guesses_by_command
from scheduler.cli.root import COMMANDS
from scheduler.cli.shell.exits import Exit
from scheduler.store import jobs
from scheduler.store.engine import Database
from tests.lab.reference import commands

Schedctl = Callable[..., Any]

DOES = [
    ("jobs", "uff-main"),
    ("jobs list", "uff-main"),
    ("jobs show ufm", "uff-uff-main-0001"),
    ("queue", "uff-main"),
    ("queue ls", "uff-main"),
    ("queue --state held", "urm"),
    ("jobs --json", '"name": "uff-main"'),
    ("jobs -o json", '"name": "uff-main"'),
    ("-o json jobs", '"name": "uff-main"'),
    ("jobs -o yaml", '"name": "uff-main"'),
    ("jobs -o wide", "uff-main"),
    ("-v", "Python"),
    ("status -o json", '"verdict"'),
    ("status --output=json", '"verdict"'),
    ("status ufm", "uff-uff-main-0001"),
    ("logs ufm", "step 7"),
    ("logs uff-main", "step 2"),
    ("logs uff-uff-main-0001 --tail 1", "saved"),
    ("runs logs uff-main -n 1", "step 2"),
    ("runs", "uff-uff-main-0001"),
    ("runs ls", "uff-uff-main-0001"),
    ("runs list -n 1", "uff-uff-main-0001"),
    ("runs show ufm", "uff-uff-main-0001"),
    ("cancel urm", "urm is cancelled"),
    ("cancel urm --reason 'wrong data'", "urm is cancelled"),
    ("queue hold ucm --reason later", "ucm is held"),
    ("cost", "ufm"),
    ("cost --weeks 4", "ulm"),
    ("gpus", "T4 x2"),
    ("events", "job.hold"),
    ("events urm -n 1", "job.hold"),
    ("pools", "kaggle"),
    ("checkpoints", "ulm"),
    ("models", ""),
    ("plan", "desk"),
    ("quota kaggle", "GPU hours of the week"),
    ("report", "Training report"),
    ("config", "state_dir"),
    ("-V", "Python"),
    ("help", "Usage: schedctl"),
    ("help queue", "Usage: schedctl queue"),
    ("queue help", "Usage: schedctl queue"),
]
SAYS = [
    ("ls", "schedctl jobs"),
    ("ps", "schedctl jobs"),
    ("list", "schedctl jobs"),
    ("get jobs", "schedctl jobs"),
    ("get job ufm", "schedctl queue show ufm"),
    ("squeue", "schedctl jobs"),
    ("sinfo", "schedctl pools"),
    ("sacct", "schedctl runs list"),
    ("history", "schedctl runs list"),
    ("describe job ufm", "schedctl queue show ufm"),
    ("describe ufm", "schedctl queue show ufm"),
    ("show ufm", "schedctl queue show ufm"),
    ("inspect ufm", "schedctl queue show ufm"),
    ("explain ufm", "schedctl plan explain ufm"),
    ("tail ufm", "schedctl logs ufm"),
    ("log ufm -f", "schedctl logs ufm -f"),
    ("launch train.py", "schedctl submit train.py"),
    ("run train.py", "schedctl submit train.py"),
    ("sbatch train.sh", "schedctl submit train.sh"),
    ("apply job.toml", "schedctl queue add job.toml"),
    ("apply -f job.toml", "schedctl queue add job.toml"),
    ("bill", "schedctl cost"),
    ("undo", "schedctl queue release JOB"),
    ("scale ufm --replicas 2", "schedctl queue edit ufm --set needs.devices=2"),
    ("deadline ufm", "schedctl queue edit ufm --set deadline="),
    ("set ufm priority=5", "schedctl queue edit ufm --set priority=5"),
    ("extend ufm 3h", "schedctl queue edit ufm --set target_step="),
    ("rename ufm other", "schedctl queue clone ufm --set name=NEW"),
    ("tags", "schedctl submit SCRIPT --name NAME"),
    ("notes", "schedctl events JOB"),
    ("alerts", "docs/reports.md, Rules and webhooks"),
    ("port-forward ufm 6006", "schedctl web serve"),
    ("exec ufm bash", "schedctl logs ufm -f"),
    ("resume ufm", "schedctl queue release ufm"),
    ("pause ufm", "schedctl queue hold ufm"),
    ("restart ufm", "schedctl queue retry ufm, or: schedctl queue release ufm"),
    ("restart", "systemctl restart uff-scheduler"),
    ("restore", "schedctl db restore FILE"),
    ("compare ufm ulm", "schedctl models compare ufm ulm, or: schedctl web serve"),
    ("tail -f ufm", "schedctl logs ufm -f"),
    ("attach ufm", "schedctl logs ufm -f"),
    ("rm -f ufm", "schedctl queue remove ufm"),
    ("stop --all", "schedctl pause, then: schedctl queue hold --all"),
    ("panic", "docs/how-to.md, Stop everything now"),
    ("daemon stop", "systemctl stop uff-scheduler"),
    ("daemon status", "schedctl status"),
    ("up", "schedctl daemon"),
    ("upgrade", "docs/how-to.md, Upgrade, and go back to the old version"),
    ("jobs logs ufm", "schedctl logs ufm"),
    ("jobs queue", "schedctl jobs"),
    ("ls -la", "schedctl queue list --all"),
    ("ps -a", "schedctl queue list --all"),
    ("events -f", "schedctl top"),
    ("runs kill uff-uff-main-0001", "schedctl runs stop uff-uff-main-0001"),
    ("drain kaggle", "schedctl pools close kaggle"),
    ("uncordon kaggle", "schedctl pools open kaggle"),
    ("scontrol hold ufm", "schedctl queue hold ufm"),
    ("checkpoints rm ufm", "schedctl checkpoints retention"),
    ("models rm ufm", "docs/how-to.md, Delete old checkpoints, or a model"),
    ("secrets", "docs/your-own-training.md, Secrets"),
    ("finetune data.jsonl", "docs/how-to.md, Fine-tune a model on your own JSONL"),
    ("estimate train.py", "schedctl submit train.py --dry-run"),
    ("forecast ufm", "schedctl queue forecast ufm"),
    ("completion bash", "schedctl --install-completion"),
    ("tail -n 5 ufm", "schedctl logs ufm -n 5"),
    ("release --all", "schedctl queue release --all"),
    ("resume --all", "schedctl queue release --all, or: schedctl resume"),
    ("scancel --all", "schedctl cancel --all"),
    ("get models", "schedctl models list"),
    ("describe run uff-uff-main-0001", "schedctl runs show uff-uff-main-0001"),
    ("job rm ufm", "schedctl queue remove ufm"),
    ("jobs ufm", "Did you mean schedctl queue show ufm?"),
    ("models ulm", "Did you mean schedctl models show ulm?"),
    ("plan urm", "Did you mean schedctl plan explain urm?"),
    ("logout", "schedctl doctor"),
    ("sweep train.py", "--sweep KEY=VALUES"),
    ("stop ufm", "schedctl queue hold ufm, or: schedctl cancel ufm, or: schedctl pause"),
    ("kill ufm", "schedctl cancel ufm"),
    ("scancel ufm", "schedctl cancel ufm"),
    ("rm ufm", "schedctl queue remove ufm"),
    ("delete job ufm", "schedctl queue remove ufm"),
    ("queue rm ufm", "schedctl queue remove ufm"),
    ("queue start ufm", "schedctl queue release ufm"),
    ("queue pause ufm", "schedctl queue hold ufm"),
    ("queue submit train.py", "schedctl submit train.py"),
    ("nice ufm 4", "schedctl queue priority ufm 4"),
    ("nvidia-smi", "schedctl gpus"),
    ("eta ufm", "schedctl queue show ufm"),
    ("ckpt", "schedctl checkpoints list"),
    ("env", "schedctl config show"),
    ("setup", "schedctl init"),
    ("diff", "schedctl plan diff"),
    ("uninstall", "docs/how-to.md, Uninstall"),
    ("metrics", "docs/how-to.md, Show metrics in Grafana"),
    ("costs", "schedctl cost"),
    ("usage", "schedctl cost"),
    ("dashboard", "schedctl web serve"),
    ("ui", "schedctl web serve"),
    ("login", "docs/kaggle.md"),
    ("backup", "schedctl backup needs DIR"),
    ("config edit", "config.toml, then: schedctl config check"),
    ("service restart", "systemctl restart uff-scheduler"),
    ("service logs", "journalctl -e -u uff-scheduler"),
    ("report recipients", "schedctl config show report"),
    ("promote ulm@1", "schedctl models promote ulm@1"),
    ("deploy ulm@1", "schedctl models deploy ulm@1"),
    ("rollback ulm", "schedctl models rollback ulm"),
    ("evaluate ulm", "schedctl models evaluate ulm"),
    ("compare ulm@1 ulm@2", "schedctl models compare ulm@1 ulm@2"),
    ("clone ulm", "schedctl queue clone ulm"),
    ("start ulm", "schedctl queue release ulm, or: schedctl submit"),
    ("ssh ulm", "schedctl logs ulm -f"),
    ("wandb", "docs/how-to.md, Use Weights & Biases (W&B)"),
    ("tutorial", "docs/tutorial.md"),
    ("slack test", "schedctl doctor"),
    ("pull ulm copy", "schedctl checkpoints pull ulm copy"),
    ("submit train.py --lr 3e-6", "Options of the script go after --: schedctl submit train.py -- --lr 3e-6"),
    ("submit --gpus 2 train.py --lr 3 --probe 0", "schedctl submit --gpus 2 train.py --probe 0 -- --lr 3"),
    ("submit --fast train.py --lr=3 -- --a", "schedctl submit train.py --lr=3 -- --a --fast"),
    ("pools close kagle", "Did you mean kaggle?"),
    ("queue priority ucm -1", "A number below zero is written after --"),
    ("queue list --state running", "Did you mean active?"),
    ("runs logs nothing", "See: schedctl runs list"),
    ("runs list --limit x", "is not a whole number"),
    ("queue forecast ufm --hours 0", "--hours cannot be used: this must be at least 0.1"),
    ("queue show", "needs JOB"),
    ("quue list", "Did you mean 'queue'?"),
    ("queue list --sate held", "Did you mean --state?"),
]


def test_there_are_74_first_guesses() -> None:
    assert len(DOES) + len(SAYS) >= 74


@pytest.mark.parametrize(("words", "answer"), DOES)
def test_a_first_guess_does_what_was_meant(words: str, answer: str, world: Database, schedctl: Schedctl) -> None:
    from shlex import split

    typed = schedctl(*split(words))
    assert (typed.code, answer in typed.out) == (0, True), typed


@pytest.mark.parametrize(("words", "answer"), SAYS)
def test_a_first_guess_is_answered_with_what_to_type(
    words: str, answer: str, world: Database, schedctl: Schedctl
) -> None:
    typed = schedctl(*words.split())
    assert typed.out == ""
    assert answer in typed.err
    assert len(typed.err.splitlines()) == 1
    assert typed.code in {Exit.USAGE, Exit.NOT_FOUND}


def test_every_guess_means_a_command_that_there_is_and_is_none_itself() -> None:
    known = {words.removeprefix("schedctl ") for words, _ in commands()} | set(ALIASES) | set(COMMANDS)
    for meant, guesses in guesses_by_command().items():
        for command in [] if meant.startswith("!") else meant.split(" | "):
            words = [word for word in command.split() if not word.isupper() and not word.startswith("-")]
            assert {" ".join(words[:1]), " ".join(words[:2])} & known, command
        assert set(guesses.split(", ")) & known == set()
    every = [guess for guesses in guesses_by_command().values() for guess in guesses.split(", ")]
    assert len(every) == len(set(every))
    groups = {name.split()[0] for name in known if " " in name}
    assert {guess.removesuffix(" JOB") for guess in every if guess.endswith(" JOB")} & groups == set()


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("answer", "code"), [("y", 0), ("n", Exit.USAGE)])
def test_on_a_terminal_the_command_is_offered(
    answer: str, code: int, world: Database, schedctl: Schedctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", _Terminal(f"{answer}\n"))
    monkeypatch.setattr("sys.stderr", written := _Terminal())
    typed = schedctl("ls")
    assert typed.code == code
    assert ("uff-main" in typed.out) == (code == 0)
    assert "schedctl jobs? Run it? [y/N]" in written.getvalue()


@pytest.mark.parametrize(
    "words",
    [
        "rm urm",
        "scancel urm",
        "stop urm",
        "queue pause ucm",
        "pause ucm",
        "drain kaggle",
        "runs kill uff-uff-main-0001",
    ],
)
def test_what_stops_work_is_never_offered(
    words: str, world: Database, monkeypatch: pytest.MonkeyPatch, home: object
) -> None:
    monkeypatch.setattr("sys.stdin", _Terminal("y\n"))
    monkeypatch.setattr("sys.stderr", written := _Terminal())
    with world.read() as tx:
        before = jobs.everything(tx)
    assert entry.main(words.split()) == Exit.USAGE
    assert "Run it?" not in written.getvalue()
    with world.read() as tx:
        assert jobs.everything(tx) == before
