"""What must not leave this machine is found, by file, line and kind; what only looks like it is not."""

from __future__ import annotations

import json
import os
import random
import sysconfig
from collections.abc import Sequence
from pathlib import Path

import pytest

from jobs import secret_scan
from jobs.code.pack import pack
from jobs.secret_scan import ALLOWED_NAME, PERSONAL, SecretScan, SecretsFound, require_no_secrets
from jobs.spec import Code

_DIGITS, _HEX = "0123456789", "0123456789abcdef"
_UPPER = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_ALL = _UPPER + _UPPER.lower() + _DIGITS
_DICE = random.Random(7)


def _any(count: int, signs: str = _ALL) -> str:
    """Return what looks like a secret; none stands in this file, which others scan as well."""
    return "".join(_DICE.choices(signs, k=count))


_BEGIN = "-----BEGIN"  # the line that it begins stands nowhere whole
_EXAMPLES = {
    "private key": [
        (f"{_BEGIN} RSA PRIVATE KEY-----\n{_any(64)}\n", f"{_BEGIN} PUBLIC KEY-----\n{_any(64)}\n"),
        (f'"private_key": "{_BEGIN} PRIVATE KEY-----\\n{_any(64)}\\n"', f"{_BEGIN} PRIVATE KEY-----\n...\n"),
        (
            f"{_BEGIN} RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\n{_any(64)}",
            f"if line == '{_BEGIN} PRIVATE KEY-----':",
        ),
        (f"Private-Lines: 14\n{_any(64)}", "Private-Lines: 14"),
        (f"AGE-SECRET-KEY-1{_any(58, _UPPER + _DIGITS)}", "AGE-SECRET-KEY-1"),
    ],
    "AWS access key": [
        (f"AKIA{_any(16, _UPPER)}", "AKIAIOSFODNN7EXAMPLE"),
        (f"ASIA{_any(16, _UPPER)}", f"x{_any(9)}AKIA"),
    ],
    "Azure key": [(f"AccountName=a;AccountKey={_any(86)}==;", "AccountKey=<key>")],
    "Google key": [
        (f"AIza{_any(35)}", f"AIza{_any(20)}"),
        (f"GOCSPX-{_any(28)}", "GOCSPX-your-client-secret-goes-here"),
    ],
    "Hugging Face token": [
        (f"login('hf_{_any(34)}')", "hf_hub_download_with_progress_and_retries"),
        (f"hf_{_any(34)}", "hf_" + "x" * 34),
    ],
    "Kaggle token": [
        (f"KGAT_{_any(32, _HEX)}", "KGAT_"),
        (f'{{"username":"u","key":"{_any(32, _HEX)}"}}', '{"key": "value"}'),
    ],
    "W&B key": [(f"wandb_v1_{_any(60)}", "wandb_v1_api")],
    "GitHub token": [
        (f"ghp_{_any(36)}", f"ghp_{_any(12)}"),
        (f"github_pat_{_any(82)}", "github_pat_"),
        (f"ghs_{_any(36)}", "ghs_"),
    ],
    "GitLab token": [(f"glpat-{_any(20)}", "glpat-short")],
    "OpenAI key": [(f"sk-proj-{_any(40)}T3BlbkFJ{_any(40)}", "sk-learn and T3BlbkFJ")],
    "Anthropic key": [(f"sk-ant-api03-{_any(90)}", "sk-ant-")],
    "OpenRouter key": [(f"sk-or-v1-{_any(64, _HEX)}", "sk-or-v1-")],
    "Databricks token": [(f"dapi{_any(32, _HEX)}", "dapi/v1/dapi")],
    "DigitalOcean token": [(f"dop_v1_{_any(64, _HEX)}", "api_v1_endpoint")],
    "PyPI token": [(f"pypi-AgEIcHlwaS5vcmc{_any(120)}", "pypi-AgE")],
    "npm token": [(f"//registry/:_auth=npm_{_any(36)}", "npm_config_registry")],
    "Slack token": [(f"xoxb-{_any(12, _DIGITS)}-{_any(12, _DIGITS)}-{_any(24)}", "xoxb-")],
    "Telegram token": [(f"{_any(10, _DIGITS)}:AA{_any(33)}", "10:AAB")],
    "Stripe key": [(f"sk_live_{_any(24)}", f"sk_test_{_any(24)}")],
    "Square key": [(f"sq0csp-{_any(43)}", "sq0csp-")],
    "SendGrid key": [(f"SG.{_any(22)}.{_any(43)}", "SG.Cell.Size")],
    "Mailchimp key": [(f"{_any(32, _HEX)}-us14", f"{_any(12, _HEX)}-us14")],
    "webhook": [
        (
            f"https://hooks.slack.com/services/T{_any(8, _UPPER)}/B{_any(8, _UPPER)}/{_any(24)}",
            "hooks.slack.com/services/T/B/x",
        ),
        (
            f"https://discord.com/api/webhooks/{_any(18, _DIGITS)}/{_any(68)}",
            "https://discord.com/api/webhooks/ID/TOKEN",
        ),
    ],
    "JSON web token": [(f"eyJ{_any(20)}.eyJ{_any(40)}.{_any(43)}", "eyJhbGciOiJ.eyJ")],
    "password in an address": [
        (f"postgresql://uff:{_any(8)}8{_any(4)}@db/uff", "postgresql://user:password@host/db"),
        (f"redis://:{_any(8)}4{_any(4)}@cache", "http://localhost:8080/a@b"),
    ],
    "password": [
        (f"WANDB_API_KEY = '{_any(40, _HEX)}'", "WANDB_API_KEY = os.environ['WANDB_API_KEY']"),
        (f"password: {_any(18)}7q", "password: str = field(default='')"),
        (f'"db_password": "{_any(9)}5x"', '"password": "changeme123"'),
        (f"export MY_TOKEN={_any(30)}1a\n", "export MY_TOKEN=$(cat file)\n"),
        (f"aws_secret_access_key = {_any(38)}/4k", "aws_secret_access_key = YOUR_SECRET_ACCESS_KEY_1"),
        (f"api_key='{_any(10)}9{_any(6)}'", "tokenizer = 'Qwen2.5-Coder-1.5B'"),
        (f"secret_key_2='{_any(10)}9{_any(6)}b'", "eos_token='<|endoftext|>'"),
        (f'auth_token = "{_any(10)}3{_any(6)}c"', "token_path = 'cache/tokens-2026-11.json'"),
    ],
}
_PERSONAL_EXAMPLES = {
    "e-mail address": [
        ("write to anna.schmidt+lm@uni-ulm.de.", "write to anna@example.org, you@yourhost.de, a@b, x @ y.T"),
        ("<j_doe7@mail.firm.co.uk>", "@pytest.mark.slow and matrix@vector"),
    ],
    "phone number": [
        ("call +49 30 901820-33 or", "a +49 and x+49 30 901820"),
        ("+1 (415) 826-9370", "+1 (415)"),
        ("'+4915178302946'", "x = 3+4915178302946"),
        ("(415) 826-9370", "f(415) 826-9370"),
    ],
    "IBAN": [
        ("DE89 3704 0044 0532 0130 00", "DE88 3704 0044 0532 0130 00"),
        ("FR1420041010050500013M02606", "AB12CDEF3456"),
    ],
    "card number": [
        ("378734493671000", "378734493671001"),
        ("5425233430109903", "54252334301099035425"),
        ("6011-0009-9013-9424", "1.6011000990139424"),
    ],
}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secret_scan, "_ROUNDS", 1)


def _found(text: str | bytes, step: int = 1 << 30, personal: Sequence[str] = ()) -> list[tuple[int | None, str]]:
    data, scan = text.encode() if isinstance(text, str) else text, SecretScan(Path("nowhere"), personal)
    for at in range(0, len(data), step):
        scan.feed("file", data[at : at + step])
    try:
        scan.finish()
    except SecretsFound as error:
        return [(problem.line, problem.key) for problem in error.problems]
    return []


def test_every_detector_has_examples() -> None:
    assert _EXAMPLES.keys() | set(PERSONAL) == {kind for kind, _, _ in secret_scan._detectors().all}
    assert all(count >= 1 for count in map(len, _EXAMPLES.values()))


@pytest.mark.parametrize("kind", _EXAMPLES)
def test_a_secret_is_found_and_what_only_looks_like_it_is_not(kind: str) -> None:
    for secret, plain in _EXAMPLES[kind]:
        for form in (f"a\nb\n{secret}\n", f"a\r\nb\r\n{secret}\r\n", f"a\nb\n# {secret}\n"):
            assert _found(form) == [(3, kind)], secret
        assert not _found(f"a\n{plain}\n"), plain
        inner = json.dumps({"text": f"a = 1\n{secret}\nb"})
        assert _found(inner) == [(1, kind)], inner


@pytest.mark.parametrize("kind", PERSONAL)
def test_personal_data_are_found_on_request(kind: str) -> None:
    for value, plain in _PERSONAL_EXAMPLES[kind]:
        inner = json.dumps({"text": f"a = 1\n{value}\nb"})
        for form in (f"a\nb\n{value}\n", f"\n\nsee {value}, and so on\n", f"\n\n{inner}"):
            assert _found(form, personal=PERSONAL) == _found(form, personal=[kind]) == [(3, kind)], form
            assert not _found(form), form
        assert not _found(f"a\n{plain}\n", personal=PERSONAL), plain


def test_a_refusal_counts_personal_data_apart_and_may_be_allowed(tmp_path: Path) -> None:
    file = tmp_path / "train-00000.jsonl"
    file.write_text(f"mail anna.schmidt@uni-ulm.de\nt = 'ghp_{_any(36)}'\n+49 30 901820-33\n")
    with pytest.raises(SecretsFound, match=r"it holds 1 secret and 2 personal values: .*:2 .*:1 .*:3 ") as refused:
        require_no_secrets(tmp_path, [file], PERSONAL)
    assert "anna" not in str(refused.value) + repr(refused.value.problems)
    refused.value.allow()
    require_no_secrets(tmp_path, [file], PERSONAL)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_other_encodings_are_read(encoding: str) -> None:
    assert _found(f"TOKEN\r\nhf_{_any(34)}\r\n".encode(encoding)) == [(2, "Hugging Face token")]


def test_pieces_of_any_size_give_the_same() -> None:
    filler = "x = 1  # nothing here\n" * 120_000
    text = "".join(f"{filler[: 22 * _DICE.randrange(50, 120_000)]}t = 'ghp_{_any(36)}'\n" for _ in range(8))
    whole = _found(text)
    assert len(whole) == 8
    for step in (999, 65_536, 1 << 20, (1 << 20) + 17):
        assert _found(text, step) == whole


def test_weights_are_not_looked_into() -> None:
    assert not _found(b"\0\1\2" * 999 + f"ghp_{_any(36)}".encode())


def test_code_with_a_secret_is_refused_until_it_is_allowed(tmp_path: Path) -> None:
    secret = f"ghp_{_any(36)}"
    (tmp_path / "train.py").write_text(f"import os\nTOKEN = '{secret}'\n")
    with Path("/dev/null").open("wb") as sink:
        with pytest.raises(SecretsFound) as refused:
            pack(Code(str(tmp_path)), sink)
        assert f"{tmp_path}/train.py:2 (GitHub token)" in str(refused.value)
        assert "--allow-secrets" in refused.value.remedy
        assert secret not in str(refused.value) + repr(refused.value.problems)
        assert refused.value.allow().startswith("1 value may be uploaded")
        kept = (tmp_path / ALLOWED_NAME).read_text()
        assert secret not in kept
        assert kept.endswith("GitHub token train.py\n")
        (tmp_path / "moved.py").write_text(f"# {secret}")
        assert pack(Code(str(tmp_path)), sink)[0].files == 2
        (tmp_path / "train.py").write_text(f"other = 'ghp_{_any(36)}'\n")
        with pytest.raises(SecretsFound, match=r"train\.py:1"):
            pack(Code(str(tmp_path)), sink)


def test_inputs_are_scanned_across_files(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "a.jsonl").write_text(json.dumps({"text": f"k = hf_{_any(34)}"}) + "\n")
    (folder / "b.jsonl").write_text("{}\n" + json.dumps({"text": f"login\nglpat-{_any(20)}"}) + "\n")
    with pytest.raises(
        SecretsFound, match=r"2 secrets: .*a\.jsonl:1 \(Hugging Face token\), .*b\.jsonl:2 \(GitLab token\)"
    ):
        require_no_secrets(folder, sorted(folder.iterdir()))
    os.mkfifo(folder / "pipe")
    (folder / "link").symlink_to("a.jsonl")
    (folder / "weights.bin").write_bytes(bytes(99) + f"npm_{_any(36)}".encode())
    require_no_secrets(folder, [folder / name for name in ("link", "pipe", "weights.bin")])


def test_hundreds_of_findings_end_the_scan(tmp_path: Path) -> None:
    scan = SecretScan(tmp_path)
    with pytest.raises(SecretsFound, match=r"it holds 200 secrets: .* and 180 more"):
        scan.feed("fixtures.py", "".join(f"AKIA{_any(16, _UPPER)}\n" for _ in range(60_000)).encode())


@pytest.mark.nightly
@pytest.mark.parametrize("package", ["", "botocore", "sqlalchemy", "moto"])
def test_false_alarms_are_rare(package: str) -> None:
    """At most one in 10,000 lines of the standard library, with its tests and their keys, and of large packages."""
    root = Path(sysconfig.get_path("purelib")) / package if package else Path(sysconfig.get_path("stdlib"))
    scan, lines = SecretScan(root), 0
    for path in sorted(root.rglob("*")):
        if path.suffix in {".py", ".json", ".txt", ".pem", ".cfg"} and (package or "site-packages" not in path.parts):
            data = path.read_bytes()
            lines += data.count(b"\n")
            scan.feed(path.relative_to(root).as_posix(), data)
    found = 0
    try:
        scan.finish()
    except SecretsFound as error:
        found = len(error.problems)
    assert lines > 100_000
    assert found <= lines / 10_000, f"{found} in {lines:,} lines"
