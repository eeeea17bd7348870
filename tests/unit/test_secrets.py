"""Secrets of jobs: which names are names, where values come from, who gets them, and that nothing tells them."""

import base64
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from config.credentials import hub_token, read_secret
from config.errors import ConfigError
from config.known_secrets import KnownSecrets
from jobs.catalogue import job_from_table
from jobs.definition import table_of
from jobs.nouns.pool import Pool
from jobs.payload import log
from jobs.payload.lane.command import _LINE_BYTES_MAX, Relay
from jobs.payload.lane.secret_values import VARIABLE, Keys, SecretStore, pop_secrets, secrets_of, sign
from jobs.payload.redact import MARK, Redactor
from jobs.payload.store.publish import Origin, publish
from jobs.payload.store.transport import DirectoryTransport
from jobs.problem import ProblemsFound
from platforms.kaggle.kernel import bootstrap
from platforms.registry import secret_way
from scheduler.core.reasons import SecretMissing
from scheduler.service.facts.snapshot import view_of_new
from scheduler.store import codec

TABLE = {"name": "a", "role": "main", "command": ["x"], "target_step": 1, "steps_per_hour": 1}
CANARY = "canary_5f0b9c-é/+7d21"
AWS = {"region": "eu-central-1", "bucket": "b", "role": "arn:aws:iam::123456789012:role/x", "image": "i"}
SAGEMAKER = {**AWS, "instance_types": "ml.g5.xlarge"}


@pytest.fixture
def hides() -> Iterator[Callable[[str], None]]:
    """Makes the payload of this process know a secret, until the test is over."""
    yield lambda value: log.hidden.know([value])
    log.hidden.know([])


# -- names ------------------------------------------------------------------------------------------------------------


def test_a_job_names_its_secrets_and_keeps_them_on_every_way_through_table_and_database() -> None:
    spec = job_from_table({**TABLE, "secrets": ["HF_TOKEN", "WANDB_API_KEY", "HF_TOKEN"]}, "f")
    assert spec.secrets == ("HF_TOKEN", "WANDB_API_KEY")
    assert job_from_table(table_of(spec), "f") == spec
    columns = codec.spec_columns(spec)
    assert codec.spec(SimpleNamespace(**columns))[0] == spec  # type: ignore[arg-type]
    older = {name: value for name, value in json.loads(columns["spec"]).items() if name != "secrets"}
    assert codec.spec(SimpleNamespace(**{**columns, "spec": json.dumps(older)}))[0].secrets == ()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "name",
    [
        *("SCHED_SECRETS", "SCHED_PROGRESS", "PATH", "LD_PRELOAD", "PYTHONPATH", "PYTHON_GIL", "HOME", "BASH_ENV"),
        *("CUDA_VISIBLE_DEVICES", "VIRTUAL_ENV", "database_url", "kaggle", "web", "aws", "report.smtp.password"),
        *("../HF_TOKEN", "HF-TOKEN", "", "A=B", "A\n", "1A", CANARY),
    ],
)
def test_what_is_no_name_of_a_secret_is_refused_without_being_repeated(name: str) -> None:
    with pytest.raises(ProblemsFound) as caught:
        job_from_table({**TABLE, "secrets": [name]}, "f")
    assert "secrets" in str(caught.value)
    assert CANARY not in str(caught.value)


@pytest.mark.parametrize("value", ["HF_TOKEN", {"HF_TOKEN": "x"}, [1], [f"S{n}" for n in range(11)], None])
def test_a_list_of_few_names_is_what_is_wanted(value: object) -> None:
    with pytest.raises(ProblemsFound, match="secrets"):
        job_from_table({**TABLE, "secrets": value}, "f")


def test_a_variable_is_given_in_one_way() -> None:
    with pytest.raises(ProblemsFound, match="X_MODE is in environment as well"):
        job_from_table({**TABLE, "secrets": ["X_MODE"], "environment": {"X_MODE": "1"}}, "f")


# -- where values come from -------------------------------------------------------------------------------------------


def put(folder: Path, name: str, text: str = f"{CANARY}\n", mode: int = 0o600) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)
    (folder / name).chmod(mode)


def test_what_the_service_manager_hands_over_comes_before_the_state_folder(tmp_path: Path) -> None:
    environ = {"CREDENTIALS_DIRECTORY": str(tmp_path / "handed")}
    put(tmp_path / "state" / "credentials", "HF_TOKEN", "second")
    assert read_secret("HF_TOKEN", {}, tmp_path / "state") == "second"
    assert read_secret("HF_TOKEN", environ, tmp_path / "state") == "second"
    put(tmp_path / "handed", "HF_TOKEN")
    assert read_secret("HF_TOKEN", environ, tmp_path / "state") == CANARY
    assert hub_token({**environ, "HF_TOKEN": "of the shell"}, tmp_path / "state") == CANARY
    assert hub_token({"HF_TOKEN": "of the shell"}, tmp_path / "nothing") == "of the shell"
    assert hub_token({}, tmp_path / "nothing") == ""


@pytest.mark.parametrize(
    ("text", "mode", "why"),
    [
        (None, 0, "there is no such credential"),
        ("x", 0o644, "others may read"),
        ("", 0o600, "one line"),
        ("a\nb", 0o600, "one line"),
    ],
)
def test_a_secret_that_cannot_be_used_is_told_with_its_remedy_and_without_its_value(
    tmp_path: Path, text: str | None, mode: int, why: str
) -> None:
    if text is not None:
        put(tmp_path / "credentials", "HF_TOKEN", text, mode)
    with pytest.raises(ConfigError, match=why) as caught:
        read_secret("HF_TOKEN", {}, tmp_path)
    (problem,) = caught.value.problems
    assert problem.remedy
    assert problem.value == ""


def test_a_secret_that_was_added_a_moment_ago_is_replaced_in_what_the_daemon_tells(tmp_path: Path) -> None:
    known = KnownSecrets({"state_dir": str(tmp_path)}, {})
    assert known(f"said {CANARY}") == f"said {CANARY}"
    put(tmp_path / "credentials", "HF_TOKEN")
    assert known(f"said {CANARY}") == f"said {MARK}"


# -- who gets them ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("platform", "options", "kind"),
    [
        ("local", {}, "given"),
        ("manual", {}, "none"),
        ("kaggle", {}, "none"),
        ("kaggle", {"secrets": "off"}, "none"),
        ("kaggle", {"secrets": "dataset"}, "given"),
        ("kaggle", {"secrets": "account"}, "asked"),
        ("kaggle", {"secrets": "all"}, "none"),
        ("sagemaker", SAGEMAKER, "none"),
        ("sagemaker", {**SAGEMAKER, "secrets": "ssm:/uff/"}, "asked"),
        ("sagemaker", {**SAGEMAKER, "secrets": "secretsmanager:uff/"}, "asked"),
        ("sagemaker", {**SAGEMAKER, "secrets": "vault:uff/"}, "none"),
        ("sagemaker", {**SAGEMAKER, "secrets": "ssm:/uff/ x"}, "none"),
        ("nowhere", {}, "none"),
    ],
)
def test_a_pool_says_how_its_sessions_get_secrets(platform: str, options: dict[str, str], kind: str) -> None:
    way = secret_way(platform, options)
    assert way.kind == kind
    assert bool(way.why and way.remedy) == (kind == "none")


def missing(_name: str) -> str:
    return read_secret("HF_TOKEN", {}, Path("/nonexistent"))


def test_a_job_is_planned_only_where_it_gets_its_secrets_and_waits_with_the_reason_elsewhere() -> None:
    from scheduler.service.facts.overheads import Overheads
    from scheduler.service.facts.snapshot import job_view
    from scheduler.store.jobs import JobRecord

    kaggle = Pool("kaggle", "kaggle", "T4", options={})
    pools = {"kaggle": kaggle, "desk": Pool("desk", "local", "cpu")}
    spec = job_from_table({**TABLE, "secrets": ["HF_TOKEN"]}, "f")
    view = view_of_new(spec, pools, 0, 1)
    assert (view.allowed_pools, view.blocked) == (("desk",), None)
    record = JobRecord(spec, codec.job_state("queued", '{"since": 0}'), 0, 0, 0, None, None, 0, 1)
    waits = job_view(record, pools, Overheads({}), None, missing).blocked
    assert isinstance(waits, SecretMissing)
    assert waits.pool == "", "the file is made more easily than the setting"
    assert "HF_TOKEN" in waits.sentence()
    assert "there is no such credential" in waits.sentence()
    nowhere = view_of_new(spec, {"kaggle": kaggle}, 0, 1).blocked
    assert isinstance(nowhere, SecretMissing)
    assert (nowhere.pool, nowhere.names) == ("kaggle", "HF_TOKEN")
    plain = job_from_table(TABLE, "f")
    assert view_of_new(plain, {"kaggle": kaggle}, 0, 1).allowed_pools == ()


# -- in the session ---------------------------------------------------------------------------------------------------


def test_what_was_handed_over_is_taken_out_of_the_environment_and_known(
    monkeypatch: pytest.MonkeyPatch, hides: Callable[[str], None]
) -> None:
    del hides
    monkeypatch.setenv(VARIABLE, json.dumps({"A_TOKEN": CANARY, "B": "other-value"}))
    given = pop_secrets()
    assert VARIABLE not in os.environ
    assert log.hidden(f"a {CANARY} b") == f"a {MARK} b"
    assert secrets_of(["A_TOKEN"], given, None) == {"A_TOKEN": CANARY}, "a lane gets what it names"
    with pytest.raises(Exception, match="C_TOKEN") as caught:
        secrets_of(["A_TOKEN", "C_TOKEN"], given, None)
    assert getattr(caught.value, "error_class", "") == "secret"


@pytest.mark.parametrize("text", ["no json canary", "[1]", '{"A": 1}'])
def test_what_is_no_table_of_texts_is_refused_without_being_quoted(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(VARIABLE, text)
    with pytest.raises(ValueError, match="does not hold texts by name") as caught:
        pop_secrets()
    assert "canary" not in str(caught.value)
    assert VARIABLE not in os.environ


def relayed(pieces: list[bytes]) -> tuple[bytes, str]:
    """Return what a relay writes of output that comes in these pieces, and the end that it remembers."""
    read, write = os.pipe()
    with tempfile.TemporaryFile() as sink, os.fdopen(read), os.fdopen(write, "wb", buffering=0) as stream:
        relay = Relay(read, sink.fileno(), "")
        for piece in pieces:
            for start in range(0, len(piece), 30_000):
                stream.write(piece[start : start + 30_000])
                relay.copy()
        relay.drain()
        sink.seek(0)
        return sink.read(), relay.tail


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(
    before=st.one_of(st.integers(0, 50), st.integers(_LINE_BYTES_MAX - 400, _LINE_BYTES_MAX + 400)),
    cuts=st.lists(st.integers(1, 40), max_size=4),
    form=st.sampled_from(["plain", "base64", "hex"]),
    ends=st.booleans(),
)
def test_no_piece_of_a_secret_gets_through_wherever_output_is_cut(
    hides: Callable[[str], None], before: int, cuts: list[int], form: str, ends: bool
) -> None:
    hides(CANARY)
    raw = CANARY.encode()
    told = {"plain": raw, "base64": base64.b64encode(b"me:" + raw), "hex": raw.hex().encode()}[form]
    data = b"\xff" + b"x" * before + told + (b"\n" if ends else b"z" * 200)
    places = sorted({min(len(data), before + 1 + cut) for cut in cuts})
    pieces = [data[start:end] for start, end in zip([0, *places], [*places, len(data)], strict=True)]
    written, tail = relayed(pieces)
    assert MARK.encode() in written
    assert written.startswith(b"\xff")
    for text in (written.decode("latin-1"), tail):
        assert not any(told.decode("latin-1")[at : at + 12] in text for at in range(len(told) - 12))


def test_without_secrets_output_is_passed_on_byte_for_byte() -> None:
    data = b"\xff\x00 any bytes \r\n" + b"y" * 9_000 + b"\nno end"
    assert relayed([data])[0] == data


def test_the_names_of_metrics_tell_nothing_in_manifest_and_file(tmp_path: Path, hides: Callable[[str], None]) -> None:
    hides(CANARY)
    folder = tmp_path / "step-00000001"
    folder.mkdir()
    (folder / "weights.bin").write_bytes(b"w")
    (folder / "meta.json").write_text(json.dumps({"step": 1, "metrics": {"loss": 1.0, f"of {CANARY}": 2.0}}))
    origin = Origin("ufm", 1, "run-1", 0, None)
    published = publish(DirectoryTransport(tmp_path / "store"), folder, 1, origin, 0, lambda: 1.0, frozenset())
    assert published.manifest.metrics == {"loss": 1.0, f"of {MARK}": 2.0}
    hidden = Redactor([CANARY])
    texts = [path.read_text() for path in (tmp_path / "store").rglob("*") if path.is_file()]
    assert [hidden.whole(text) for text in texts] == texts


@pytest.mark.parametrize("token", ["", "of-the-session"])
def test_requests_are_signed_as_by_the_library_of_aws(token: str) -> None:
    from botocore.auth import SigV4Auth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials

    body, address = b'{"Names": ["/uff/HF_TOKEN"]}', "https://ssm.eu-central-1.amazonaws.com/"
    at = datetime(2026, 11, 23, 8, 0, 0, tzinfo=UTC)
    ours = sign(Keys("AKIA", "key", token), "eu-central-1", "ssm", address, "AmazonSSM.GetParameters", body, at)
    theirs = AWSRequest("POST", address, data=body)
    theirs.headers["content-type"] = ours["content-type"]
    theirs.headers["x-amz-target"] = ours["x-amz-target"]
    theirs.headers["x-amz-date"] = ours["x-amz-date"]
    theirs.context["timestamp"] = ours["x-amz-date"]
    if token:
        theirs.headers["x-amz-security-token"] = token
    signer = SigV4Auth(Credentials("AKIA", "key", token or None), "ssm", "eu-central-1")
    canonical = signer.canonical_request(theirs)
    signature = signer.signature(signer.string_to_sign(theirs, canonical), theirs)
    assert ours["authorization"].endswith(f"Signature={signature}")
    assert f"SignedHeaders={signer.signed_headers(signer.headers_to_sign(theirs))}," in ours["authorization"]


def test_a_session_without_credentials_of_its_role_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    with pytest.raises(Exception, match="no credentials of its role") as caught:
        secrets_of(["A_TOKEN"], {}, SecretStore("ssm", "/uff/", "eu-central-1", "http://127.0.0.1:9"))
    assert getattr(caught.value, "error_class", "") == "secret"


# -- Kaggle's program --------------------------------------------------------------------------------------------------


def test_a_kernel_asks_for_what_a_person_attached_and_goes_without_the_rest(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Client:
        def get_secret(self, name: str) -> str:
            if name != "HF_TOKEN":
                raise RuntimeError("No user secrets exist for kernel id 1 and label WANDB_API_KEY.")
            return CANARY

    monkeypatch.setitem(sys.modules, "kaggle_secrets", SimpleNamespace(UserSecretsClient=Client))
    found: dict[str, Any] = bootstrap.secrets_of({"names": ["HF_TOKEN", "WANDB_API_KEY"]}, tmp_path)
    assert found == {"HF_TOKEN": CANARY}
    said = capsys.readouterr().out
    assert "WANDB_API_KEY is not attached" in said
    assert CANARY not in said
    assert bootstrap.secrets_of(None, tmp_path) == {}
