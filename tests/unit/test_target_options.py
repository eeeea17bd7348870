"""What people write as options of a target, and what is said of it where it cannot be."""

from pathlib import Path

import pytest

from platforms.targets.base import TargetContext, TargetError, open_target
from platforms.targets.folder import FolderTarget
from platforms.targets.reach import Ssh

CONTEXT = TargetContext(Path, str)


@pytest.mark.parametrize(
    ("kind", "options", "said"),
    [
        ("ftp", {}, "there is no kind ftp"),
        ("directory", {}, "missing: path"),
        ("directory", {"path": "models"}, "path = 'models'"),
        ("directory", {"path": "/m", "host": "griffith"}, "unknown setting host"),
        ("directory", {"path": "/m", "health_time": "soon"}, "health_time"),
        ("directory", {"path": "/m", "health_time": "0s"}, "health_time = 0 s"),
        ("directory", {"path": "/m", "restart": "x" * 3_000}, "restart = "),
        ("ssh", {"path": "/m"}, "missing: host"),
        ("ssh", {"path": "/m", "host": "-oProxyCommand=touch"}, "host = "),
        ("ssh", {"path": "/m; rm -rf /", "host": "griffith"}, "path = "),
        ("ssh", {"path": "/m/../../etc", "host": "griffith"}, "path = '/m/../../etc'"),
        ("ssh", {"path": "/m", "host": "griffith", "port": "22; true"}, "port = "),
        ("ssh", {"path": "/m", "host": "griffith", "ssh_config": "a b"}, "ssh_config = "),
        ("s3", {"bucket": "b"}, "missing: region"),
        ("s3", {"bucket": "b", "region": "r", "prefix": "/x"}, "prefix = "),
        ("s3", {"bucket": "a b", "region": "r"}, "bucket = 'a b'"),
        ("vllm", {"url": "http://127.0.0.1:1", "base": "b", "path": "adapters"}, "path = "),
    ],
)
def test_a_wrong_option_is_named_with_what_would_do(kind: str, options: dict[str, str], said: str) -> None:
    with pytest.raises(TargetError) as found:
        open_target("griffith", kind, options, CONTEXT)
    assert said in str(found.value)
    assert "target griffith" in str(found.value)
    assert found.value.remedy


def test_a_host_is_trusted_and_asked_only_as_the_options_say() -> None:
    options = {"host": "deploy@griffith", "path": "~/models", "known_hosts": "/etc/known", "identity": "GRIFFITH_KEY"}
    target = open_target("griffith", "ssh", options, CONTEXT)
    assert isinstance(target, FolderTarget)
    assert target.path == "models"  # where a shell begins there
    assert isinstance(target.reach, Ssh)
    words = " ".join(target.reach.options)
    for wanted in ("BatchMode=yes", "StrictHostKeyChecking=yes", "UserKnownHostsFile=/etc/known", "ConnectTimeout=10"):
        assert wanted in words
