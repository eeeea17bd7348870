"""A training that is killed again and again, also while it saves, ends with the bits of one that was left alone."""

from collections.abc import Callable

import pytest

from tests.lab.desk import Desk
from tests.lab.storm import STEPS_BETWEEN, weather


@pytest.mark.parametrize(
    ("kills", "options"),
    [(20, ("--lora", "4", "--dropout", "0.1")), (8, ("--background-saves", "on"))],
    ids=["lora", "full in the background"],
)
def test_kills_at_any_moment_change_no_bit(
    make_desk: Callable[..., Desk], kills: int, options: tuple[str, ...]
) -> None:
    whole, stormy = (make_desk(name, *options, "--report-every", "1", target=160) for name in ("whole", "stormy"))
    assert whole.run().codes == [0]
    told, torn, began = weather(stormy, kills)
    assert torn, "and no save was ever cut"
    assert began[-1] > STEPS_BETWEEN, "and none was ever gone on from"
    assert all(len(losses) == 1 for losses in told.values()), "a step done again has the same loss"
    assert [next(iter(losses)) for _, losses in sorted(told.items())] == [
        loss for _, loss in whole.losses() if loss is not None
    ]
    assert stormy.state() == whole.state()
