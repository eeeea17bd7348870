"""What tests of the daemon's cycle share: its ports under a lease, a clock that a test moves, a log that remembers."""

import datetime as dt
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from platforms.artifacts.directory import DirectoryStore
from scheduler.service.outside.calls import Calls
from scheduler.service.outside.ports import Policy, Ports
from scheduler.store import lease
from scheduler.store.engine import Database
from tests.lab.clocks import HandClock

_Answer = TypeVar("_Answer")


@dataclass
class Journal:
    """A log that remembers what was said: the events, and the events with their fields."""

    said: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)

    def __getattr__(self, level: str) -> Any:
        def note(event: str, **fields: Any) -> None:
            self.said.append(event)
            self.lines.append(f"{level} {event} {fields}")

        return note


class AtOnce(Calls):
    """Calls that are made while they are waited for, in this thread."""

    def gather(self, kind: str, work: Mapping[str, Callable[[], _Answer]]) -> dict[str, _Answer]:
        """Make them."""
        del kind
        return {name: one() for name, one in work.items()}


@pytest.fixture
def journal() -> Journal:
    """The log of ``make_ports``."""
    return Journal()


@pytest.fixture
def hand_clock() -> HandClock:
    """The clock of ``make_ports``."""
    return HandClock()


@pytest.fixture
def make_ports(database: Database, tmp_path: Path, hand_clock: HandClock, journal: Journal) -> Callable[..., Ports]:
    """Makes ports under a lease, on an artifact store in a folder and without any place, unless told otherwise."""

    def make(**fields: Any) -> Ports:
        held = lease.acquire(database, "test", 86_400)
        assert held is not None
        usual: dict[str, Any] = {
            "database": database,
            "artifacts": DirectoryStore(tmp_path / "artifacts"),
            "platforms": {},
            "pools": {},
            "clock": hand_clock,
            "policy": Policy(),
            "plan": lambda snapshot, incumbent: pytest.fail("no plan is asked for"),
            "data_prefix": lambda job: "",
            "bundle": "",
            "calls": Calls(10.0),  # of every cycle: under load nothing is late but what hangs
            "log": journal,
            "epoch": held.epoch,
        }
        return Ports(**{**usual, **fields})

    return make


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate of localhost that signs itself, with its key, in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    begin = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(begin)
        .not_valid_after(begin + dt.timedelta(days=36_500))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    file = tmp_path_factory.mktemp("tls") / "both.pem"
    no_password = serialization.NoEncryption()
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, no_password)
    file.write_bytes(private + signed.public_bytes(serialization.Encoding.PEM))
    return file
