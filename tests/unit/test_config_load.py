"""Loading settings: which layer wins, what is refused, and in which words."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from config.describe import describe
from config.errors import ConfigError
from config.layers import shipped
from config.load import load
from config.paths import load_paths
from jobs.nouns.pool import Pool
from jobs.nouns.quota import CalendarQuota, MoneyQuota, charges_by_device
from jobs.nouns.window import Calendar
from scheduler.app import load_app

POOL = '[[pools]]\nname = "desk"\nplatform = "local"\n'


@pytest.fixture
def written(tmp_path: Path) -> Callable[[str], Path]:
    """Write a settings file and return its path."""

    def write(text: str) -> Path:
        path = tmp_path / "config.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def test_the_shipped_defaults_are_valid(tmp_path: Path) -> None:
    settings = load(environ={}, overrides={"state_dir": str(tmp_path)})
    assert settings.database_url == f"sqlite:///{tmp_path}/scheduler.db"
    assert settings.artifacts.root == tmp_path / "artifacts"
    assert settings.daemon.cycle_seconds == 30
    assert [pool.name for pool in settings.pools] == ["local"]
    assert all(path.is_file() for path in settings.models)


def test_the_state_folder_follows_systemd_then_xdg_then_the_home(
    tmp_path: Path, written: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))  # the real one may have the state of an older version
    xdg = {"XDG_STATE_HOME": str(tmp_path / "states"), "HOME": str(tmp_path)}
    assert load(environ=xdg).state_dir == tmp_path / "states/uff-scheduler"
    assert load(environ=xdg | {"STATE_DIRECTORY": "/var/lib/one:/var/lib/two"}).state_dir == Path("/var/lib/one")
    assert load(written(f'state_dir = "{tmp_path}/own"'), xdg).state_dir == tmp_path / "own"
    assert load(environ={"XDG_STATE_HOME": "relative", "HOME": str(tmp_path)}).state_dir.is_absolute()


def test_the_state_folder_of_an_older_version_stays_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    environ = {"XDG_STATE_HOME": str(tmp_path / "states"), "HOME": str(tmp_path)}
    older = tmp_path / ".local/state/uff-scheduler"
    older.mkdir(parents=True)
    assert load(environ=environ).state_dir == older
    (tmp_path / "states/uff-scheduler").mkdir(parents=True)
    assert load(environ=environ).state_dir == tmp_path / "states/uff-scheduler"


def test_the_rehearsal_declares_the_rules_of_three_places() -> None:
    pools = {pool.name: pool for pool in load(shipped("rehearsal.toml"), {}).pools}
    assert [pool.platform for pool in pools.values()] == ["kaggle", "sagemaker", "local"]
    week, day = pools["kaggle"].quotas[0], pools["sagemaker"].quotas[0]
    assert week == CalendarQuota(week.name, 30 * 3600, Calendar("week", "UTC", 5), week.source, week.as_of)
    assert day == CalendarQuota(day.name, 4 * 3600, Calendar("day", "UTC"), day.source, day.as_of)
    assert (pools["kaggle"].sessions_max, pools["kaggle"].devices_per_session) == (2, 2)
    night = pools["local"].hours[0]
    assert (night.zone, night.start, night.end) == ("Europe/Berlin", 20 * 3600, 8 * 3600)


def test_a_pool_of_which_nothing_is_said_is_the_one_that_the_planner_knows(written: Callable[[str], Path]) -> None:
    pool = load_app(written(POOL), {}).pools["desk"]
    assert pool == Pool("desk", "local", pool.accelerator)


def test_commented_examples_are_valid_too(written: Callable[[str], Path]) -> None:
    """Who takes the comment marks away from pools.toml gets pools that load."""
    lines = shipped("pools.toml").read_text(encoding="utf-8").split("\n\n")
    examples = [block for block in lines if "# [[pools]]" in block]
    assert len(examples) == 5
    toml = "\n".join(line[2:] for block in examples for line in block.split("\n") if not line.endswith(":"))
    names = [pool.name for pool in load(written(toml), {}).pools]
    assert names == ["kaggle", "sagemaker", "cloud", "studio-lab", "desk"]


def test_the_environment_wins_over_the_file_and_the_caller_over_both(written: Callable[[str], Path]) -> None:
    path = written('zone = "Europe/Berlin"\n[daemon]\ncycle = "10s"\ngrace = "20s"\nretry_base = "30s"\n')
    environ = {"SCHEDCTL_DAEMON__GRACE": "25s", "SCHEDCTL_DAEMON__RETRY_BASE": "35s", "OTHER": "x"}
    settings = load(path, environ, {"daemon": {"retry_base": 40}})
    daemon = settings.daemon
    assert (daemon.cycle_seconds, daemon.grace_seconds, daemon.retry_base_seconds) == (10, 25, 40)
    sources = {key: source for key, _, source in describe(settings)}
    assert sources["daemon.cycle"] == str(path)
    assert sources["daemon.grace"] == "environment variable SCHEDCTL_DAEMON__GRACE"
    assert sources["daemon.retry_base"] == "command line"
    assert sources["daemon.lease"] == str(shipped("defaults.toml"))


def test_the_environment_names_the_file_unless_the_caller_does(written: Callable[[str], Path], tmp_path: Path) -> None:
    named = tmp_path / "named.toml"
    named.write_text('zone = "Asia/Tokyo"\n', encoding="utf-8")
    environ = {"SCHEDCTL_CONFIG": str(named)}
    assert load(None, environ).zone == "Asia/Tokyo"
    assert load(written('zone = "Europe/Berlin"'), environ).zone == "Europe/Berlin"


def test_lists_come_from_the_environment_as_toml() -> None:
    settings = load(shipped("rehearsal.toml"), {"SCHEDCTL_CORPUS__SOURCES": '["stdlib", "/srv/text"]'})
    assert settings.corpus.sources == ("stdlib", "/srv/text")
    with pytest.raises(ConfigError, match="SCHEDCTL_CORPUS__SOURCES: is no TOML value"):
        load(shipped("rehearsal.toml"), {"SCHEDCTL_CORPUS__SOURCES": "[stdlib"})


def test_relative_paths_mean_the_folder_of_the_file(written: Callable[[str], Path], tmp_path: Path) -> None:
    path = written(
        'state_dir = "state"\nmodels = ["mine.toml"]\ndatabase_url = "sqlite:///jobs.db"\n'
        '[corpus]\nsources = ["texts", "stdlib"]\n[logging]\nfile = "log/daemon.log"\n'
    )
    settings = load(path, {})
    assert settings.state_dir == tmp_path / "state"
    assert settings.models == (tmp_path / "mine.toml",)
    assert settings.corpus.sources == (str(tmp_path / "texts"), "stdlib")
    assert settings.logging.file == tmp_path / "log/daemon.log"
    assert settings.database_url == f"sqlite:///{tmp_path}/jobs.db"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[deamon]\n", "deamon: there is no such key; did you mean daemon?"),
        ('[daemon]\ncycel = "3s"\n', "daemon.cycel: there is no such key; did you mean cycle?"),
        ("[daemon]\ncycle_seconds = 3\n", "daemon.cycle_seconds: there is no such key"),
        ('[daemon]\ncycle = "0s"\n', 'daemon.cycle = "0s": this must be longer than zero'),
        ('[daemon]\ncycle = "-5m"\n', 'daemon.cycle = "-5m": a duration cannot be negative'),
        ('[daemon]\ncycle = "soon"\n', 'daemon.cycle = "soon": a duration is written like'),
        ("[daemon]\nfailures_max = true\n", "daemon.failures_max = true: this is a truth value"),
        ("[daemon]\nfailures_max = 0\n", "daemon.failures_max = 0: this must be greater than or equal to 1"),
        ('[daemon]\nretry_base = "2h"\n', "the longest retry delay is shorter than the first"),
        ('[daemon]\nlaunch_prefix = "UFF"\n', "this is no usable name"),
        ('zone = "Europe/Berln"\n', 'zone = "Europe/Berln": there is no such time zone; did you mean Europe/Berlin?'),
        ('zone = "../etc/passwd"\n', "there is no such time zone; use an IANA name"),
        ("zone = 3\n", "zone = 3: this must be a valid string"),
        ('[logging]\nformat = "xml"\n', 'logging.format = "xml": there is no such choice; use auto, json or console'),
        ("[clock]\nscale = -1.0\n", "clock.scale = -1.0: this must be greater than or equal to 0.000000001"),
        ("[clock]\nepoch = 2026-01-01T00:00:00Z\n", "clock.epoch and clock.origin go together"),
        ("[clock]\nepoch = 2026-01-01T00:00:00\n", "needs its offset from UTC"),
        ("daemon = 3\n", "daemon = 3: this must be a table"),
        ("models = 3\n", "models = 3: this must be a list"),
        ('[[pools]]\nplatform = "local"\n', "pools.0.name: is missing; add it"),
        (POOL + POOL, "pools: two pools are named desk"),
        (POOL + "sessions_max = -1\n", "pools.desk.sessions_max = -1: this must be greater than or equal to 1"),
        (POOL + 'session_cap = "-12h"\n', 'pools.desk.session_cap = "-12h": a duration cannot be negative'),
        (POOL + 'session_cap = "20m"\n', "pools.desk.session_cap = "),
        (POOL + 'session_cap = "20m"\n', "setup + session_min + stop_margin need 42m"),
        (
            POOL + "session_cap = 12\n",
            "pools.desk.session_cap = 12: it has no unit and means 12s, and no session of use",
        ),
        (POOL + "session_cap = 12\n", 'write "12h" or "12m"'),
        ('[pools]\nname = "desk"\n', "pools: this must be a list of tables; write [[pools]] in place of [pools]"),
        ('[pools.desk]\nsetup = "1m"\n', 'write [[pools]] and name = "desk" in place of [pools.desk]'),
        (POOL + '[pools.quotas]\nkind = "week"\n', "write [[pools.quotas]] in place of [pools.quotas]"),
        ('[[artifacts]]\nroot = "x"\n', "artifacts: this must be a table; write [artifacts], in one pair of brackets"),
        (POOL + 'zone = "UTC"\n', "pools.desk.zone: there is no such key in [[pools]], to which TOML counts all that"),
        (POOL + 'zone = "UTC"\n', "move zone up, above the first line in square brackets"),
        ('[daemon]\nstate_dir = "x"\n', "daemon.state_dir: there is no such key in [daemon]"),
        (POOL + 'hours = ["20:00-25:00 UTC"]\n', "'25:00' is no time of day"),
        (POOL + 'hours = ["20:00-20:00 UTC"]\n', "opening hours must end at another time"),
        (POOL + 'hours = ["Fry 20:00-08:00 UTC"]\n', "'Fry' is no weekday"),
        (POOL + 'hours = ["20:00-08:00 Nowhere/City"]\n', "there is no such time zone"),
        (POOL + 'price_per_hour = "1.20"\n', "this is no price"),
        (POOL + "options = { token = 3 }\n", "pools.desk.options.token = [secret]: this must be"),
        ("zone = \n", "is not TOML"),
    ],
)
def test_each_mistake_has_one_message_that_names_file_key_and_value(
    written: Callable[[str], Path], text: str, message: str
) -> None:
    path = written(text)
    with pytest.raises(ConfigError) as caught:
        load(path, {})
    assert len(caught.value.problems) == 1
    assert str(caught.value).startswith(str(path))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("quota", "message"),
    [
        ('kind = "week"\nlimit = "0h"', "a limit must be more than zero"),
        ('kind = "week"\nlimit = "-30h"', "a duration cannot be negative"),
        ('kind = "week"\nlimit = "200h"', "a limit of 200h can never be reached, its window has 7d"),
        ('kind = "day"\nlimit = "25h"', "can never be reached"),
        ('kind = "rolling"\nspan = "10h"\nlimit = "11h"', "can never be reached"),
        ('kind = "weekly"\nlimit = "30h"', "there is no such choice; use week, day"),
        ('kind = "week"\nlimit = "$30"', "a week quota is limited in time"),
        ('kind = "money-week"\nlimit = "30h"', "a money-week quota is limited in money"),
        ('kind = "money-week"\nlimit = "$30"', "hours of this pool cost nothing; set price_per_hour"),
        ('kind = "week"\nlimit = "30h"\nresets = "Caturday 00:00"', "'Caturday' is no weekday"),
        ('kind = "day"\nlimit = "3h"\nresets = "Saturday 00:00"', "only a week resets on a weekday"),
        ('kind = "rolling"\nlimit = "3h"\nresets = "00:00"', "a rolling quota has no reset time"),
        ('kind = "day"\nlimit = "3h"\nspan = "12h"', "takes its length from the calendar"),
        ('kind = "day"\nlimit = "3h"\nzone = "Mars/Base"', "there is no such time zone"),
    ],
)
def test_impossible_quotas_are_refused(written: Callable[[str], Path], quota: str, message: str) -> None:
    with pytest.raises(ConfigError, match=r"pools\.desk\.quotas") as caught:
        load_app(written(f'{POOL}[[pools.quotas]]\nname = "q"\n{quota}\n'), {})
    assert message in str(caught.value)


COUNTED = POOL + "device_counts = [1, 2, 4]\ndevices_max = 8\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (POOL + "device_counts = [2, 1]\n", "the counts must ascend; write them like [1, 2, 4]"),
        (POOL + "device_counts = [1, 1]\n", "the counts must ascend"),
        (POOL + "device_counts = [0, 1]\n", "this must be greater than or equal to 1"),
        (POOL + "device_counts = [1, 2]\ndevices_per_session = 2\n", "devices_per_session says how many"),
        (POOL + "device_counts = [1, 2]\nsessions_max = 3\n", "sessions_max is not used with it; set devices_max"),
        (POOL + "device_counts = [1, 4]\ndevices_max = 3\n", "devices_max = 3: no session could have 4 devices"),
        (POOL + "devices_max = 3\n", "devices_max = 3: it goes with device_counts"),
        (COUNTED + 'price_per_hour = "$2"\n', "with device_counts no two sessions need cost the same"),
        (
            COUNTED + '[[pools.quotas]]\nname = "q"\nkind = "day"\nlimit = "193h"\ncharge = "device"\n',
            "can never be reached, its window has 8d with devices_max = 8",
        ),
        (
            POOL + '[[pools.quotas]]\nname = "q"\nkind = "day"\nlimit = "3h"\ncharge = "device"\n',
            "q: all sessions have as many devices; set device_counts, or no charge",
        ),
        (
            COUNTED + '[[pools.quotas]]\nname = "q"\nkind = "first-use"\nlimit = "3h"\ncharge = "device"\n',
            "a first-use quota cannot count devices; use kind week, day, month or rolling",
        ),
    ],
)
def test_counts_of_devices_that_contradict_each_other_are_refused(
    written: Callable[[str], Path], text: str, message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load(written(text), {})
    assert message in str(caught.value)


def test_counts_of_devices_have_sensible_defaults(written: Callable[[str], Path]) -> None:
    (pool,) = load(written(POOL + "device_counts = [1, 2, 4]\n"), {}).pools
    assert (pool.devices_max, pool.sessions_max, pool.devices_per_session) == (4, 4, 4)
    quota = '[[pools.quotas]]\nname = "q"\nkind = "day"\nlimit = "100h"\ncharge = "device"\n'
    (pool,) = load(written(COUNTED + quota), {}).pools
    assert (pool.devices_max, pool.sessions_max) == (8, 8)
    assert charges_by_device(pool.quotas[0])


def test_two_sessions_at_once_use_two_hours_in_one(written: Callable[[str], Path]) -> None:
    path = written(f'{POOL}sessions_max = 2\n[[pools.quotas]]\nname = "q"\nkind = "day"\nlimit = "40h"\n')
    assert load(path, {}).pools[0].quotas == (CalendarQuota("q", 40 * 3600, Calendar("day")),)


def test_a_budget_needs_no_price_where_the_platform_tells_it(written: Callable[[str], Path]) -> None:
    budget = '[[pools.quotas]]\nname = "q"\nkind = "money-week"\nlimit = "$30"\n'
    text = POOL.replace('"local"', '"skypilot"') + budget
    assert load_app(written(text), {}).pools["desk"].quotas == (MoneyQuota("q", 30_000_000, Calendar("week")),)


def test_what_contradicts_itself_in_a_pool_is_reported_at_once(written: Callable[[str], Path]) -> None:
    with pytest.raises(ConfigError) as caught:
        load(written(POOL + 'devices_max = 3\nsession_cap = "20m"\n'), {})
    assert [problem.key for problem in caught.value.problems] == ["pools.desk.devices_max", "pools.desk.session_cap"]


def test_where_each_key_of_a_pool_comes_from_is_shown(written: Callable[[str], Path]) -> None:
    quota = '[[pools.quotas]]\nname = "q"\nkind = "week"\nlimit = "30h"\nresets = "Saturday 00:00"\n'
    path = written(POOL + 'session_cap = "6h"\noptions = { nice = "3" }\n' + quota)
    rows = {key: (value, source) for key, value, source in describe(load(path, {}))}
    assert rows["pools.desk.session_cap"] == ("6h", str(path))
    assert rows["pools.desk.setup"] == ("10m", "default")
    assert rows["pools.desk.options.nice"] == ("3", str(path))
    assert rows["pools.desk.quotas.q.kind"] == ("week", str(path))
    assert rows["pools.desk.quotas.q.resets"] == ("Saturday 00:00", str(path))


def test_quotas_of_one_pool_have_different_names(written: Callable[[str], Path]) -> None:
    quota = '[[pools.quotas]]\nname = "q"\nkind = "day"\nlimit = "4h"\n'
    with pytest.raises(ConfigError, match="two quotas are named q"):
        load(written(POOL + quota + quota), {})


def test_every_mistake_is_reported_at_once(written: Callable[[str], Path]) -> None:
    with pytest.raises(ConfigError) as caught:
        load(written('zone = "x/y"\n[daemon]\ncycle = "no"\n'), {"SCHEDCTL_LOGGING__LEVEL": "loud"})
    assert [problem.key for problem in caught.value.problems] == ["zone", "daemon.cycle", "logging.level"]
    assert caught.value.problems[2].file == "environment variable SCHEDCTL_LOGGING__LEVEL"


def test_a_misspelt_variable_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"SCHEDCTL_DAEMON__CYCEL: daemon\.cycel: .* did you mean cycle"):
        load(shipped("rehearsal.toml"), {"SCHEDCTL_DAEMON__CYCEL": "3s"})


def test_a_missing_or_unreadable_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.toml: there is no such file"):
        load(tmp_path / "absent.toml", {})
    with pytest.raises(ConfigError, match="cannot be read: is a directory"):
        load(tmp_path, {})


def test_a_password_in_the_database_address_is_never_shown(written: Callable[[str], Path]) -> None:
    settings = load(written('database_url = "postgresql://me:geheim99@db/x"\n'), {})
    rows = describe(settings)
    assert ("database_url", "postgresql://me:[secret]@db/x") in [row[:2] for row in rows]
    assert not any("geheim99" in part for row in rows for part in row)


def test_settings_are_frozen() -> None:
    settings = load(shipped("rehearsal.toml"), {})
    with pytest.raises(ValueError, match="frozen"):
        setattr(settings, "zone", "UTC")  # noqa: B010 - mypy refuses the plain assignment, rightly


@pytest.mark.parametrize(
    ("text", "environ"),
    [
        ("", {}),
        ('state_dir = "state"\nzone = "Asia/Tokyo"\n', {}),
        ('state_dir = "state"\n', {"SCHEDCTL_STATE_DIR": "/srv/state", "SCHEDCTL_ZONE": "Europe/Rome"}),
        ('database_url = "sqlite:///other.db"\n', {}),
        ("", {"SCHEDCTL_DATABASE_URL": "postgresql://me@db/x"}),
    ],
)
def test_the_short_way_agrees_with_the_whole_model(
    written: Callable[[str], Path], text: str, environ: dict[str, str]
) -> None:
    path = written(text)
    paths, settings = load_paths(path, environ), load(path, environ)
    assert (paths.state_dir, paths.database_url, paths.zone) == (
        settings.state_dir,
        settings.database_url,
        settings.zone,
    )


@pytest.mark.parametrize("text", ['zone = "No/Where"', "zone = 3", "state_dir = 3", "database_url = []"])
def test_the_short_way_refuses_what_the_model_refuses(written: Callable[[str], Path], text: str) -> None:
    path = written(text)
    with pytest.raises(ConfigError) as long:
        load(path, {})
    with pytest.raises(ConfigError) as short:
        load_paths(path, {})
    assert str(short.value) == str(long.value)


def test_the_short_way_loads_no_heavy_library(repository: Path) -> None:
    code = (
        "import sys; from config.paths import load_paths; load_paths(environ={});"
        "print(sorted({'pydantic', 'structlog', 'difflib', 'asyncio'} & set(sys.modules)))"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=repository, capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


def test_a_rule_of_the_corpus_is_read_and_one_that_says_nothing_refused(written: Callable[[str], Path]) -> None:
    settings = load(written('[[corpus.rules]]\nkey = "phase"\nequals = 3\nstage = "stage_3"\nlimit = "2h"\n'), {})
    (rule,) = settings.corpus.rules
    assert (rule.key, rule.equals, rule.stage, rule.domains, rule.limit_seconds) == (
        "phase",
        "3",
        "stage_3",
        None,
        7_200,
    )
    with pytest.raises(ConfigError, match=r"corpus\.rules\.0: this rule must have a path or a key together") as found:
        load(written('[[corpus.rules]]\nstage = "stage_3"\n'), {})
    assert "docs/corpus.md" in str(found.value)
    with pytest.raises(ConfigError, match="absolute path"):
        load(written('[[corpus.rules]]\ncommand = ["./tag.py"]\n'), {})


@pytest.mark.parametrize(
    ("table", "key"),
    [
        ('[report.smtp]\nsender = "me@example.org\\nBcc: you@example.org"\n', "report.smtp.sender"),
        ('[report.smtp]\nrecipients = ["you@example.org\\r"]\n', "report.smtp.recipients"),
        (f'{POOL}options = {{ python = "/bin/\\u0000python" }}\n', "pools.desk.options.python"),
        ('[artifacts.options]\nprefix = "a\\tb/"\n', "artifacts.options.prefix"),
    ],
)
def test_control_characters_are_refused_where_others_would_read_them(
    written: Callable[[str], Path], table: str, key: str
) -> None:
    with pytest.raises(ConfigError, match="it has a control character") as refused:
        load(written(table), {})
    assert key in str(refused.value)
