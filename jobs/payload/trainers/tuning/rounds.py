"""Self-training in rounds: the model answers prompts, a reward judges, what passes is learned, it writes again.

A round's texts are written before its first step. What ever passed, with its reward and the step of the model that
wrote it, lies in every checkpoint, so that a round that was cut goes on with the same rows. All of it is learned.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from ..trainer_kit import Training
from .card import Device
from .documents import check_read, check_words, records, rendered, special_texts, with_one_text
from .errors import TrainingRefused
from .forms import ASSISTANT, LostPart, OddRecord, TrainingRecord, has_more, read_prompt
from .group import Group
from .model import CausalLM
from .packing import LEARNED
from .rewards import Reward, named
from .rows import Batch, RowOrder, Rows, draw_seed, endless, pack, tokens_before
from .samples import UNWRITTEN, spread
from .tally import Tally, left_out
from .tokenizer import some_stops

WRITTEN = "written.json"
_TRIES = 5  # rounds in a row of which nothing passes, before anything has
_DECIDES = ("generations", "new_tokens", "temperature", "prompts", "round_steps", "least")


class Rounds:
    """Rows and their order, as the loop takes them; the rows are what the model wrote itself."""

    def __init__(
        self, options: argparse.Namespace, training: Training, group: Group, tokenizer: Any, paths: Sequence[Path]
    ) -> None:
        self.length = options.length
        self._options, self._training, self._group, self._tokenizer = options, training, group, tokenizer
        self._rewards = [Reward(command, options.reward_seconds) for command in options.reward]
        self._stops = some_stops(options.model, tokenizer)
        self.highest_token = -1  # of the prompts
        tally = Tally()
        self._prompts = list(self._read_prompts(paths, tally))
        size = {"rows": len(self._prompts), "tokens": tally.tokens, "length": 0}  # rows are as long as what it writes
        self.facts: dict[str, Any] = {**size, "data": tally.facts()}
        self._round = -1
        self._kept: list[dict[str, Any]] = []
        self._history: list[dict[str, Any]] = []
        self._rows: Rows | None = None

    def __len__(self) -> int:
        """Return the number of prompts: without any there is nothing to train on."""
        return len(self._prompts)

    @property
    def decides(self) -> dict[str, Any]:
        """What of the command line decides the next step."""
        job = {name: getattr(self._options, name) for name in _DECIDES}
        if any(isinstance(record["prompt"], list) for record, _ in self._prompts):
            job["messages learned as"] = "messages"  # by the program before, as the text of the template
        if self.facts["data"]["newer"] > 2:  # other prompts than the program before would have read
            job["records read as"] = self.facts["data"]["newer"]
        return {"stage": self._options.stage, **job, "reward": named(self._options.reward)}

    @property
    def metrics(self) -> Mapping[str, float]:
        """What came of the newest round's texts."""
        return {name: self._history[-1][name] for name in ("reward", "passed")} if self._history else {}

    def begin(self, model: CausalLM, card: Device, resume: Path | None) -> None:
        """Take the model that is to write, and what it wrote before ``resume``."""
        self._model, self._card = model, card
        if resume is not None and (resume / WRITTEN).exists():
            state = json.loads((resume / WRITTEN).read_bytes())
            self._kept, self._history = state["records"], state["rounds"]
            self._keep()

    def step(self, step: int) -> list[int]:
        """Return the rows of a step, which may be the first of a round."""
        number, within = divmod(step, self._options.round_steps)
        if number != self._round:
            while not self._kept or self._history[-1]["round"] < number:
                self._write(number, step)
            self._round, self._rows = number, self._packed()
            seed = draw_seed(self._training.seed, number, 0)
            self._order = RowOrder(len(self._rows), self._options.batch * self._options.accumulate, seed)
        return self._order.step(within)

    def batch(self, indexes: Sequence[int]) -> Batch:
        """Return some rows."""
        return self._now.batch(indexes)

    def targets(self, indexes: Sequence[int]) -> int:
        """Return how many tokens of some rows are to be learned."""
        return self._now.targets(indexes)

    @property
    def is_shared(self) -> bool:
        """Whether a row of this round holds several documents."""
        return self._now.is_shared

    @property
    def _now(self) -> Rows:
        if self._rows is None:
            raise RuntimeError("no round has begun")
        return self._rows

    def _read_prompts(self, paths: Sequence[Path], tally: Tally) -> Iterator[tuple[dict[str, Any], str]]:
        """Yield records with their prompts as text; what has none is counted."""
        marks = special_texts(self._tokenizer)
        for record, place in records(paths, tally):
            try:
                read = read_prompt(record)
                check_words(list(read.messages) or read.prompt, marks)
                prompt = self._prompt_text(read)
                check_words(prompt, ())
            except OddRecord as odd:
                tally.leave(place, str(odd))
                tally.since(3, changed=isinstance(odd, LostPart))
            else:
                tally.take("prompt")
                tally.since(3, changed=has_more(record))
                row = {**record, "prompt": list(read.messages) or read.prompt}
                tokens, room = self._tokens(row, prompt), self._room
                tally.cut += len(tokens) > room
                tally.tokens += min(len(tokens), room)
                self.highest_token = max(self.highest_token, *tokens)
                yield row, prompt

    def samples(self) -> list[str]:
        """Return up to three prompts, with a place for what the model writes and learns."""
        return [f"{self._prompts[at][1]}{UNWRITTEN}" for at in spread(len(self._prompts))]

    @property
    def _room(self) -> int:
        """How many tokens of a prompt the model sees: its last ones."""
        return int(self._options.length - self._options.new_tokens)

    def _tokens(self, record: dict[str, Any], prompt: str) -> list[int]:
        tokens: list[int] = self._tokenizer(prompt, add_special_tokens=False)["input_ids"]
        return [*tokens_before(self._tokenizer), *tokens] if isinstance(record["prompt"], str) else tokens

    def _prompt_text(self, read: TrainingRecord) -> str:
        if not read.messages:
            return read.prompt
        if not self._tokenizer.chat_template:
            raise OddRecord("its prompt is messages, and the tokenizer has no chat template")
        messages = [with_one_text(message) for message in read.messages]
        answered = rendered(self._tokenizer, [*messages, {"role": ASSISTANT, "content": "a"}], for_answer=False)
        tokens = self._tokenizer(answered, add_special_tokens=False)["input_ids"]
        if why := endless(tokens, bytes([LEARNED]) * len(tokens), self._tokenizer, self._stops):
            raise OddRecord(why)
        prompt = rendered(self._tokenizer, messages, for_answer=True)
        check_read(messages, prompt, {})
        return prompt

    def _write(self, number: int, step: int) -> None:
        """Write and judge texts of a round; each process writes for its part of the prompts."""
        tries, options = len(self._history), self._options
        order = RowOrder(len(self._prompts), min(options.prompts, len(self._prompts)), self._training.seed)
        chosen = order.step(tries)
        mine = chosen[self._group.rank :: self._group.size]
        written = [(at, text) for at in mine for text in self._texts(at, draw_seed(self._training.seed, tries, at))]
        judged = self._judged(written)
        answers = sorted(
            (one for part in self._group.gather(judged) for one in part), key=lambda one: (one["at"], one["number"])
        )
        passed = [one for one in answers if one["reward"] >= options.least]
        kept_names = {_named(one) for one in self._kept}
        for one in passed:
            prompt = self._prompts[one["at"]][0]["prompt"]
            answer = one["text"] if isinstance(prompt, str) else [{"role": ASSISTANT, "content": one["text"]}]
            record = {
                "prompt": prompt, "completion": answer, "reward": one["reward"],
                "round": number, "model": {"job": self._training.job, "step": step},
            }  # fmt: skip
            if one["text"] and _named(record) not in kept_names:
                kept_names.add(_named(record))
                self._kept.append(record)
        mean = sum(one["reward"] for one in answers) / len(answers)
        self._history.append(
            {
                "round": number,
                "step": step,
                "written": len(answers),
                "passed": len(passed) / len(answers),
                "reward": mean,
            }
        )
        self._keep()
        if self._group.first:
            print(
                f"finetune: round {number}: {len(passed)} of {len(answers)} texts passed, "
                f"reward {mean:.3f} on average, {len(self._kept)} are learned",
                flush=True,
            )
        if not self._kept and tries + 1 >= _TRIES:
            raise TrainingRefused(
                f"none of the texts for {_TRIES} times {len(chosen)} prompts had a reward of {options.least:g} "
                "(--least): ask for less, write more (--generations), or train on records first"
            )

    def _texts(self, at: int, seed: int) -> list[str]:
        """Return what the model writes for a prompt."""
        device, whole, options = self._card.device, self._model.whole, self._options
        record, prompt = self._prompts[at]
        tokens = torch.tensor([self._tokens(record, prompt)[-self._room :]], device=device)
        torch.manual_seed(seed)
        whole.eval()
        kind = "cuda" if self._card.accelerated else "cpu"
        with torch.no_grad(), torch.autocast(kind, self._card.dtype, enabled=self._card.precision != "fp32"):
            generated = whole.generate(
                input_ids=tokens, attention_mask=torch.ones_like(tokens), do_sample=True, top_k=0, top_p=1.0,
                temperature=options.temperature, num_return_sequences=options.generations, use_cache=True,
                max_new_tokens=options.new_tokens, pad_token_id=self._tokenizer.eos_token_id,
                eos_token_id=sorted(self._stops),
            )  # fmt: skip
        whole.train()
        return [self._tokenizer.decode(text, skip_special_tokens=True) for text in generated[:, tokens.shape[1] :]]

    def _judged(self, written: Sequence[tuple[int, str]]) -> list[dict[str, Any]]:
        if not written:
            return []
        prompts, texts = [json.dumps(self._prompts[at][0]) for at, _ in written], [text for _, text in written]
        values = [reward(prompts, texts, record=prompts) for reward in self._rewards]
        return [
            {"at": at, "number": number, "text": text, "reward": float(sum(value[number] for value in values))}
            for number, (at, text) in enumerate(written)
        ]

    def _keep(self) -> None:
        """Let the next checkpoint have what was written so far."""
        self._model.beside[WRITTEN] = json.dumps({"rounds": self._history, "records": self._kept}).encode()

    def _packed(self) -> Rows:
        """Return what is learned in this round as rows. Each process packs for itself: it is little."""
        with tempfile.TemporaryDirectory(prefix="round-") as name:
            path = Path(name) / "train-0.jsonl"
            path.write_text("".join(f"{_named(record)}\n" for record in self._kept))
            options = self._options
            rows = pack([path], self._tokenizer, self.length, options.cache, alone=options.alone, stops=self._stops)
        why = left_out(rows.facts["data"])
        if why and self._group.first:
            print(f"finetune: left out of what passed: {why}", flush=True)
        if not len(rows):
            raise TrainingRefused(f"nothing of what passed can be learned: {why}")
        return rows


def _named(record: Mapping[str, Any]) -> str:
    """Return a line of training data with what was asked and written."""
    return json.dumps({name: record[name] for name in ("prompt", "completion")})
