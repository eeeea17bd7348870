"""Slurm's own accounting: a MariaDB and a slurmdbd beside the cluster of the lab, with accounts and their limits.

Debian's packages slurmdbd and mariadb-server, which .ci/services.sh installs for the nightly tests. It needs root.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from typing import TYPE_CHECKING

from tests.lab.patience import PATIENCE_SECONDS, until
from tests.lab.ports import free_port
from tests.lab.slurm import SlurmLab, missing

if TYPE_CHECKING:
    from pathlib import Path

_PROGRAMS = ("slurmdbd", "sacctmgr", "sshare", "mariadbd", "mariadb", "mariadb-install-db")
_SLURMDBD = """\
AuthType=auth/munge
AuthInfo=socket={root}/munge.socket
DbdHost={host}
DbdAddr=127.0.0.1
DbdPort={ports[0]}
SlurmUser=root
PidFile={root}/slurmdbd.pid
LogFile={root}/slurmdbd.log
StorageType=accounting_storage/mysql
CommunicationParameters=NoInAddrAny
StorageHost=127.0.0.1
StoragePort={ports[1]}
StorageUser=slurm
StoragePass=lab
StorageLoc=slurm_acct
"""
_ACCOUNTED = """\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={ports[0]}
AccountingStoragePass={root}/munge.socket
AccountingStorageTRES=gres/gpu
AccountingStorageEnforce=associations,limits,safe
PriorityType=priority/multifactor
PriorityDecayHalfLife=0
PriorityUsageResetPeriod=NONE
PriorityCalcPeriod=1
"""
_DATABASE = "CREATE USER slurm@'127.0.0.1' IDENTIFIED BY 'lab'; GRANT ALL ON slurm_acct.* TO slurm@'127.0.0.1';"


class AccountedLab(SlurmLab):
    """A cluster that enforces the limits of accounts: root has ``uff`` there, which is below ``lab``."""

    @staticmethod
    def missing() -> str:
        """Return what is not there that this cluster needs; "" for nothing."""
        gone = [name for name in _PROGRAMS if not shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin")]
        return missing() or (f"no {', '.join(gone)} (Debian: slurmdbd mariadb-server)" if gone else "")

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        ports = [free_port(), free_port()]
        self._settings = self._settings.replace(
            "AccountingStorageType=accounting_storage/none\n", _ACCOUNTED.format(root=root, ports=ports)
        )
        self._database_port = ports[1]
        books = root / "slurmdbd.conf"
        books.write_text(_SLURMDBD.format(root=root, host=self.host, ports=ports))
        books.chmod(0o600)

    def start_controller(self, *, keep_state: bool = True, off_seconds: int = 0) -> None:
        """Start the controller; before the first time its books, for without them it would not start."""
        if not self._generation:
            self._start_database()
            self.conf.write_text(self._settings)
            self._start("slurmdbd", "-D")
            until(lambda: self.say("sacctmgr", "-n", "show", "stats"), "slurmdbd")
            self.book("add", "cluster", "uff")
            self.book("add", "account", "lab")
            self.book("add", "account", "uff", "parent=lab")
            self.book("add", "user", "root", "account=uff", "defaultaccount=uff")
        super().start_controller(keep_state=keep_state, off_seconds=off_seconds)

    def book(self, *words: str) -> None:
        """Do what an administrator does of the accounts."""
        done = subprocess.run(
            ["sacctmgr", "-i", *words],
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def limit(self, minutes: int, account: str = "uff") -> None:
        """Give an account so many GPU minutes in all, -1 for no limit, and wait until the controller knows."""
        self.book("modify", "account", account, "set", f"GrpTRESMins=gres/gpu={minutes}")
        wanted = f"gres/gpu={minutes}" if minutes >= 0 else ""
        asked = ("sshare", "-n", "-P", "-A", account, "-o", "GrpTRESMins")
        until(lambda: self.say(*asked).split("\n")[0].strip() == wanted, "the limit")

    def used(self) -> int:
        """Return how many GPU minutes the account has used, as the controller knows."""
        told = self.say("sshare", "-n", "-P", "-A", "uff", "-o", "GrpTRESRaw").split("\n")[0]
        return int(told.rpartition("gres/gpu=")[2])

    def stop(self) -> None:
        """End everything."""
        super().stop()
        for name in ("slurmdbd", "mariadbd"):
            self._end(name, signal.SIGTERM)

    def _start_database(self) -> None:
        data, socket = self.root / "database", self.root / "database.socket"
        data.mkdir()
        words = ["--no-defaults", f"--datadir={data}", "--user=root"]
        install = ["mariadb-install-db", *words, "--skip-test-db"]
        subprocess.run(install, stdout=subprocess.DEVNULL, check=True, cwd="/", timeout=240)
        quick = ["--innodb-flush-log-at-trx-commit=0", "--innodb-buffer-pool-size=64M", "--skip-name-resolve"]
        near = [f"--socket={socket}", f"--port={self._database_port}", "--bind-address=127.0.0.1"]
        self._start("mariadbd", *words, *quick, *near)
        client = ["mariadb", "--no-defaults", f"--socket={socket}"]
        until(
            lambda: subprocess.run([*client, "-e", "SELECT 1"], capture_output=True, check=False).returncode == 0,
            "the database",
        )
        subprocess.run([*client, "-e", _DATABASE], check=True, timeout=PATIENCE_SECONDS)
