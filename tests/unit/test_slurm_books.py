"""What sshare tells of an account, of which the table is one that a real Slurm 22.05 printed."""

import pytest

from platforms.slurm.commands import Association, NoBooks, reading, tightest

NONE = "cpu=0,mem=0,energy=0,node=0,billing=0,fs/disk=0,vmem=0,pages=0,gres/gpu=0"
USED = "cpu=1,mem=100,energy=0,node=1,billing=1,fs/disk=0,vmem=0,pages=0,gres/gpu=2"
RUNS = "cpu=9,mem=900,energy=0,node=9,billing=9,fs/disk=0,vmem=0,pages=0,gres/gpu=18"
TABLE = f"""\
root|||{USED}|{RUNS}
 root|root||{NONE}|{NONE}
 lab||gres/gpu=500|{USED}|{RUNS}
  uff||cpu=9,gres/gpu=100|{USED}|{RUNS}
   uff|root||{USED}|{RUNS}
  other||gres/gpu=5|{NONE}|{NONE}
"""


def test_of_an_account_and_all_above_it_the_one_that_leaves_least_counts() -> None:
    assert tightest(TABLE, "uff", "root") == Association(100, 2, 18)
    assert tightest(TABLE.replace("gpu=500", "gpu=30"), "uff", "root") == Association(30, 2, 18)
    own = tightest(TABLE.replace(f"uff|root||{USED}", f"uff|root|gres/gpu=19|{USED}"), "uff", "root")
    assert own is not None
    assert own.left == -1
    assert tightest(TABLE, "root", "root") is None


@pytest.mark.parametrize(
    ("table", "account", "user"),
    [(TABLE, "uff", "somebody"), (TABLE, "nothing", "root"), (TABLE, "", "root"), ("uff|root|gres", "uff", "root")],
)
def test_what_names_no_single_association_is_no_answer(table: str, account: str, user: str) -> None:
    with pytest.raises(NoBooks):
        tightest(table, account, user)


def test_seconds_are_those_of_sessions_with_all_their_devices_in_whole_minutes() -> None:
    told = reading(Association(75, 2, 18), 2, 1_000, 1.0)
    assert (told.limit_seconds, told.used_seconds, told.reserved_seconds) == (37 * 60, 2 * 60, 9 * 60)
    assert told.shared
    assert reading(Association(75, 2, 18), 1, 1_000, 60.0).left_seconds == (75 - 3 - 18) * 3_600
    huge = reading(Association(10**15, 0, 0), 1, 1_000, 1.0)
    assert huge.limit_seconds == 1_000 * (huge.end - huge.start)
