"""The settings model: all settings that a person may change, validated together and frozen.

A key in a file is the field's name without ``_seconds``: ``cycle = "30s"`` sets ``cycle_seconds``. Defaults of sections
and their explanation are in ``defaults.toml``.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cached_property
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple
from urllib.parse import urlsplit

from pydantic import Field, PrivateAttr, SecretStr
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource

from config.layers import Layers
from config.section import ClockScale, Fraction, Instant, Section, UnixSeconds
from jobs.corpus.options import CorpusRule, SourceWeight
from jobs.duration import parse_instant
from jobs.nouns import values
from jobs.nouns.pool import Pool, declared
from jobs.nouns.window import DailyHours
from jobs.problem import did_you_mean

_SECRET_MIN = 16
_OPTION_MAX_CHARACTERS = 4_000
_ALL = "*"
# The options that each kind requires; its adapter checks all others (platforms/targets).
_NEEDED = {"directory": ("path",), "ssh": ("host", "path"), "s3": ("bucket", "region"), "vllm": ("url", "base", "path")}

ModelName = Annotated[str, Field(pattern=r"^(\*|[a-z0-9][a-z0-9._-]{0,39})$")]


def _pattern(value: str) -> str:
    if not value or not value.isprintable() or " " in value:
        raise values.BadValue(f"{value!r} is no pattern", 'write it like "job.*", "run.end" or "*"')
    return value


Pattern = Annotated[str, Field(max_length=100), values.After(_pattern)]
RuleName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,39}$")]


class RuleSettings(Section):
    """Events that match ``events``, of jobs that match ``jobs``, go to the channels ``to`` in one message."""

    name: RuleName
    events: tuple[Pattern, ...] = Field(min_length=1)
    jobs: tuple[Pattern, ...] = Field(default=("*",), min_length=1)
    to: tuple[Annotated[str, Field(min_length=1)], ...] = Field(min_length=1)


class WebhookSettings(Section):
    """Events that match ``events``, of jobs that match ``jobs``, go to ``token_url``, signed with ``secret``."""

    name: RuleName
    token_url: Annotated[SecretStr, values.After(lambda url: private_address(url.get_secret_value()) and url)]
    secret: SecretStr
    events: tuple[Pattern, ...] = Field(default=("*",), min_length=1)
    jobs: tuple[Pattern, ...] = Field(default=("*",), min_length=1)
    timeout_seconds: Annotated[values.PositiveSeconds, values.at_most("2m")] = 10

    def contradictions(self) -> Iterable[values.Rule]:
        """See Section."""
        why = f"the secret has fewer than {_SECRET_MIN} characters"
        yield len(self.secret.get_secret_value()) < _SECRET_MIN, "secret", why, "make one: openssl rand -hex 32"


def private_address(text: str) -> str:
    """Return an address to which messages may be sent: https, or on this machine. Raises BadValue."""
    try:
        parts = urlsplit(text)
        host = parts.hostname or ""
    except ValueError:
        raise values.BadValue("this is no address", 'write it like "https://example.org/hook"') from None
    if not host or not (parts.scheme == "https" or (parts.scheme == "http" and _is_here(host))):
        why = "what is sent there would go in the clear, or nowhere"
        raise values.BadValue(why, "use https; http only to this machine, as 127.0.0.1 or localhost")
    return text


def _is_here(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


class CorpusSettings(Section):
    """The training texts of models, and the share of them that is held out to measure models."""

    sources: tuple[str, ...] = ()
    max_bytes: Annotated[int, Field(ge=1, le=1 << 50)]
    held_out_fraction: Fraction
    held_out_clusters: Annotated[int, Field(ge=0, le=1_000_000)]
    refuse_personal: tuple[Literal["e-mail address", "phone number", "IBAN", "card number"], ...] = ()
    rules: tuple[CorpusRule, ...] = ()
    weights: tuple[SourceWeight, ...] = ()
    decontaminate: bool = True


class TargetSettings(Section):
    """One deployment target, which serves models. Only its adapter reads ``options``.

    ``models`` are those that it serves, ``*`` for all. ``automatic`` deploys each promoted version. If several targets
    wait, the ``first`` ones are deployed first; the others follow one by one after it has served for ``watch``.
    """

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,39}$")
    kind: Literal["directory", "ssh", "s3", "vllm"]
    models: tuple[ModelName, ...] = Field(default=(_ALL,), min_length=1)
    automatic: bool = False
    first: str = ""
    watch_seconds: Annotated[values.PositiveSeconds, values.at_most("30d")] = 3_600
    options: dict[str, values.Line] = Field(default_factory=dict)

    def contradictions(self) -> Iterable[values.Rule]:
        """See Section."""
        is_unknown = self.first and not self.serves(self.first)
        remedy = did_you_mean(self.first, self.models) if is_unknown else ""
        yield is_unknown, "first", f"{self.first} is none of the models of this target", remedy
        for name in [name for name in _NEEDED[self.kind] if not self.options.get(name)][:1]:
            yield True, "options", f"a target of kind {self.kind} needs the option {name}", "see docs/deployment.md"
        for name in [name for name, text in self.options.items() if len(text) > _OPTION_MAX_CHARACTERS][:1]:
            remedy = "put the command into a script there, and name that"
            yield True, "options", f"the option {name} is too long", remedy

    def serves(self, model: str) -> bool:
        """Return whether this target serves a model."""
        return model in self.models or _ALL in self.models


def _address(text: str) -> str:
    try:
        return "127.0.0.1" if text == "localhost" else str(ip_address(text))
    except ValueError:
        raise values.BadValue("this is no address of this machine", 'write "127.0.0.1", "::1" or "0.0.0.0"') from None


def _host_name(name: str) -> str:
    if not name or set(name) & set("/:@*? "):
        raise values.BadValue(f"{name!r} is no host name", 'write it without scheme and port: "status.example.org"')
    return name.lower().rstrip(".")


class WebSettings(Section):
    """The status page listens at ``host``; requests must name it, the loopback address or one of ``names``.

    ``bearer_file`` contains the token for readers; without it the service manager's credential ``web`` is read.
    ``actions_file`` contains the token for changes; without it no changes are possible.
    """

    host: Annotated[str, values.After(_address)]
    port: int = Field(ge=0, le=65_535)  # 0: any free port
    names: tuple[Annotated[str, values.After(_host_name)], ...] = ()
    bearer_file: Annotated[Path | None, values.Before(lambda text: text or None)] = None
    actions_file: Annotated[Path | None, values.Before(lambda text: text or None)] = None

    @property
    def exposed(self) -> bool:
        """Whether other machines can reach the page."""
        return not ip_address(self.host).is_loopback


class SmtpSettings(Section):
    """The mail server for outgoing messages; without ``host`` no e-mail is sent."""

    host: values.Line
    port: int = Field(ge=1, le=65_535)
    starttls: bool
    user: values.Line
    password: SecretStr
    timeout_seconds: Annotated[values.PositiveSeconds, values.at_most("1h")]
    sender: values.Line
    recipients: tuple[values.Line, ...]

    def contradictions(self) -> Iterable[values.Rule]:
        """See Section."""
        remedy = "set report.smtp.sender and report.smtp.recipients"
        lacks = self.host and not (self.sender and self.recipients)
        yield lacks, "recipients", "e-mail needs a sender and recipients", remedy


class SlackSettings(Section):
    """A webhook, or a bot token and a channel; without both, no message is sent to Slack."""

    webhook_token_url: SecretStr
    bot_token: SecretStr
    channel: str
    timeout_seconds: Annotated[values.PositiveSeconds, values.at_most("1h")]

    def contradictions(self) -> Iterable[values.Rule]:
        """See Section."""
        lacks = self.bot_token.get_secret_value() and not self.channel
        yield lacks, "channel", "a bot token needs a channel", 'write it like "#training"'


class AppriseSettings(Section):
    """Further channels, one for each address in the format of Apprise. The addresses contain tokens."""

    token_urls: tuple[SecretStr, ...]


class ReportSettings(Section):
    """``weekly`` is in the time zone of the settings. Alerts in quiet hours are sent afterwards, as one message."""

    weekly: Annotated[values.Reset, values.Before(values.text_of(values.reset))]
    quiet: Annotated[DailyHours | None, values.Before(values.text_of(values.opening_hours))] = None
    alerts_every_seconds: Annotated[values.PositiveSeconds, values.at_most("365d")]
    smtp: SmtpSettings
    slack: SlackSettings
    apprise: AppriseSettings


class ArtifactSettings(Section):
    """The store for checkpoints, heartbeats and results."""

    kind: str = Field(min_length=1)
    root: Path
    options: dict[str, values.Line] = Field(default_factory=dict)


class DaemonSettings(Section):
    """The intervals and timeouts of the daemon."""

    cycle_seconds: Annotated[values.PositiveSeconds, values.at_most("1d")]
    housekeeping_seconds: Annotated[values.PositiveSeconds, values.at_most("7d")]
    lease_seconds: Annotated[
        values.PositiveSeconds, values.at_most("1d")
    ]  # real time, also in rehearsals: it guards against a second daemon, not quota
    heartbeat_seconds: Annotated[values.PositiveSeconds, values.at_most("1d")]
    grace_seconds: Annotated[values.PositiveSeconds, values.at_most("1d")]
    poll_timeout_seconds: Annotated[values.PositiveSeconds, values.at_most("1h")]
    plan_horizon_seconds: Annotated[values.PositiveSeconds, values.at_most("60d")]
    failures_max: values.PositiveInt
    retry_base_seconds: Annotated[values.PositiveSeconds, values.at_most("365d")]
    retry_cap_seconds: Annotated[values.PositiveSeconds, values.at_most("365d")]
    launch_prefix: str = Field(pattern=r"^[a-z][a-z0-9-]{0,11}$")
    stop_at: Instant | None = None

    def contradictions(self) -> Iterable[values.Rule]:
        """See Section."""
        why, remedy = "the longest retry delay is shorter than the first", "make retry_cap at least retry_base"
        yield self.retry_cap_seconds < self.retry_base_seconds, "retry_cap", why, remedy, "retry_base"


def _instant(value: object) -> float:
    return value if isinstance(value, float) else parse_instant(value)


class ClockSettings(Section):
    """Scheduled time, for rehearsals.

    It is ``epoch`` at the real instant ``origin`` and runs ``scale`` times as fast as real time. It stops at
    ``stopped_at``, so that a finished rehearsal can be inspected.
    """

    scale: ClockScale
    epoch: Annotated[UnixSeconds | None, values.Before(_instant)] = None
    origin: UnixSeconds | None = None
    stopped_at: Instant | None = None

    def contradictions(self) -> Iterable[values.Rule]:
        """See Section."""
        is_half = (self.origin is None) != (self.epoch is None)
        yield is_half, "origin", "clock.epoch and clock.origin go together", "set both, or neither", "epoch"


class RetentionSettings(Section):
    """How long records and files are kept, in scheduled time."""

    newest: Annotated[
        values.PositiveInt, Field(ge=2)
    ]  # if the newest turns out to be damaged, the one before it is used
    milestones: Annotated[int, Field(ge=0, le=1_000)]
    grace_seconds: values.PositiveSeconds
    damaged_seconds: values.PositiveSeconds
    reports_seconds: values.PositiveSeconds
    messages_seconds: values.PositiveSeconds
    events_seconds: values.PositiveSeconds


class ExportSettings(Section):
    """Files for other programs: a calendar, and the series of every job."""

    calendar: Path | None = None
    series: Path | None = None
    mlflow: str | None = None  # from older versions, like wandb; the error has the remedy
    wandb: Path | None = None


class AgentSettings(Section):
    """How many device hours the jobs of coding agents may use without the approval of a person.

    ``hours_without_asking`` limits one change, ``hours_per_day`` limits all jobs that agents add on a UTC day. If both
    are unset, agents have no limits.
    """

    hours_without_asking: Annotated[float, values.Bounds(ge=0, le=100_000), values.NUMBER] | None = None
    hours_per_day: Annotated[float, values.Bounds(ge=0, le=100_000), values.NUMBER] | None = None

    @property
    def limits(self) -> "AgentLimits | None":
        """The limits in whole seconds, None without limits. If one is unset, it is 1 h a change or 4 h a day."""
        change, day = self.hours_without_asking, self.hours_per_day
        if change is None and day is None:
            return None
        return AgentLimits(round(3_600 * (1 if change is None else change)), round(3_600 * (4 if day is None else day)))


class AgentLimits(NamedTuple):
    """How many device seconds agents may use without asking, for one change and on a UTC day."""

    change_seconds: int
    day_seconds: int


class LoggingSettings(Section):
    """The daemon's log."""

    format: Literal["auto", "json", "console"]
    level: Literal["debug", "info", "warning", "error"]
    file: Path | None = None


class Settings(Section, BaseSettings):  # type: ignore[misc]  # the two libraries type `model_config` differently
    """All settings. ``database_url`` and ``artifacts.root`` are derived from ``state_dir`` if empty."""

    state_dir: Path
    database_url: str = Field(min_length=1)
    zone: values.ZoneName
    remote: str  # read by scheduler.cli.remote
    models: tuple[Path, ...]
    artifacts: ArtifactSettings
    daemon: DaemonSettings
    clock: ClockSettings
    corpus: CorpusSettings
    logging: LoggingSettings
    retention: RetentionSettings
    report: ReportSettings
    export: ExportSettings
    web: WebSettings
    pools: tuple[Annotated[Pool, values.After(declared)], ...]
    targets: tuple[TargetSettings, ...]
    rules: tuple[RuleSettings, ...]
    webhooks: tuple[WebhookSettings, ...]
    agents: AgentSettings = AgentSettings()

    _layers: Layers = PrivateAttr(default_factory=Layers)

    @classmethod
    def of(cls, layers: Layers) -> "Settings":
        """Return the settings from all layers together. Raises ValidationError."""
        settings = cls(**layers.values)
        settings._layers = layers
        return settings

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003 - the library's parameters, by their names
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - reads no TOML, and overlooks misspelt variables
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - no such file here
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - looks at no file's rights
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Return only the merged layers, in place of the library's own sources."""
        return (init_settings,)

    def origin(self, key: str) -> str:
        """Return the file or variable that set a dotted key, or the table or list around it."""
        return self._layers.origin(key)

    @property
    def written(self) -> Mapping[str, Any]:
        """All settings as tables of text and numbers, before validation."""
        return self._layers.values

    @cached_property
    def files(self) -> list[Path]:
        """The files that set anything."""
        return sorted({Path(name) for name in self._layers.origins.values() if name.endswith(".toml")})

    def contradictions(self) -> Iterable[values.Rule]:
        """See Section."""
        for key in ("pools", "rules", "targets", "webhooks"):
            counts = Counter(each.name for each in getattr(self, key))
            twice = sorted(name for name, count in counts.items() if count > 1)
            yield twice, key, f"two {key} are named {', '.join(twice)}", "give each its own name"
        slack = self.report.slack
        names = {
            "email": self.report.smtp.host,
            "slack": slack.webhook_token_url.get_secret_value() or slack.bot_token.get_secret_value(),
            "apprise": self.report.apprise.token_urls,
        }
        lost = [(rule.name, name) for rule in self.rules for name in rule.to if not names.get(name)]
        for rule, name in lost[:1]:
            why = f"rule {rule} sends to {name}, which is not configured"
            yield True, "rules", why, "channels are email, slack and apprise, set below [report]"
