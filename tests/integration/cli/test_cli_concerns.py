"""Settings and jobs that can be read and still cannot work as meant: told with line and remedy, before a launch."""

import json
from pathlib import Path

import pytest

from scheduler.store import jobs
from scheduler.store.engine import Database
from tests.integration.cli.conftest import MODELS, SETTINGS, Schedctl


def line_of(path: Path, text: str) -> int:
    """Return the first line of a file that holds ``text``."""
    return next(number for number, line in enumerate(path.read_text().splitlines(), 1) if text in line)


def test_a_platform_that_does_not_exist_is_an_error_of_the_check(
    schedctl: Schedctl, database: Database, home: Path
) -> None:
    path = home / "config.toml"
    path.write_text(SETTINGS.replace('name = "desk"\nplatform = "local"', 'name = "desk"\nplatform = "kagle"'))
    found = schedctl("config", "check")
    where = f"{path}:{line_of(path, 'kagle')}"
    told = f'{where}: pools.desk.platform = "kagle": there is no such platform; did you mean kaggle?'
    assert (found.code, found.out) == (3, "")
    assert told in found.err
    added = schedctl("queue", "add", "--name", "a", "--command", "{python} -m a", "--target-step", "5")
    assert added.code == 0
    assert told in added.err


def test_options_that_a_platform_cannot_use_are_told_and_leave_nothing(
    schedctl: Schedctl, database: Database, home: Path
) -> None:
    path = home / "config.toml"
    path.write_text(SETTINGS.replace('name = "desk"', 'name = "desk"\noptions = { nonsense = "1" }'))
    before = sorted(home.rglob("*"))
    found = schedctl("--json", "config", "check")
    assert found.code == 0, found.err
    (one,) = [entry for entry in found.document["warnings"] if entry["key"] == "pools.desk"]
    assert one["file"] == str(path)
    assert one["why"] == "nothing can be started there: unknown setting nonsense"
    assert one["remedy"].startswith("Known settings: devices,")
    assert sorted(home.rglob("*")) == before


_FAR = 'host = "griffith", known_hosts = "/k", folder = "/x"'


_TARGET = '[[targets]]\nname = "griffith"\nkind = "ssh"'
_VLLM = '[[targets]]\nname = "griffith"\nkind = "vllm"'
_POOL = '[[pools]]\nname = "cluster"\nplatform = "{}"'
_SLURM = _POOL.format("slurm")
_STORE = '[artifacts]\nkind = "s3"'


@pytest.mark.parametrize(
    ("place", "options", "why"),
    [
        (_TARGET, 'host = "-oProxyCommand=touch", path = "/m"', "host = '-oProxyCommand=touch' is not usable"),
        (_TARGET, 'host = "griffith", path = "/x;id"', "path = '/x;id' is not usable"),
        (_TARGET, 'host = "griffith", path = "/m", port = "22 -v"', "port = '22 -v' is not usable"),
        (_SLURM, _FAR.replace("griffith", "-oProxyCommand=touch"), "host = '-oProxyCommand=touch' is not usable"),
        (_SLURM, _FAR.replace("/x", "/x;id"), "folder = '/x;id' is not usable"),
        (_SLURM, 'partition = "gpu; id"', "partition = 'gpu; id' is not usable"),
        (_POOL.format("local"), 'devices = "0;id"', "devices = '0;id' is not a list of device numbers"),
        (_POOL.format("skypilot"), 'infra = "aws;id"', "infra = 'aws;id' is not usable"),
        (_POOL.format("kaggle"), 'internet = "maybe"', "internet = 'maybe' is none of on, off"),
        (_VLLM, 'url = "$(id)", base = "b", path = "/m"', "url = '$(id)' is no address of this machine"),
        (_STORE, 'bucket = "$(id)", region = "x"', "bucket = '$(id)' is not usable"),
    ],
)
def test_words_that_no_command_line_is_given_are_refused_by_the_check(
    schedctl: Schedctl, database: Database, home: Path, place: str, options: str, why: str
) -> None:
    (home / "config.toml").write_text(f"{SETTINGS}\n{place}\noptions = {{ {options} }}\n")
    found = schedctl("config", "check")
    assert (found.code, found.out) == (3, ""), found.err
    assert why in found.err


@pytest.mark.parametrize(
    ("before", "after", "key", "means"),
    [
        ('limit = "30h"', "limit = 30", "pools.kaggle.quotas.GPU hours of the week.limit", "30s"),
        ('limit = "30h"', 'limit = "90"', "pools.kaggle.quotas.GPU hours of the week.limit", "1m 30s"),
        ('session_cap = "12h"', "session_cap = 12000", "pools.kaggle.session_cap", "3h 20m"),
        ("[clock]", "[daemon]\ncycle = 30\n\n[clock]", "daemon.cycle", "30s"),
    ],
)
def test_a_number_without_its_unit_is_told(
    schedctl: Schedctl, database: Database, home: Path, before: str, after: str, key: str, means: str
) -> None:
    path = home / "config.toml"
    assert schedctl("config", "check").err.count("has no unit") == 0
    path.write_text(SETTINGS.replace(before, after, 1))
    value = after.splitlines()[1 if "daemon" in after else 0]
    for words in (("config", "check"), ("queue", "add", "--name", "a", "--command", "true", "--target-step", "5")):
        found = schedctl(*words)
        assert found.code == 0, found.err
        where = f"{path}:{line_of(path, value)}: {key} = "
        assert where in found.err, found.err
        assert f"it has no unit and means {means}" in found.err
    (one,) = [entry for entry in schedctl("--json", "config", "check").document["warnings"] if entry["key"] == key]
    assert one["remedy"].startswith("write ")


COMMANDS = {
    '["no-such-command-here"]': "this machine has no such command; install it",
    '["/no/such/program"]': "this machine has no such program; check the path",
    '["./train.sh"]': "a session starts in an empty folder, which does not have it; write the whole path",
    '["{python}", "train.py"]': "a session starts in an empty folder, which does not have it; write the whole path",
    '["{python}", "/no/such/train.py"]': "this machine has no such file",
    '["{python}", "{payload}/trainers/charlmm.py"]': "the shipped payload has no such file",
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_that_no_session_finds_is_told(
    schedctl: Schedctl, database: Database, home: Path, command: str
) -> None:
    models = home / "models.toml"
    models.write_text(
        MODELS.replace('["{python}", "train.py"]', '["true"]', 1).replace('["{python}", "train.py"]', command)
    )
    found = schedctl("config", "check")
    assert found.code == 0
    assert f"{models}:{line_of(models, command)}: jobs.ufm.command = " in found.err, found.err
    assert COMMANDS[command] in found.err
    assert found.err.count("warning") == 1
    path = home / "job.toml"
    path.write_text(f'name = "a"\nrole = "main"\ncommand = {command}\ntarget_step = 5\nsteps_per_hour = 1\n')
    added = schedctl("queue", "add", str(path))
    assert added.code == 0
    assert f"{path}:3: command = " in added.err
    assert COMMANDS[command] in added.err
    with database.read() as tx:
        assert jobs.find(tx, "a") is not None


def test_what_is_in_order_gives_no_warning(schedctl: Schedctl, database: Database, home: Path) -> None:
    (home / "config.toml").write_text(SETTINGS + '[corpus]\nsources = ["stdlib"]\n')
    good = (
        '["{python}", "{payload}/trainers/charlm.py"]',
        '["true"]',
        '["{python}", "-m", "train.py"]',
        '["/bin/sh", "-c", "x.py"]',
    )
    for command in good:
        (home / "models.toml").write_text(MODELS.replace('["{python}", "train.py"]', f"{command}\nmixture = {{}}"))
        found = schedctl("config", "check")
        assert (found.code, found.err) == (0, ""), command


def test_nothing_is_trained_on_that_nobody_named(schedctl: Schedctl, database: Database, home: Path) -> None:
    """The adviser's and the documents' examples name no text: their job waits for one, and its owner is told."""
    (home / "models.toml").write_text(MODELS.replace('["{python}", "train.py"]', '["true"]\nmixture = {}', 1))
    told = "jobs.uff-main.mixture: there is no text to train on; schedctl corpus add FOLDER, or set corpus.sources"
    assert told in schedctl("config", "check").err
    added = schedctl("queue", "add", "--models")
    assert (added.code, told in added.err) == (0, True)
    refused = schedctl("corpus", "build")
    assert (refused.code, "there is no text to train on" in refused.err) == (3, True)
    assert not list(home.rglob("train-*.jsonl"))
    assert schedctl("corpus", "add", str(home / "models.toml")).code == 0
    assert "no text to train on" not in schedctl("config", "check").err


def test_a_shipped_trainer_without_the_corpus_is_told(schedctl: Schedctl, database: Database, home: Path) -> None:
    words = '["{python}", "{payload}/trainers/charlm.py"]'
    (home / "models.toml").write_text(MODELS.replace('["{python}", "train.py"]', words))
    found = schedctl("config", "check")
    assert found.code == 0
    assert "it trains on the corpus, but this job has no mixture of it; add mixture = {}" in found.err


def test_a_pool_that_nobody_declared_is_told_with_the_one_that_was_meant(
    schedctl: Schedctl, database: Database
) -> None:
    words = ("--name", "a", "--command", "true", "--target-step", "5", "--pool", "kagle", "--pool", "desk")
    found = schedctl("queue", "add", *words)
    assert found.code == 0
    assert 'pools = "kagle": no such pool is enabled; did you mean kaggle?' in found.err


JUDGED = """
[jobs.evaluation]
command = ["true"]
set = "items.jsonl"

[[jobs.gates]]
metric = "good"
kind = "threshold"
minimum = 0.95
by = "lower"

[[jobs.gates]]
metric = "good.python"
kind = "better"

[[jobs.gates]]
metric = "harm"
kind = "no_harm"
"""


def test_gates_that_a_test_set_can_never_decide_are_told_when_the_job_is_added(
    schedctl: Schedctl, database: Database, home: Path
) -> None:
    """Ten items of two clusters, four of them of Python: too few for all three gates; a set that is enough is not."""

    def items(count: int, clusters: int) -> str:
        return "".join(
            f'{{"id": "i{n}", "cluster": "c{n % clusters}", "domain": "{"python" if n % 3 else "docs"}"}}\n'
            for n in range(count)
        )

    (home / "models.toml").write_text(MODELS.replace('["{python}", "train.py"]', '["true"]') + JUDGED)
    held = home / "items.jsonl"
    held.write_text(items(10, 2))
    told = [
        "threshold on good: the test set has 10 items, and with fewer than 59 it can never accept one",
        "better on good.python: the test set has 2 clusters of domain python, and with fewer than 5 it can never",
        "no_harm on harm: the test set has 2 clusters, and with fewer than 5 it can never refuse a version",
    ]
    for words in (("config", "check"), ("queue", "add", "--models")):
        found = schedctl(*words)
        assert found.code == 0, found.err
        for why in told:
            assert why in found.err.replace('"', ""), found.err
    held.write_text(items(60, 30))
    updated = schedctl("queue", "update", "ufm", "--input", "set")
    assert (updated.code, updated.err.count("can never")) == (0, 0), updated.err
    edited = schedctl("queue", "edit", "ufm", "--set", 'gates=[{metric="good.sql", kind="better"}]')
    assert "the test set has no item of domain sql" in edited.err, edited.err
    held.write_text('{"id": "a"}\n{"id": "a"}\n')
    found = schedctl("config", "check")
    assert "items.jsonl, line 2: the id 'a' is used on an earlier line" in found.err, found.err


LONG = "--length 1024 is more than the 512 positions of the model in"
ALONE = "--stage kto compares the answers of a device with each other"


@pytest.mark.parametrize(
    ("options", "needs", "why", "remedy"),
    [
        ("--length 1024", "", LONG, "Say --length 512 or less"),
        ("--length 512 --stage kto --batch 2 --accumulate 1", "", "", ""),
        (
            "--length 512 --stage kto --batch 2 --accumulate 1", "needs = { devices = [1, 2] }", ALONE,
            "change it in the command, or the devices that needs asks for",
        ),
    ],
    ids=["length", "one device", "two devices"],
)  # fmt: skip
def test_a_fine_tuning_that_no_session_can_begin_is_refused(
    options: str, needs: str, why: str, remedy: str, schedctl: Schedctl, database: Database, home: Path
) -> None:
    """By every command that adds or changes a job, and by the check of settings: nothing is stored."""
    (home / "config.json").write_text('{"max_position_embeddings": 512}')
    words = ["{python}", "{payload}/trainers/finetune.py", "--model", str(home), "--data", "texts"]
    command = json.dumps([*words, *options.split()])
    path = home / "job.toml"
    path.write_text(f'name = "a"\nrole = "main"\ncommand = {command}\ntarget_step = 5\nsteps_per_hour = 1\n{needs}\n')
    (home / "models.toml").write_text(MODELS.replace('["{python}", "train.py"]', f"{command}\n{needs}", 1))
    code = 3 if why else 0
    for line in (("queue", "add", str(path), "--dry-run"), ("queue", "add", str(path)), ("config", "check")):
        found = schedctl(*line)
        assert found.code == code, (line, found.err)
        assert why in found.err
        assert remedy in found.err
    with database.read() as tx:
        assert (jobs.find(tx, "a") is None) == bool(why)


def test_a_job_of_the_queue_is_not_changed_into_one_that_cannot_train(
    schedctl: Schedctl, database: Database, home: Path
) -> None:
    models = {size: home / f"model-{size}" for size in (512, 4096)}
    for size, folder in models.items():
        folder.mkdir()
        (folder / "config.json").write_text(f'{{"max_position_embeddings": {size}}}')
    command = "{python} {payload}/trainers/finetune.py --model input:base --data texts"
    words = ("--name", "a", "--command", command, "--target-step", "5", "--input", f"base={models[4096]}")
    assert schedctl("queue", "add", *words).code == 0
    with database.read() as tx:
        before = jobs.get(tx, "a").spec
    for change in (
        ("queue", "edit", "a", "--set", f"inputs.base={models[512]}"),
        ("queue", "clone", "a", "--set", f"inputs.base={models[512]}"),
        ("queue", "update", "a", "--input", f"base={models[512]}"),
    ):
        found = schedctl(*change)
        assert (found.code, LONG in found.err) == (3, True), (change, found.err)
    with database.read() as tx:
        assert [record.spec for record in jobs.everything(tx) if record.spec.name.startswith("a")] == [before]
    assert schedctl("queue", "edit", "a", "--set", "target_step=6").code == 0
