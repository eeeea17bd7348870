"""`schedctl submit` and `queue clone`: one line makes a job, or a family, of a folder that anybody may have."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from jobs.spec import Halving
from platforms.artifacts.directory import DirectoryStore
from scheduler.cli.shell.exits import Exit
from scheduler.service.requests import queue
from scheduler.store import jobs
from scheduler.store.engine import Database
from tests.integration.cli.conftest import NOW, Schedctl
from tests.lab.patience import PATIENCE_SECONDS

REPOSITORY = Path(__file__).parents[3]
LEARNS = """
import threading
from trainer_kit import Training
training, pause = Training(), threading.Event()
for step in range(training.target_step + 1):
    pause.wait(0.002)
    training.progress(step)
training.checkpoint(training.target_step, lambda folder: None, {})
"""


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's folder, which is the current one."""
    made = tmp_path_factory.mktemp("users") / "My Model"
    made.mkdir()
    (made / "train.py").write_text(LEARNS)
    monkeypatch.chdir(made)
    return made


@pytest.fixture
def queued(database: Database) -> Callable[[], dict[str, jobs.JobRecord]]:
    """What is in the queue, by name."""

    def read() -> dict[str, jobs.JobRecord]:
        with database.read() as tx:
            return {record.spec.name: record for record in jobs.everything(tx)}

    return read


def test_a_script_becomes_a_job_with_its_folder_and_its_measured_speed(
    schedctl: Schedctl, folder: Path, queued: Callable[[], dict[str, jobs.JobRecord]], artifacts: DirectoryStore
) -> None:
    done = schedctl("submit", "train.py", "--target-step", "300", "--pool", "desk", "--", "--lr", "3e-6")
    assert done.code == 0, done.err
    spec = queued()["my-model"].spec
    assert spec.command == ("{python}", "train.py", "--lr", "3e-6")
    assert (spec.role, spec.target_step, spec.pools, spec.mixture) == ("job", 300, ("desk",), None)
    assert spec.code is not None
    assert (spec.code.source, spec.code.files) == (str(folder), 1)
    assert artifacts.size(f"code/{spec.code.digest}/listing.json")
    assert "steps an hour here" in done.err
    assert 10_000 < spec.steps_per_hour < 3_600 / 0.002


def test_a_dry_run_tells_all_and_changes_nothing(
    schedctl: Schedctl, folder: Path, queued: Callable[[], dict[str, jobs.JobRecord]], artifacts: DirectoryStore
) -> None:
    words = ("submit", "train.py", "--target-step", "300", "--steps-per-hour", "100")
    told = schedctl(*words, "--dry-run", "--json").document
    assert told["jobs"][0]["command"] == ["{python}", "train.py"]
    assert (told["upload"]["files"], told["upload"]["commit"]) == (1, "")
    assert told["upload"]["upload_bytes"] == len(LEARNS)
    assert [lane["job"] for found in told["plan"]["placements"] for lane in found["lanes"]] == ["my-model"]
    assert queued() == {}
    assert list(artifacts.keys("")) == []
    shown = told["fingerprint"]
    script = (folder / "train.py").read_text()
    (folder / "train.py").write_text(f"{script}# changed\n")
    other = schedctl(*words, "--expect", shown)
    assert (other.code, queued()) == (6, {})
    assert "not those of --expect. Look at them again with --dry-run" in other.err
    (folder / "train.py").write_text(script)
    assert schedctl(*words, "--expect", shown[:12]).code == 0
    again = schedctl(*words, "--dry-run")
    assert again.code == 0
    assert 'name = "my-model-2"' in again.out
    assert "nothing to upload" in again.out
    assert len(queued()) == 1


def test_a_script_that_shows_no_speed_is_added_with_a_guess_and_the_reason(
    schedctl: Schedctl,
    folder: Path,
    queued: Callable[[], dict[str, jobs.JobRecord]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It gets the environment of a session, in which nothing of the daemon's secrets is."""
    monkeypatch.setenv("MAIL_PASSWORD", "canary-5309")
    (folder / "train.py").write_text("import os, sys\nsys.exit(f\"no data, {os.environ.get('MAIL_PASSWORD')}\")\n")
    done = schedctl("submit", "train.py", "--target-step", "300")
    assert done.code == 0
    assert "it showed no speed: " in done.err
    assert "no data, None" in done.err
    assert "canary" not in done.err
    assert queued()["my-model"].spec.steps_per_hour == 1_000


def test_a_probe_ends_what_it_started_also_what_does_not_want_to(
    schedctl: Schedctl, folder: Path, queued: Callable[[], dict[str, jobs.JobRecord]]
) -> None:
    (folder / "train.py").write_text(
        "import os, signal, sys\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"open({str(folder.parent / 'pid')!r}, 'w').write(str(os.getpid()))\nsignal.pause()\n"
    )
    assert schedctl("submit", "train.py", "--target-step", "300", "--probe", "3").code == 0
    with pytest.raises(ProcessLookupError):
        os.kill(int((folder.parent / "pid").read_text()), 0)


def test_a_sweep_that_is_halved_says_what_each_rung_costs_and_shows_where_each_job_is(
    schedctl: Schedctl, folder: Path, queued: Callable[[], dict[str, jobs.JobRecord]]
) -> None:
    words = ("train.py", "--target-step", "90", "--name", "toy", "--sweep", "lr=1,2,3", "--steps-per-hour", "100")
    halved = (*words, "--halving", "3", "--metric", "accuracy:high", "--budget", "12h")
    preview = schedctl("submit", *halved, "--dry-run")
    assert preview.code == 0, preview.err
    assert "Rung 1: 3 jobs to step 30, about 1.45 device hours." in preview.err
    assert "All rungs: about 2.23 device hours, of a budget of 12." in preview.err
    assert "halving = {" in preview.out
    assert not queued()
    done = schedctl("submit", *halved)
    assert done.code == 0, done.err
    found = queued()
    assert {record.spec.target_step for record in found.values()} == {30}
    assert {record.spec.halving for record in found.values()} == {Halving("accuracy", 43_200, 3, (30, 90), aim="high")}
    assert "3 at rung 1 of 2" in schedctl("queue", "list").out
    assert "rung 1 of 2" in schedctl("queue", "list", "--all").out
    shown = schedctl("queue", "show", "toy-lr1").out
    assert "rung 1 of those at steps 30, 90; the best 1 in 3 by accuracy\n" in shown
    assert "12.00 of 12 device hours are left\n" in shown
    best = schedctl(
        "queue", "clone", "toy-lr2", "--set", "name=best", "--set", "halving=off", "--set", "target_step=90"
    )
    assert best.code == 0, best.err
    assert queued()["best"].spec.halving is None
    short = schedctl("submit", *words, "--name", "other", "--halving", "3", "--metric", "loss", "--budget", "1h")
    assert "the budget ends the sweep before its last rung" in short.err


def test_a_sweep_is_a_family_with_one_code(
    schedctl: Schedctl, folder: Path, queued: Callable[[], dict[str, jobs.JobRecord]], artifacts: DirectoryStore
) -> None:
    words = ("--name", "toy", "--sweep", "lr=1e-5,3e-5", "--sweep", "seed=0..1", "--steps-per-hour", "100")
    assert schedctl("submit", "train.py", "--target-step", "300", *words, "--", "--fast").code == 0
    found = queued()
    assert sorted(found) == ["toy-lr1e-5-seed0", "toy-lr1e-5-seed1", "toy-lr3e-5-seed0", "toy-lr3e-5-seed1"]
    last = found["toy-lr3e-5-seed1"].spec
    assert last.command == ("{python}", "train.py", "--fast", "--lr", "3e-5", "--seed", "1")
    assert last.seed == 1
    assert len({record.spec.code for record in found.values()}) == 1
    assert len(list(artifacts.keys("code/"))) == 2
    assert {record.spec.sweep for record in found.values()} == {"toy"}
    (line,) = [line.split() for line in schedctl("queue", "list").out.splitlines() if "toy" in line]
    assert line[:9] == ["1", "toy", "(4", "jobs)", "job", "4", "queued", "0", "1200"]
    assert schedctl("queue", "list", "--all").out.count("toy-lr") == 4
    assert len(schedctl("queue", "list", "--json").document["jobs"]) == 4
    twice = schedctl("submit", "train.py", "--target-step", "300", *words)
    assert twice.code == Exit.REFUSED
    assert len(queued()) == 4


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("gone.py", "--target-step", "3"), "there is no such file"),
        (("train.exe", "--target-step", "3"), "neither Python nor a shell script"),
        (("train.py",), "neither --target-step nor --max-time was given. Add --max-time 3h"),
        (("train.py", "--whole", "3h", "--target-step", "3"), "a job that is run whole has one step"),
        (("train.py", "--whole", "soon"), "whole"),
        (("train.py", "--target-step", "0"), "target_step = 0: this number is out of range"),
        (("train.py", "--target-step", "3", "--sweep", "lr"), "a value is empty"),
        (("train.py", "--target-step", "3", "--sweep", "lr=1,1"), "given twice"),
        (("train.py", "--target-step", "3", "--sweep", "lr=1,2", "--halving", "3"), "--metric and --budget together"),
        (
            (
                "train.py",
                "--target-step",
                "9",
                "--sweep",
                "lr=1,2",
                *("--halving", "3", "--metric", "l", "--budget", "1h"),
            ),
            "the best 1 in 3 is none",
        ),
        (("train.py", "--target-step", "3", "--sweep", "seed=5..1"), "its numbers do not go up"),
        (("train.py", "--target-step", "3", "--sweep", "a=0..99", "--sweep", "b=0..99"), "more than 200 jobs"),
        (("train.py", "--target-step", "3", "--sweep", "$(x)=1"), "it has a name and values"),
    ],
)
def test_what_cannot_be_submitted_is_told_and_changes_nothing(
    schedctl: Schedctl,
    folder: Path,
    queued: Callable[[], dict[str, jobs.JobRecord]],
    words: tuple[str, ...],
    why: str,
) -> None:
    (folder / "train.exe").write_text("MZ")
    done = schedctl("submit", *words, "--probe", "0")
    assert done.code in {Exit.USAGE, Exit.CONFIG}
    assert why in done.err
    assert queued() == {}


def test_a_script_that_knows_nothing_of_checkpoints_is_told_that_it_cannot_be_resumed(
    schedctl: Schedctl, folder: Path, queued: Callable[[], dict[str, jobs.JobRecord]]
) -> None:
    (folder / "plain.py").write_text("open('output/model', 'w').write('trained')\n")
    done = schedctl("submit", "plain.py", "--whole", "3h")
    assert done.code == 0
    assert "my-model gets a single session of at most 3h. It cannot be resumed" in done.err
    assert "Trying it here" not in done.err
    spec = queued()["my-model"].spec
    assert (spec.whole, spec.target_step) == (True, 1)
    assert "at most 3h; it cannot be resumed" in schedctl("queue", "show", "my-model").out
    too_long = schedctl("submit", "plain.py", "--whole", "13h", "--pool", "kaggle", "--dry-run")
    assert too_long.code == 0
    assert "can never start here: needs one session of 13." in too_long.err
    resumable = schedctl("submit", "train.py", "--whole", "3h", "--dry-run")
    assert (
        "train.py can save and resume, it seems. With --target-step instead of --max-time it would resume"
        in resumable.err
    )


def test_what_it_reads_is_taken_with_it(
    schedctl: Schedctl, folder: Path, queued: Callable[[], dict[str, jobs.JobRecord]]
) -> None:
    (folder.parent / "rows").mkdir()
    (folder.parent / "rows" / "a.txt").write_text("one")
    words = ("--target-step", "9", "--steps-per-hour", "100", "--input", "rows=../rows", "--sweep", "seed=0..1")
    assert schedctl("submit", "train.py", *words).code == 0
    found = [record.spec.inputs for record in queued().values()]
    assert [given.files for given in found[0]] == [1]
    assert found[0] == found[1]


def test_it_waits_until_the_job_is_over_and_says_how_it_ended(
    schedctl: Schedctl, folder: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scheduler.cli.commands.submit_jobs._LOOK_AGAIN_SECONDS", 0.01)
    added = queue.add

    def then_cancelled(*words: object, **options: object) -> list[jobs.JobRecord]:
        found = added(*words, **options)  # type: ignore[arg-type]
        threading.Timer(0.2, queue.cancel, (database, "my-model", NOW, "ann")).start()
        return found

    monkeypatch.setattr(queue, "add", then_cancelled)
    words = ("--target-step", "300", "--steps-per-hour", "100", "--and-wait")
    done = schedctl("submit", "train.py", *words)
    assert done.code == Exit.VIOLATIONS
    assert "my-model: queued" in done.err
    assert "Not done: my-model" in done.err


def test_a_clone_has_the_very_code_of_the_first_and_what_was_set(
    schedctl: Schedctl, folder: Path, queued: Callable[[], dict[str, jobs.JobRecord]]
) -> None:
    schedctl("submit", "train.py", "--target-step", "300", "--steps-per-hour", "100")
    (folder / "train.py").write_text("print('changed since')\n")
    assert schedctl("queue", "clone", "my-model", "--set", "seed=7").code == 0
    assert schedctl("queue", "clone", "my-model", "--set", "name=hot", "--set", "target_step=9").code == 0
    found = queued()
    assert sorted(found) == ["hot", "my-model", "my-model-2"]
    assert found["my-model-2"].spec.seed == 7
    assert found["hot"].spec.target_step == 9
    assert len({record.spec.code for record in found.values()}) == 1
    assert schedctl("queue", "clone", "nobody").code == Exit.NOT_FOUND


def test_a_secret_in_the_folder_stops_the_upload_until_it_is_allowed(
    schedctl: Schedctl, folder: Path, queued: Callable[[], dict[str, jobs.JobRecord]], artifacts: DirectoryStore
) -> None:
    token = "hf_" + "aBcDeGfHiJkLmNoPqRsTuVwXyZ" + "aZbYcXdW"
    (folder / "upload.py").write_text(f"import os\nlogin('{token}')\n")
    line = ("submit", "train.py", "--max-time", "1h", "--pool", "desk")
    refused = schedctl(*line)
    assert refused.code == Exit.REFUSED
    assert f"{folder}/upload.py:2 (Hugging Face token)" in refused.err
    assert ".sched-allowed-secrets" in refused.err
    document = json.loads(schedctl(*line, "--json").err.splitlines()[-1])["error"]
    assert [(one["file"], one["line"], one["key"]) for one in document["problems"]] == [
        (f"{folder}/upload.py", 2, "Hugging Face token")
    ]
    assert token not in refused.err + json.dumps(document)
    assert not queued()
    assert not list(artifacts.keys("code/"))
    done = schedctl(*line, "--allow-secrets")
    assert done.code == 0, done.err
    assert "1 value may be uploaded from now on" in done.err
    assert token not in (folder / ".sched-allowed-secrets").read_text()
    assert schedctl(*line, "--name", "second").code == 0
    assert set(queued()) == {"my-model", "second"}


def test_a_secret_in_an_input_stops_the_upload(
    schedctl: Schedctl, folder: Path, tmp_path: Path, queued: Callable[[], dict[str, jobs.JobRecord]]
) -> None:
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text('{"prompt": "a"}\n' + json.dumps({"prompt": f"export GH=ghp_{'aB3dE6' * 6}\nmake"}) + "\n")
    line = ("submit", "train.py", "--max-time", "1h", "--pool", "desk", "--input", f"pairs={pairs}")
    refused = schedctl(*line)
    assert refused.code == Exit.REFUSED
    assert f"{pairs}:2 (GitHub token)" in refused.err
    assert not queued()
    assert schedctl(*line, "--allow-secrets").code == 0
    assert (tmp_path / ".sched-allowed-secrets").is_file()


def test_a_long_job_is_warned_of_until_its_script_is_certified(
    schedctl: Schedctl, folder: Path, database: Database
) -> None:
    del database
    failed = schedctl("certify", "train.py", "--steps", "300", "--json")  # it saves at the end alone
    assert (failed.code, failed.document["level"]) == (Exit.VIOLATIONS, "failed")
    plain = (REPOSITORY / "examples/plain/train.py").read_text()
    (folder / "train.py").write_text(plain)
    words = ("submit", "train.py", "--steps-per-hour", "100", "--dry-run", "--target-step")
    assert "certif" not in schedctl(*words, "100").err
    warned = schedctl(*words, "90000").err
    assert "needs about 900 h, more than one session, and train.py has changed since it was certified" in warned
    done = schedctl("certify", "train.py", "--steps", "2000", "--json")
    assert (done.code, done.document["level"]) == (0, "E0"), done.document
    assert "certif" not in schedctl(*words, "90000").err
    (folder / "train.py").write_text(f"{plain}# changed\n")
    assert "train.py has changed since it was certified" in schedctl(*words, "90000").err


def test_ctrl_c_ends_a_certification_with_all_that_it_started(folder: Path, tmp_path: Path) -> None:
    (folder / "train.py").write_text(
        f"import os\nopen({str(tmp_path / 'pid')!r}, 'a').write(f'{{os.getpid()}}\\n')\n{LEARNS}"
    )
    words = [sys.executable, "-m", "scheduler", "certify", "train.py", "--steps", "100000"]
    started = subprocess.Popen(words, stderr=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(REPOSITORY)})
    pause = threading.Event()
    while not (tmp_path / "pid").exists() and started.poll() is None:
        pause.wait(0.02)
    started.send_signal(signal.SIGINT)
    started.communicate(timeout=PATIENCE_SECONDS)
    assert started.returncode == Exit.INTERRUPTED
    assert [pid for pid in (tmp_path / "pid").read_text().split() if Path(f"/proc/{pid}").exists()] == []
