"""What comes back is hostile: too many, too large, packed, misnamed or endless things are refused or cut, and said."""

import gzip
import hashlib
import tarfile
from pathlib import Path
from typing import Any

import pytest

from platforms.base import Refused, SessionState
from platforms.kaggle import adapter
from platforms.kaggle.api import wire
from platforms.kaggle.kernel.bootstrap import _PRINTED_BYTES_MAX
from platforms.kaggle.session import observer
from tests.lab.faults import Fault
from tests.lab.patience import until

Account = Any
KEY = "uff-ufm-0001"
BOMB = 32 << 20


def ended(account: Account, monkeypatch: pytest.MonkeyPatch, *planted: str) -> tuple[Any, Path]:
    """End a session that left honest files, and ``planted`` ones beside; return its session and working folder."""
    account.adapter().launch(account.request(KEY, "finish"), account.now())
    account.until(KEY, SessionState.ENDED)
    session = account.place.version("alice", KEY, "v1")[1].session
    working = session.terms.folder / "kaggle" / "working"
    honest = session.output_files()
    monkeypatch.setattr(session, "output_files", lambda: [*honest, *planted])
    return session, working


def blob(working: Path, data: bytes) -> str:
    """Plant a blob under its right name."""
    name = f"store/jobs/ufm/blobs/{hashlib.sha256(data).hexdigest()}"
    (working / name).write_bytes(data)
    return name


def test_an_archive_is_never_unpacked(account: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bomb under an honest name is stored as it is; nothing here opens it."""
    _, working = ended(account, monkeypatch)
    packed = gzip.compress(bytes(BOMB))
    name = blob(working, packed)
    monkeypatch.undo()
    account.adapter().collect(KEY, account.store, account.now())
    assert account.store.size(name.removeprefix("store/")) == len(packed) < BOMB / 100


@pytest.mark.parametrize("cap", ["file_bytes", "total_bytes"])
def test_a_file_above_the_limit_is_refused_once_and_named(
    account: Account, monkeypatch: pytest.MonkeyPatch, cap: str
) -> None:
    ended(account, monkeypatch)
    caps = adapter.Caps(**{cap: 10})
    monkeypatch.setattr("platforms.kaggle.adapter.Caps", lambda: caps)
    with pytest.raises(Refused, match=r"jobs/ufm/blobs/\w{64}: HTTP 413: the output file is larger than") as refused:
        account.adapter().collect(KEY, account.store, account.now())
    assert refused.value.permanent
    account.adapter().collect(KEY, account.store, account.now())
    assert list(account.store.keys("")) == []


def test_a_report_that_is_no_report_is_too_large(account: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    _, working = ended(account, monkeypatch)
    (working / f"store/runs/{KEY}/lane-0/result.json").write_bytes(bytes((1 << 20) + 1))
    with pytest.raises(Refused, match=r"result\.json: HTTP 413"):
        account.adapter().collect(KEY, account.store, account.now())


def test_an_answer_that_unpacks_to_more_than_it_may_be_is_cut(
    account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compression on the way is no way around the limit."""
    ended(account, monkeypatch)
    squeezed = gzip.compress(bytes(BOMB))

    def bomb(handler: Any, path: str, *, interrupt: bool = False) -> None:
        del path, interrupt
        handler.send_response(200)
        handler.send_header("Content-Encoding", "gzip")
        handler.send_header("Content-Length", str(len(squeezed)))
        handler.end_headers()
        handler.wfile.write(squeezed)

    caps = adapter.Caps(file_bytes=1 << 20)
    monkeypatch.setattr(adapter, "Caps", lambda: caps)
    monkeypatch.setattr("platforms.emulators.kaggle.server.Handler.send_output", bomb)
    with pytest.raises(Refused, match="larger than 1048576 bytes"):
        account.adapter().collect(KEY, account.store, account.now())


def test_a_download_that_breaks_off_goes_on_where_it_was(account: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    _, working = ended(account, monkeypatch)
    data = bytes(range(256)) * 4_000
    name = blob(working, data)
    monkeypatch.undo()
    account.place.faults.add("Output", *[Fault.DROP_AFTER_COMMIT] * 12)
    account.adapter().collect(KEY, account.store, account.now())
    assert account.store.read(name.removeprefix("store/")) == data


def test_an_endless_log_costs_no_result(account: Account) -> None:
    """The bootstrap program cuts what a trainer prints: Kaggle hands the log out inside every answer about outputs."""
    flood = "import sys\nfor _ in range(400): sys.stdout.write('x' * 39_999 + '\\n')"
    account.adapter().launch(account.request(KEY, "finish", command=["{python}", "-c", flood]), account.now())
    assert account.settle(KEY).detail == "complete"
    assert account.result(KEY)["outcome"] in {"finished", "failed"}
    output = b"".join(account.adapter().logs(KEY, 0, 1 << 30)).decode()
    assert f"output beyond {_PRINTED_BYTES_MAX} bytes is dropped" in output[-500:]
    assert len(output) < _PRINTED_BYTES_MAX + 100_000


def test_a_log_larger_than_an_answer_may_be_ends_the_session_all_the_same(
    account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A payload that goes around the bootstrap can hide its own result, and nothing else."""
    account.adapter().launch(account.request(KEY, "wait"), account.now())
    until(lambda: "resumed from" in account.output(KEY), "resumed from to be printed")
    monkeypatch.setattr(wire, "_ANSWER_BYTES_MAX", 300)
    session = account.place.sessions()[0]
    session._say("stdout", "y" * 1_000)
    account.adapter().stop(KEY, account.now(), force=True)
    found = account.until(KEY, SessionState.ENDED)
    assert found.ended is not None
    with pytest.raises(Refused, match="the output of uff-ufm-0001: HTTP 413: the answer is larger than 300 bytes"):
        account.adapter().collect(KEY, account.store, account.now())
    account.adapter().collect(KEY, account.store, account.now())  # said once
    assert "resumed from nothing" in account.output(KEY)


def test_a_live_log_is_cut_like_a_finished_one(account: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observer, "_KEPT_BYTES", 2_000)
    flood = "print(*range(2_000), sep='\\n', flush=True); import signal; signal.pause()"
    account.adapter().launch(account.request(KEY, "wait", command=["{python}", "-c", flood]), account.now())
    until(lambda: "is dropped" in account.output(KEY), "is dropped to be printed")
    live = account.output(KEY)
    assert len(live) < 2_100
    account.adapter().stop(KEY, account.now(), force=True)
    account.until(KEY, SessionState.ENDED)
    assert account.output(KEY) == live


def test_no_secret_lies_in_what_was_packed(account: Account) -> None:
    """Uploaded archives are compressed, so they are looked into; databases of a whole life are in the crash tests."""
    account.adapter().launch(account.request(KEY, "finish"), account.now())
    account.settle(KEY)
    secret = account.place.key.encode()
    archives = list((account.folder / "emulator" / "datasets").rglob("*.bin"))
    assert archives
    for archive in archives:
        with tarfile.open(archive) as opened:
            for member in opened.getmembers():
                content = opened.extractfile(member)
                assert content is None or secret not in content.read(), member.name
