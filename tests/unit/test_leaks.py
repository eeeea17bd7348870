"""What of a test set stands in a text is found, however it was rewritten; what only looks like it is not."""

from __future__ import annotations

import pytest

from jobs.corpus.leaks import OF_EXCERPTS, ItemIndex, text_of
from tests.lab.leak_pairs import PROSE, quality

TEXTS = {f"item-{number}": text for number, (text, _) in enumerate(PROSE)}


def test_leaked_items_are_told_from_others() -> None:
    precision, recall, wrong = quality()
    assert precision >= 0.98, wrong
    assert recall >= 0.97, wrong


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (PROSE[3][0], "exact"),
        (PROSE[3][0].upper().replace(" ", "\n"), "exact"),
        (f"Before. {PROSE[3][0]} After.", "passage"),
        (" ".join(PROSE[3][0].split()[:22]), "passage"),
    ],
)
def test_it_is_said_how_an_item_stands_there(text: str, kind: str) -> None:
    assert ItemIndex(TEXTS).seen_in([("a.jsonl", "nothing of it"), ("b.jsonl", text)]) == {
        "item-3": {"kind": kind, "source": "b.jsonl"}
    }


def test_short_items_count_when_they_are_the_whole_text() -> None:
    index = ItemIndex({"one": "What is 2 + 2?", "two": "Hello"})
    assert index.seen_in([("a", "what is 2 2"), ("b", "She said hello to me")]) == {
        "one": {"kind": "exact", "source": "a"}
    }


def test_other_scripts_are_normalised() -> None:
    item = "Schreibe «einen» Brief an die Großmutter, in dem du für den Kuchen dankst"
    changed = "SCHREIBE „EINEN“ BRIEF AN DIE GROSSMUTTER IN DEM DU FÜR DEN KUCHEN DANKST".replace("GROSSM", "großm")
    assert ItemIndex({"one": item}).seen_in([("a", changed)]) == {"one": {"kind": "exact", "source": "a"}}


def test_what_many_texts_or_items_hold_is_boilerplate() -> None:
    head = "Answer the question below in one short sentence and do not explain how you found the answer to it"
    items = {str(number): f"{head}. Question {number}: why is {number * number} odd?" for number in range(8)}
    assert not ItemIndex(items).seen_in([("a", f"{head}. Question 99: who was it?")])
    one = ItemIndex({"one": f"{head}. {PROSE[0][0][:120]}"})
    assert one.seen_in([("a", head)])
    assert not one.seen_in([(str(number), f"{head}. {number}") for number in range(30)])
    assert one.seen_in([*((str(number), f"{head}. {number}") for number in range(30)), ("b", PROSE[0][0])])


def test_excerpts_of_a_corpus_count_when_most_of_them_was_seen() -> None:
    index = ItemIndex(TEXTS, OF_EXCERPTS)
    words = PROSE[3][0].split()
    assert not index.seen_in([("a", " ".join(words[: len(words) // 2]))])
    assert index.seen_in([("a", " ".join(words[: len(words) * 19 // 20]))])


def test_all_texts_of_an_item_count_but_what_names_it() -> None:
    record = {
        "id": "a",
        "cluster": "b",
        "domain": "c",
        "messages": [{"role": "user", "content": "Hi"}],
        "n": 3,
        "x": None,
    }
    assert text_of(record).split() == ["user", "Hi"]


def test_items_that_a_set_has_several_times_are_found_too() -> None:
    items = {**TEXTS, **{f"again-{number}": PROSE[3][0] for number in range(5)}}
    assert len(ItemIndex(items).seen_in([("a", f"So: {PROSE[3][0]}")])) == 6


def test_a_leak_is_found_after_any_number_of_other_texts_that_share_some_words() -> None:
    words = PROSE[3][0].split()
    others = [" ".join([*words[n % 30 : n % 30 + 6 + n // 30], f"and {n}"]) for n in range(100)]
    rows = [(str(number), text) for number, text in enumerate(others)]
    assert ItemIndex(TEXTS).seen_in([*rows, ("leaky", PROSE[3][0])]) == {"item-3": {"kind": "exact", "source": "leaky"}}
