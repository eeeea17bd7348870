"""Mixtures: the full corpus for everybody, an extra share of its domain for a manager."""

import json
import os
from collections import Counter
from pathlib import Path

import pytest

from jobs.corpus.build.build import build
from jobs.corpus.errors import BadParameter, CorpusDamaged
from jobs.corpus.manifest import CorpusManifest
from jobs.corpus.mixture import mixture, open_mixture
from jobs.corpus.options import CorpusOptions, SourceWeight
from jobs.corpus.read.sources import Files

DOMAINS = {"urm": ["gpu"], "uim": ["api"], "uam": ["poem"]}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> CorpusManifest:
    """Two hundred records: many about GPUs, few about APIs, none about poems; several shards."""
    root = tmp_path_factory.mktemp("corpus")
    words = {n: "gpu" if n % 3 == 0 else "api" if n % 50 == 1 else "other" for n in range(200)}
    lines = [json.dumps({"text": f"{word} " + f"word{n} " * 40}) for n, word in words.items()]
    (root / "episodes.jsonl").write_text("\n".join(lines))
    sources = [Files(root / "episodes.jsonl")]
    return build(sources, root / "out", DOMAINS, shard_bytes=20_000, held_out_fraction=0.1)


def read(folder: Path, pattern: str) -> list[dict[str, object]]:
    return [json.loads(line) for path in sorted(folder.glob(pattern)) for line in path.read_text().splitlines()]


def test_main_gets_the_full_corpus_and_nothing_else(corpus: CorpusManifest) -> None:
    made = mixture(corpus, "uff-main", None, 0.0)
    assert read(made.folder, "train-*.jsonl") == read(corpus.folder, "train-*.jsonl")
    assert read(made.folder, "heldout.jsonl") == read(corpus.folder, "heldout.jsonl")
    assert made.extra_bytes == 0
    assert made.folder.parent == corpus.folder / "mixtures"


def test_a_manager_gets_its_share_on_top(corpus: CorpusManifest) -> None:
    made = mixture(corpus, "urm", "urm", 0.3)
    rows = read(made.folder, "train-*.jsonl")
    total = sum(len(str(row["text"]).encode()) for row in rows)
    assert total == made.corpus_bytes + made.extra_bytes
    assert made.extra_bytes == pytest.approx(0.3 * corpus.train_text_bytes, rel=0.02)
    extra = read(made.folder, "train-*_domain.jsonl")
    assert len(extra) == made.extra_rows
    assert all(row["domains"] == ["urm"] for row in extra)
    assert made.passes == 1


def test_files_by_name_take_turns_as_the_manifest_says(corpus: CorpusManifest) -> None:
    made = mixture(corpus, "urm", "urm", 0.3)
    names = sorted(path.name for path in made.folder.glob("train-*.jsonl"))
    assert names == [shard.name for shard in made.files]
    assert names[:2] == ["train-00000.jsonl", "train-00000_domain.jsonl"]
    assert len(names) == 2 * len(corpus.train) > 2


def test_too_few_rows_are_repeated_up_to_a_limit_and_it_is_recorded(corpus: CorpusManifest) -> None:
    made = mixture(corpus, "uim", "uim", 0.5, max_passes=5)
    extra = read(made.folder, "train-*_domain.jsonl")
    assert (made.passes, made.extra_rows) == (5, 5 * made.domain_rows)
    assert made.extra_bytes < made.wanted_bytes
    assert len({row["id"] for row in extra}) == made.domain_rows == len(extra) / 5
    enough = mixture(corpus, "uim", "uim", 0.5, max_passes=1000)
    assert enough.extra_bytes == pytest.approx(enough.wanted_bytes, rel=0.02)


def test_a_domain_without_rows_adds_nothing_and_says_so(corpus: CorpusManifest) -> None:
    made = mixture(corpus, "uam", "uam", 0.4)
    assert (made.domain_rows, made.extra_rows, made.passes) == (0, 0, 0)
    assert made.wanted_bytes > 0


def test_held_out_is_the_same_for_all_and_never_trained_on(corpus: CorpusManifest) -> None:
    made = mixture(corpus, "urm", "urm", 0.3)
    held_out = read(made.folder, "heldout.jsonl")
    assert held_out == read(mixture(corpus, "uff-main", None, 0.0).folder, "heldout.jsonl")
    assert read(made.folder, "heldout_domain.jsonl") == [row for row in held_out if "urm" in row["domains"]]  # type: ignore[operator]
    trained = {row["cluster"] for row in read(made.folder, "train-*.jsonl")}
    assert held_out
    assert trained.isdisjoint(row["cluster"] for row in held_out)


def test_the_same_call_gives_the_same_folder_and_another_seed_another_order(corpus: CorpusManifest) -> None:
    made = mixture(corpus, "urm", "urm", 0.3)
    assert mixture(corpus, "urm", "urm", 0.3) == made
    other = mixture(corpus, "urm", "urm", 0.3, seed=1)
    assert other.folder != made.folder
    assert read(other.folder, "train-*_domain.jsonl") != read(made.folder, "train-*_domain.jsonl")


def test_corpus_files_are_linked_not_copied(corpus: CorpusManifest) -> None:
    made = mixture(corpus, "urm", "urm", 0.3)
    name = corpus.train[0].name
    assert (made.folder / name).samefile(corpus.folder / name)


def test_files_are_copied_where_links_are_impossible(
    corpus: CorpusManifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_arguments: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    made = mixture(corpus, "urm", "urm", 0.3, tmp_path)
    assert not (made.folder / "heldout.jsonl").samefile(corpus.folder / "heldout.jsonl")
    assert open_mixture(made.folder, verify=True) == made


def test_a_changed_mixture_is_noticed(corpus: CorpusManifest, tmp_path: Path) -> None:
    made = mixture(corpus, "urm", "urm", 0.3, tmp_path)
    (made.folder / made.files[1].name).unlink()
    with pytest.raises(CorpusDamaged, match="No such file"):
        open_mixture(made.folder, verify=True)


@pytest.mark.parametrize(
    ("job", "domain", "share", "message"),
    [
        ("../up", "urm", 0.3, "job_name is '../up'"),
        ("urm", "udm", 0.3, r"domain is 'udm', but must be one the corpus has tags for \(uam, uim, urm\)"),
        ("urm", "urm", 1.5, "extra_share is 1.5"),
    ],
)
def test_bad_arguments_are_named(corpus: CorpusManifest, job: str, domain: str, share: float, message: str) -> None:
    with pytest.raises(BadParameter, match=message):
        mixture(corpus, job, domain, share)


def test_sources_that_weigh_more_are_read_more_often(tmp_path: Path) -> None:
    for name in ("light", "heavy"):
        lines = [json.dumps({"text": f"{name} text {n} " + f"word{n} " * 40}) for n in range(100)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    sources = [Files(tmp_path / f"{name}.jsonl") for name in ("light", "heavy")]
    options = CorpusOptions(weights=(SourceWeight("heavy.jsonl", 2.5), SourceWeight("*", 0.5)))
    corpus = build(sources, tmp_path / "out", {}, shard_bytes=20_000, held_out_fraction=0.0, options=options)
    made = mixture(corpus, "uff-main", None, 0.0)
    assert mixture(corpus, "uff-main", None, 0.0) == made
    texts = Counter(str(row["text"]) for row in read(made.folder, "train-*.jsonl"))
    times = Counter((text.split()[0], count) for text, count in texts.items())
    assert times["heavy", 2] + times["heavy", 3] == 100
    assert 30 <= times["heavy", 3] <= 70
    assert set(times) == {("light", 1), ("heavy", 2), ("heavy", 3)}
    assert [shard.name for shard in made.files] == sorted(path.name for path in made.folder.glob("train-*.jsonl"))
    names = [shard.name for shard in made.files]
    assert names[:2] == ["train-00000.jsonl", "train-00000_again.jsonl"]
    assert len(names) == 2 * len(corpus.train) > 2
