"""Options of the fine-tuning program that do not go together are refused before anything is loaded."""

import pytest

from jobs.payload.trainers.tuning.options import read_options


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--precision", "fp8"), "--precision fp8 is for a frozen base in 16 bits"),
        (("--precision", "fp8", "--use-4bit"), "neither --use-4bit nor --zero"),
        (("--precision", "fp8", "--lora", "8", "--shard", "on"), "--shard on: products in fp8 need whole weights"),
    ],
)
def test_fp8_is_refused_where_the_base_is_not_whole_and_frozen(
    words: tuple[str, ...], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        read_options(["--model", "m", *words])
    assert ended.value.code == 2
    assert why in capsys.readouterr().err


def test_fp8_goes_with_an_adapter() -> None:
    options = read_options(["--model", "m", "--lora", "8", "--precision", "fp8"])
    assert (options.precision, options.lora, options.bits) == ("fp8", 8, 16)
