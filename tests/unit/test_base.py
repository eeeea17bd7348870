"""Which model is trained: a folder in full, a name on the Hub as it stands, and nothing that is neither."""

from pathlib import Path

import pytest

from jobs.payload.trainers.tuning.base import find_base
from jobs.payload.trainers.tuning.errors import TrainingRefused


@pytest.mark.parametrize("name", ["gpt2", "deepseek-ai/deepseek-coder-1.3b-base"])
def test_names_on_the_hub_are_left_to_libraries(name: str) -> None:
    assert find_base(name) == name


@pytest.mark.parametrize("name", ["./base", "../nowhere", "~/base", "/nowhere/base", "models/deepseek/base"])
def test_a_folder_that_is_not_there_is_told(name: str) -> None:
    with pytest.raises(TrainingRefused, match=r"there is no model in .*: no such folder"):
        find_base(name)


def test_a_folder_is_named_in_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "config.json").write_text("{}")
    (tmp_path / "base" / "pytorch_model.bin").write_bytes(b"weights")
    monkeypatch.chdir(tmp_path)
    assert find_base("base") == str(tmp_path / "base")
