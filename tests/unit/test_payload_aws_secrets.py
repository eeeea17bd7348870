"""Secrets of a session from AWS: whom it asks, as whom, and what it makes of the answers."""

from __future__ import annotations

import json
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest

from jobs.payload.deadline import HttpAnswer
from jobs.payload.lane.secret_values import SecretRefusal, SecretStore, fetch

if TYPE_CHECKING:
    from pathlib import Path

SSM = SecretStore("ssm", "/uff/", "eu-central-1", "")
MANAGER = SecretStore("secretsmanager", "uff-", "cn-north-1", "")
CONTAINER = "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"


class Aws:
    """Answers in the order that they are given; keeps what was asked, with the seconds it would be waited for."""

    def __init__(self, *answers: Any) -> None:
        self.answers, self.asked, self.waits = list(answers), list[urllib.request.Request](), set[float]()

    def __call__(self, request: urllib.request.Request, seconds: float, bytes_max: int) -> HttpAnswer:
        """Stand in for exchange."""
        assert bytes_max == 4 << 20
        self.asked.append(request)
        self.waits.add(seconds)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, HttpAnswer):
            return answer
        return HttpAnswer(200, {}, answer if isinstance(answer, bytes) else json.dumps(answer).encode())


def refused(code: int, said: str = "no") -> HttpAnswer:
    return HttpAnswer(code, {}, said.encode())


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let AWS answer so, to a session that has keys in its environment."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIA")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "key")
    monkeypatch.delenv("AWS_SESSION_TOKEN", raising=False)

    def run(*those: Any) -> Aws:
        made = Aws(*those)
        monkeypatch.setattr("jobs.payload.lane.secret_values.exchange", made)
        return made

    return run


def test_parameters_are_asked_for_at_once_and_secrets_one_by_one(answers: Any) -> None:
    entries = [{"Name": f"/uff/{name}", "Value": name.lower()} for name in ("B", "A")]
    aws = answers({"Parameters": entries})
    assert fetch(SSM, ["A", "B"]) == {"A": "a", "B": "b"}
    (asked,) = aws.asked
    assert asked.full_url == "https://ssm.eu-central-1.amazonaws.com/"
    assert json.loads(asked.data) == {"Names": ["/uff/A", "/uff/B"], "WithDecryption": True}
    assert asked.get_header("X-amz-target") == "AmazonSSM.GetParameters"
    assert aws.waits == {30}
    aws = answers({"SecretString": "a"}, {"SecretString": "b"})
    assert fetch(MANAGER, ["A", "B"]) == {"A": "a", "B": "b"}
    assert [json.loads(one.data) for one in aws.asked] == [{"SecretId": "uff-A"}, {"SecretId": "uff-B"}]
    assert aws.asked[0].full_url == "https://secretsmanager.cn-north-1.amazonaws.com.cn/"


@pytest.mark.parametrize(
    ("store", "answer", "why"),
    [
        (SSM, {"Parameters": [{"Name": "/uff/A", "Value": "a"}]}, r"no parameter /uff/B in eu.* --name /uff/B$"),
        (SSM, {}, "no parameter /uff/A, /uff/B in"),
        (SSM, [], "is not a JSON object"),
        (SSM, b"<html>", "the answer is not JSON"),
        (SSM, refused(400, "AccessDenied"), "HTTP 400 AccessDenied.*execution role read it"),
        (MANAGER, {"SecretBinary": "YQ=="}, "uff-A is not a text"),
    ],
)
def test_an_answer_that_will_not_change_is_told_at_once(
    answers: Any, store: SecretStore, answer: Any, why: str
) -> None:
    aws = answers(answer)
    with pytest.raises(SecretRefusal, match=why):
        fetch(store, ["A", "B"])
    assert len(aws.asked) == 1


@pytest.mark.parametrize("trouble", [lambda: refused(500), lambda: refused(400, "Throttling"), lambda: OSError("gone")])
def test_passing_trouble_is_asked_three_times(answers: Any, trouble: Any) -> None:
    found = {"Parameters": [{"Name": "/uff/A", "Value": "a"}]}
    answers(trouble(), trouble(), found)
    assert fetch(SSM, ["A"]) == {"A": "a"}
    aws = answers(trouble(), trouble(), trouble(), found)
    with pytest.raises(OSError, match=r"HTTP (500|400)|gone"):
        fetch(SSM, ["A"])
    assert len(aws.answers) == 1


def test_the_role_of_a_container_gives_keys_to_who_proves_itself(
    answers: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    (tmp_path / "proof").write_text("proof\n")
    monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", str(tmp_path / "proof"))
    with pytest.raises(SecretRefusal, match=f"no credentials of its role: {CONTAINER} is not set"):
        fetch(SSM, ["A"])
    monkeypatch.setenv(CONTAINER, "/role")
    keys = {"AccessKeyId": "ASIA", "SecretAccessKey": "key", "Token": "token"}
    aws = answers(keys, {"Parameters": [{"Name": "/uff/A", "Value": "a"}]})
    assert fetch(SSM, ["A"]) == {"A": "a"}
    role, secret = aws.asked
    assert (role.full_url, role.get_header("Authorization")) == ("http://169.254.170.2/role", "proof")
    assert secret.get_header("X-amz-security-token") == "token"
    assert "Credential=ASIA/" in secret.get_header("Authorization")
    answers({"AccessKeyId": "ASIA"})
    with pytest.raises(SecretRefusal, match="credentials of the session's role is incomplete"):
        fetch(SSM, ["A"])
