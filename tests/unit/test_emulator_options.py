"""The options that every emulator has."""

import pytest

from platforms.emulators.program import clock_of, options_of


@pytest.mark.parametrize("epoch", ["1795849388.0", "1795849388", "2026-11-28T07:03:08Z"])
def test_an_epoch_is_a_number_of_seconds_or_a_date(epoch: str) -> None:
    options = options_of("any", None, "a folder").parse_args(["folder", "--epoch", epoch, "--origin", "0"])
    assert clock_of(options).epoch == 1_795_849_388


def test_an_epoch_that_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        options_of("any", None, "a folder").parse_args(["folder", "--epoch", "soon"])
    assert "argument --epoch" in capsys.readouterr().err
