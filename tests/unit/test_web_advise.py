"""The page of advice: shipped models alone, whatever a visitor writes into its form."""

import pytest
from jinja2 import Environment, PackageLoader, StrictUndefined

from scheduler.web.pages import MACHINES, advice


def test_the_form_answers_for_every_machine() -> None:
    found = advice("deepseek-coder-6.7b", MACHINES, "", 2048, 20e6)
    assert [f"{one.card.name} x{one.devices}" for one in found["found"]] == [
        "5060ti x1", "5060ti x2", "4090 x1", "5090 x1", "h100 x1",
    ]  # fmt: skip
    assert found["picture"].startswith("<svg")
    assert found["trouble"] == ""


@pytest.mark.parametrize("model", ["/etc/passwd", "../config.json", ".", "<script>alert(1)</script>", ""])
def test_no_visitor_names_a_file(model: str) -> None:
    found = advice(model, "4090", "", 2048, 1e6)
    assert found["found"] == []
    assert "no such model is shipped" in found["trouble"]


def test_an_unknown_card_is_told_and_an_unknown_method_is_any() -> None:
    assert "no such card" in advice("qwen2.5-3b", "nonsense", "", 2048, 1e6)["trouble"]
    assert advice("qwen2.5-3b", "4090", "magic", 2048, 1e6)["found"][0].best is not None
    assert len(advice("qwen2.5-3b", ",".join(["4090"] * 50), "", 2048, 1e6)["found"]) == 8


def test_what_was_asked_is_shown_as_text() -> None:
    pages = Environment(loader=PackageLoader("scheduler.web"), autoescape=True, undefined=StrictUndefined)
    block = pages.get_template("advise.html").blocks["main"]
    context = pages.get_template("advise.html").new_context(advice("<script>", "4090", "", 2048, 1e6))
    written = "".join(block(context))
    assert "<script>" not in written
    assert "&lt;script&gt;" in written
