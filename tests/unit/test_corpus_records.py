"""Bad records are counted and listed, kept where possible, and never fatal."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from jobs.corpus.build.build import build
from jobs.corpus.manifest import CorpusManifest
from jobs.corpus.options import CorpusOptions
from jobs.corpus.read.sources import Files
from jobs.payload.trainers.tuning.data.forms import read_record, readable

Built = Callable[..., CorpusManifest]
GOOD = {"session_id": "s", "tank_building_stage": "stage_2", "component_code": "defmodule Good do end"}


@pytest.fixture
def built(tmp_path: Path) -> Built:
    """Build a corpus from one file of the given name and bytes."""

    def make(name: str, content: bytes, **options: Any) -> CorpusManifest:
        source = tmp_path / "source" / name
        source.parent.mkdir(exist_ok=True)
        source.write_bytes(content)
        return build([Files(source)], tmp_path / "out", {}, options=CorpusOptions(**options))

    return make


def rows(manifest: CorpusManifest) -> list[dict[str, Any]]:
    files = [*manifest.train, manifest.held_out]
    return [json.loads(line) for file in files for line in (manifest.folder / file.name).read_text().splitlines()]


def texts(manifest: CorpusManifest) -> list[str]:
    return sorted(row["text"] for row in rows(manifest))


def listed(manifest: CorpusManifest) -> list[dict[str, Any]]:
    return [json.loads(line) for line in manifest.findings_path.read_text().splitlines()]


def lines(*records: object) -> bytes:
    return b"".join(record if isinstance(record, bytes) else json.dumps(record).encode() + b"\n" for record in records)


@pytest.mark.parametrize(
    ("bad", "kind"),
    [
        (b'{"text": "cut off he\n', "half_line"),
        (b'{"text": "cut off"\n', "half_line"),
        (b"{'text': 'single quotes, which JSON does not know'}\n", "bad_json"),
        (b'{"text": ' + b"9" * 5000 + b"}\n", "bad_json"),
        (b"null\n", "null_field"),
        (b"[1, 2]x\n", "bad_json"),
        (b"42\n", "wrong_type"),
        (b'"only a string"\n', "wrong_type"),
        (b'{"text": null}\n', "null_field"),
        (b'{"component_code": 17}\n', "wrong_type"),
        (b'{"text": ""}\n', "empty_text"),
        (b'{"text": " \\n\\t "}\n', "empty_text"),
        (b'{"session_id": "no text at all"}\n', "missing_text"),
        (b"[" * 200_000 + b"\n", "too_deep"),
        (b'{"text": ["a list"]}\n', "wrong_type"),
        (b'{"text": "' + b"x" * 2000 + b'"}\n', "oversized"),
        (b'{"component_code": "defmodule  Good\\n do end"}\n', "duplicate"),
    ],
)
def test_a_bad_line_is_listed_and_the_good_ones_around_it_are_kept(built: Built, bad: bytes, kind: str) -> None:
    other = {"text": "the line after it"}
    limit = 1 << 20 if kind == "too_deep" else 6000 if kind == "bad_json" else 1024
    manifest = built("episodes.jsonl", lines(GOOD, bad, other), max_record_bytes=limit)
    assert len(texts(manifest)) == 2
    assert "the line after it" in texts(manifest)
    assert manifest.findings[kind] == 1
    assert (kind, 2) in [(finding["kind"], finding["line"]) for finding in listed(manifest)]


@pytest.mark.parametrize(
    ("line", "kind", "text"),
    [
        ('{"text": "caf\u00e9"}\n'.encode("cp1252"), "not_utf8", "caf\u00e9"),
        (b'{"text": "\xc3\xa9\xc3\xa8 caf\xc3"}\n', "broken_encoding", "\u00e9\u00e8 caf\ufffd"),
        (b'{"text": "half \\ud83d pair"}\n', "lone_surrogate", "half \ufffd pair"),
        (b'{"text": "nul \\u0000 and bell \\u0007"}\n', "control_characters", "nul  and bell "),
        (b'{"text": "raw \x07 bell"}\n', "control_characters", "raw  bell"),
        (b'{"text": "kept", "stage": "stage_9"}\n', "unknown_stage", "kept"),
        (b'{"text": "kept", "code_patterns": "not a list"}\n', "wrong_type", "kept"),
        (b'{"text": "kept", "manager_focus": null}\n', "null_field", "kept"),
        (b'{"text": "kept"} and more\n', "bad_json", "kept"),
    ],
)
def test_a_damaged_but_readable_record_is_kept_and_listed(built: Built, line: bytes, kind: str, text: str) -> None:
    manifest = built("episodes.jsonl", lines(GOOD, line))
    assert text in texts(manifest)
    assert manifest.findings == {kind: 1}


def test_every_encoding_of_one_file_is_read_and_counted(built: Built) -> None:
    content = b"\xef\xbb\xbf" + lines({"text": "a"}, '{"text": "n\u00fc"}\n'.encode(), b'{"text": "n\xfc\x81"}\n')
    manifest = built("episodes.jsonl", content)
    assert texts(manifest) == ["a", "n\u00fc", "n\u00fc\x81"]
    assert manifest.encodings == {"utf-8-sig": 1, "utf-8": 1, "latin-1": 1}


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("indent", [None, 2])
def test_one_array_export_reads_like_lines(built: Built, encoding: str, indent: int | None) -> None:
    records = [GOOD | {"component_code": f"code \u00fc number {n}"} for n in range(300)]
    manifest = built("training_data.json", json.dumps(records, ensure_ascii=False, indent=indent).encode(encoding))
    assert texts(manifest) == sorted(record["component_code"] for record in records)
    assert manifest.stages == {"stage_2": 300}


@pytest.mark.parametrize(
    ("broken", "kind"),
    [
        ('{"text": nonsense, "list": [{"text_not": 1}]}', "bad_json"),
        ('{"text": "no closing quote}', "bad_json"),
        ('{"text": ' + "[" * 100_000 + "]" * 100_000 + "}", "too_deep"),
    ],
)
def test_a_broken_element_costs_only_itself(built: Built, broken: str, kind: str) -> None:
    elements = [json.dumps({"text": f"element {n}"}) for n in range(40)]
    elements.insert(20, broken)
    manifest = built("training_data.json", ("[" + ",\n".join(elements) + "]").encode())
    assert len(texts(manifest)) == 40
    assert manifest.findings == {kind: 1}
    assert listed(manifest)[0]["line"] == 21


def test_a_damaged_key_or_a_stray_bracket_does_not_cost_the_rest(built: Built) -> None:
    elements = [json.dumps({"text": f"element {n}"}) for n in range(40)]
    elements[10] = '{"te'
    elements[20] += "]"
    manifest = built("training_data.json", ("[" + ",\n".join(elements) + "]").encode())
    assert len(texts(manifest)) == 39
    assert manifest.findings == {"bad_json": 2}


def test_an_array_that_ends_early_keeps_what_came_before(built: Built) -> None:
    content = json.dumps([{"text": f"element {n}"} for n in range(5000)]).encode()
    manifest = built("training_data.json", content[: len(content) // 2])
    assert 2400 < len(texts(manifest)) < 2600
    assert set(manifest.findings) == {"half_line"}


def test_an_element_beyond_the_limit_is_left_out(built: Built) -> None:
    records = [{"text": "first"}, {"text": "x " * 400_000}, {"text": "last"}]
    manifest = built("training_data.json", json.dumps(records).encode(), max_record_bytes=100_000)
    assert texts(manifest) == ["first", "last"]
    assert manifest.findings == {"oversized": 1}


def test_an_array_with_mixed_encodings_is_decoded_line_by_line(built: Built) -> None:
    content = b'[{"text": "\xc3\xbc\xc3\xb6\xc3\xa4"},\n{"text": "caf\xe9"}]'
    assert texts(built("training_data.json", content)) == ["caf\u00e9", "\u00fc\u00f6\u00e4"]


def test_an_episode_becomes_code_and_notes_and_the_rest_is_metadata(built: Built) -> None:
    episode = GOOD | {
        "architectural_decisions": [
            {"decision": "use a GenServer", "reasoning": "state", "alternatives_considered": ["Agent", "ETS"]}
        ],
        "failure_points": ["timeouts"],
        "reward_signals": {"total_reward": 0.5},
        "manager_focus": "UFM",
        "never_heard_of": [None, 1e999],
    }
    content = lines(episode).replace(b"Infinity", b"1e999")
    (row,) = rows(built("episodes.jsonl", content))
    assert row["text"] == (
        "defmodule Good do end\n\nDecisions:\n- use a GenServer; state; Agent, ETS\n\nWhat failed:\n- timeouts"
    )
    assert row["stage"] == "stage_2"
    assert row["metadata"] == {
        "session_id": "s",
        "tank_building_stage": "stage_2",
        "reward_signals": {"total_reward": 0.5},
        "manager_focus": "UFM",
        "never_heard_of": [None, None],
    }


def test_a_value_of_the_wrong_type_is_kept_as_metadata(built: Built) -> None:
    (row,) = rows(built("episodes.jsonl", lines({"text": "kept", "success_metrics": 7})))
    assert row["metadata"] == {"success_metrics": 7}


def test_the_listing_is_capped_but_the_count_is_not(built: Built) -> None:
    manifest = built("episodes.jsonl", lines(GOOD, *[b"{broken}\n"] * 1000))
    assert manifest.findings == {"bad_json": 1000}
    assert len(listed(manifest)) == 200


def test_a_huge_line_is_passed_over_without_being_held(built: Built) -> None:
    content = b'{"text": "' + b"x" * 5_000_000 + b'"}\n' + lines(GOOD)
    manifest = built("episodes.jsonl", content, max_record_bytes=4096)
    assert manifest.rows == 1
    assert "5000013 bytes" in listed(manifest)[0]["detail"]


def test_random_bytes_are_survived(built: Built) -> None:
    noise: Sequence[bytes] = [bytes((n * m) % 251 + 4 for n in range(300)) + b"\n" for m in range(1, 60)]
    manifest = built("episodes.jsonl", lines(GOOD, *noise))
    assert manifest.rows == 1
    assert sum(manifest.findings.values()) >= len(noise)


PARTS: dict[str, dict[str, Any]] = {
    "prompt": {"prompt": "2+2=", "completion": "4"},
    "messages": {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]},
    "alpaca": {"instruction": "Say it.", "input": "yo", "output": "yo"},
    "sharegpt": {"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "yo"}]},
    "preference": {"prompt": "2+2=", "chosen": "4", "rejected": "5"},
}


@pytest.mark.parametrize("form", PARTS)
def test_a_record_that_is_learned_by_its_parts_keeps_them(form: str, built: Built) -> None:
    """So a trainer reads of a corpus what it would read of the source."""
    manifest = built("data.jsonl", b"\xef\xbb\xbf" + lines({**PARTS[form], "topic": "sums"}))
    (row,) = rows(manifest)
    assert {name: row[name] for name in PARTS[form]} == PARTS[form]
    assert row["metadata"] == {"topic": "sums"}
    assert readable(read_record(PARTS[form])) == row["text"]
    again = read_record(row)
    assert (again.form, again.fields) == (form, PARTS[form])
    assert not manifest.findings


def test_a_record_whose_parts_are_odd_is_a_finding(built: Built) -> None:
    manifest = built("data.jsonl", lines({"messages": [{"role": "user", "content": "hi"}]}, {"text": "good"}))
    assert texts(manifest) == ["good"]
    assert manifest.findings == {"wrong_type": 1, "missing_text": 1}
    assert "nobody answers" in listed(manifest)[1]["detail"]
