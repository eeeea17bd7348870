"""What holds for any corpus."""

import json
import random
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.corpus.build.build import build, clusters, held_out_clusters, normalised, signature
from jobs.corpus.mixture import mixture
from jobs.corpus.options import CorpusOptions, CorpusRule
from jobs.corpus.read.records import clean, decode, split_text
from jobs.corpus.read.sources import Files
from tests.lab.night import share

WORDS = st.sampled_from(["gpu", "memory", "api", "poem", "one", "two", "three"])
RECORDS = st.lists(
    st.fixed_dictionaries(
        {"text": st.lists(WORDS, min_size=1, max_size=4).map(" ".join)},
        optional={
            "stage": st.sampled_from(["stage_1", "stage_4", "stage_9", None]),
            "note": st.text(max_size=5),
        },
    ),
    min_size=1,
    max_size=40,
)
DOMAINS = {"urm": ["gpu", "memory"], "uim": ["api"]}
RULED = CorpusOptions(rules=(CorpusRule(key="note", domains=("{value}",)), CorpusRule(path="b*", stage="stage_2")))


@settings(max_examples=share(25))
@given(records=RECORDS, seed=st.integers(0, 3))
def test_the_order_of_records_and_sources_does_not_matter(records: list[dict[str, object]], seed: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        versions = set()
        for order in range(2):
            shuffled = random.Random(order).sample(records, len(records)) if order else records
            first, second = root / f"{order}" / "a.json", root / f"{order}" / "b.jsonl"
            first.parent.mkdir()
            first.write_text(json.dumps(shuffled))
            second.write_text("\n".join(map(json.dumps, shuffled)))
            sources = [Files(first), Files(second)]
            manifest = build(
                sources[:: -1 if order else 1], root / "out", DOMAINS, held_out_wanted=2, seed=seed, options=RULED
            )
            versions.add(manifest.version)
        assert len(versions) == 1


@settings(max_examples=share(25))
@given(records=RECORDS, share=st.floats(0, 1), fraction=st.floats(0, 0.5))
def test_every_text_is_kept_once_and_no_cluster_is_on_both_sides(
    records: list[dict[str, object]], share: float, fraction: float
) -> None:
    with tempfile.TemporaryDirectory() as name:
        source = Path(name) / "records.jsonl"
        source.write_text("\n".join(map(json.dumps, records)))
        corpus = build([Files(source)], Path(name) / "out", DOMAINS, held_out_fraction=fraction, shard_bytes=1000)
        made = mixture(corpus, "urm", "urm", share)
        sides = [
            [json.loads(line) for shard in shards for line in (folder / shard.name).read_text().splitlines()]
            for folder, shards in (
                (corpus.folder, corpus.train),
                (corpus.folder, (corpus.held_out,)),
                (made.folder, made.files),
            )
        ]
    train, held_out, mixed = sides
    assert sorted(row["text"] for row in train + held_out) == sorted({str(record["text"]) for record in records})
    assert len(train) + len(held_out) + corpus.duplicates == corpus.documents_read == len(records)
    assert {row["cluster"] for row in mixed}.isdisjoint(row["cluster"] for row in held_out)
    assert {row["id"] for row in mixed} == {row["id"] for row in train}
    longest = max((len(row["text"]) for row in train), default=0)
    if made.domain_rows:
        assert made.extra_bytes <= made.wanted_bytes + longest / 2
        reached = made.extra_bytes >= made.wanted_bytes - longest / 2
        assert reached or made.extra_rows == made.max_passes * made.domain_rows


@given(
    # Drawn one by one, hundreds of sizes would take far longer than what is done with them.
    sizes=st.builds(
        lambda seed, most, count: random.Random(seed).choices(range(1, most + 1), k=count),
        st.integers(0, 2**32),
        st.integers(1, 100),
        st.integers(200, 400),
    ),
    fraction=st.floats(0.02, 0.3),
    seed=st.integers(0, 9),
)
def test_the_held_out_share_is_near_the_wish(sizes: list[int], fraction: float, seed: int) -> None:
    names = [str(index) for index in range(len(sizes))]
    chosen = held_out_clusters(names, sizes, [()] * len(sizes), fraction, seed)
    share = sum(size for name, size in zip(names, sizes, strict=True) if name in chosen) / sum(sizes)
    assert 0.5 * fraction <= share <= 1.1 * fraction


@given(start=st.integers(0, 10_000), count=st.integers(150, 300), at=st.integers(20, 120))
def test_a_text_with_one_changed_word_is_found(start: int, count: int, at: int) -> None:
    words = [str(number) for number in range(start, start + count)]
    changed = [*words[:at], "changed", *words[at + 1 :]]
    one, other = (signature(normalised(" ".join(text))) for text in (words, changed))
    assert clusters([one, other]) == [0, 0]


@given(
    st.builds(lambda seed, count: random.Random(seed).sample(range(10_000), count), st.integers(0), st.integers(40, 80))
)
def test_texts_without_a_common_phrase_are_not_alike(numbers: list[int]) -> None:
    words = [str(number) for number in numbers]
    one, other = (signature(normalised(" ".join(text))) for text in (words, words[::-1]))
    assert clusters([one, other]) == [0, 1]


@given(st.text(max_size=300), st.integers(1, 50))
def test_cut_texts_join_to_the_whole(text: str, limit: int) -> None:
    assert "".join(part for _, part in split_text(text, limit)) == text


@given(st.binary(max_size=200))
def test_any_bytes_become_clean_text(data: bytes) -> None:
    text, _, _ = clean(decode(data).text)
    assert text.encode("utf-8").decode("utf-8") == text
    assert not set(text) & set("\x00\x07\r\x7f")


@given(st.text(st.characters(codec="utf-8"), max_size=100))
def test_utf8_is_read_as_it_is(text: str) -> None:
    assert decode(text.encode("utf-8")).text == text.removeprefix("\ufeff")


@given(seed=st.integers(0, 50))
def test_a_cluster_larger_than_the_held_out_share_stays_in_training(seed: int) -> None:
    names = [str(index) for index in range(100)]
    chosen = held_out_clusters(names, [1000, *[1] * 99], [()] * 100, 0.02, seed)
    assert "0" not in chosen
    assert 20 <= len(chosen) <= 24


@given(
    sizes=st.lists(st.integers(1, 100), min_size=2, max_size=300),
    fraction=st.floats(0.01, 0.5),
    wanted=st.integers(0, 100),
    seed=st.integers(0, 9),
)
def test_more_clusters_are_held_out_only_to_reach_their_number(
    sizes: list[int], fraction: float, wanted: int, seed: int
) -> None:
    names = [str(index) for index in range(len(sizes))]
    few = held_out_clusters(names, sizes, [()] * len(sizes), fraction, seed)
    many = held_out_clusters(names, sizes, [()] * len(sizes), fraction, seed, wanted)
    assert few <= many or len(few) == 1, "what bytes alone hold out stays held out"
    assert len(many) <= max(len(few), min(wanted, len(sizes) // 10))
    assert sum(sizes[int(name)] for name in many - few) == 0 or sum(sizes[int(name)] for name in many) <= 0.15 * sum(
        sizes
    )
