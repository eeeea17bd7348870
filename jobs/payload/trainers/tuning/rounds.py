"""Self-training in rounds: the model answers prompts, a reward scores the answers, and passed answers are learned.

The texts of a round are generated before its first step. All texts that ever passed are learned. They are in every
checkpoint, with reward and step, so that an interrupted round continues with the same rows.
"""

import argparse
import json
import math
import os
import shlex
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from ..trainer_kit import Training
from .data.documents import check_read, check_words, rendered, some_stops, special_texts, with_one_text
from .data.forms import ASSISTANT, LostPart, OddRecord, TrainingRecord, has_more, read_prompt
from .data.reader import records
from .data.rows import LEARNED, UNWRITTEN, Batch, RowOrder, Rows, draw_seed, endless, pack, spread, tokens_before
from .data.tally import Tally, left_out
from .devices.card import Device
from .devices.group import Group
from .errors import TrainingRefused, say
from .model import CausalLM

# Rewards: any command that scores an evaluation can score texts during training.
_SCORES = "scores.jsonl"
_BYTES_MAX = 64 << 20  # of a file of scores
_STEPS_WITHOUT = 50  # consecutive steps in which no prompt has different rewards
_TAIL = 2_000  # last characters of a failed command's output that are shown


class Reward:
    """One reward in TRL's form: for each text, the mean over the metrics that a command gives it."""

    def __init__(self, command: str, seconds: float) -> None:
        self._words, self._seconds = shlex.split(command), seconds
        if not self._words:
            raise TrainingRefused("--reward is empty; give a command that scores an evaluation")
        self.__name__ = Path(self._words[-1]).stem  # TRL's name of the reward

    def __call__(self, prompts: Sequence[Any], completions: Sequence[Any], record: Sequence[str], **_: Any) -> Any:
        """Return a number for each completion. Raises TrainingRefused if the command fails or omits one."""
        del prompts
        with tempfile.TemporaryDirectory(prefix="reward-") as name:
            folder = Path(name)
            items = [{**json.loads(text), "id": str(number)} for number, text in enumerate(record)]
            outputs = [{"id": str(number), "output": _text_of(text)} for number, text in enumerate(completions)]
            for file, lines in (("items.jsonl", items), ("outputs.jsonl", outputs)):
                (folder / file).write_text("".join(json.dumps(line) + "\n" for line in lines))
            self._run(folder)
            return self._read(folder / _SCORES, len(outputs))

    def _run(self, folder: Path) -> None:
        more = {"SET": "items.jsonl", "OUTPUTS": "outputs.jsonl"}
        environment = {**os.environ, **{f"SCHED_INPUT_{key}": str(folder / file) for key, file in more.items()}}
        environment["SCHED_OUTPUT_DIR"] = str(folder)
        # The command is not a rank of the training, and must not report to the agent.
        for key in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "SCHED_PROGRESS"):
            environment.pop(key, None)
        try:
            done = subprocess.run(
                self._words,
                env=environment,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=self._seconds,
                check=False,
            )
        except OSError as error:
            raise self._refused(f"cannot be started: {error}") from None
        except subprocess.TimeoutExpired:
            why = f"ran for more than {self._seconds:g} s with one step's texts; --reward-seconds allows more"
            raise self._refused(why) from None
        if done.returncode:
            output = (done.stderr or done.stdout)[-_TAIL:].strip()
            raise self._refused(f"failed with status {done.returncode}: {output}")

    def _read(self, path: Path, count: int) -> list[float]:
        values: list[list[float]] = [[] for _ in range(count)]
        try:
            if path.stat().st_size > _BYTES_MAX:
                raise self._refused(f"left more than {_BYTES_MAX >> 20} MiB of scores")
            lines = path.read_bytes().splitlines()
        except OSError:
            raise self._refused(f"left no {_SCORES} in SCHED_OUTPUT_DIR") from None
        for line in lines:
            score = _score(line)
            if score is not None and score[0] < count:
                values[score[0]].append(score[1])
        missing = sum(not of_text for of_text in values)
        if missing:
            wanted = 'each needs a line {"item": its id, "value": ...}'
            raise self._refused(f"left {missing} of {count} texts without a finite number: {wanted}")
        return [sum(of_text) / len(of_text) for of_text in values]

    def _refused(self, why: str) -> TrainingRefused:
        return TrainingRefused(f"the reward {shlex.join(self._words)} {why}")


class RewardSpread:
    """Detects that the texts of each prompt have equal rewards: then nothing is learned."""

    def __init__(self) -> None:
        self._since: int | None = None  # the last step with different rewards

    def note(self, step: int, without: float) -> None:
        """Record the share of prompts without different rewards. Raises TrainingRefused after 50 steps at 1."""
        if without < 1:
            self._since = step
        elif self._since is None:
            self._since = step - 1
        elif step - self._since >= _STEPS_WITHOUT:
            raise TrainingRefused(
                f"the training stalled: in {step - self._since} steps no prompt had texts with different rewards, and "
                "from equal rewards nothing is learned. Use prompts that the model solves sometimes, a reward with "
                "more than two values, more --generations or a higher --temperature"
            )


def named(commands: Sequence[str]) -> list[list[str]]:
    """Return the words of commands without folders, because folders differ between machines."""
    return [[word.rpartition("/")[2] for word in shlex.split(command)] for command in commands]


def _text_of(completion: Any) -> str:
    """Return the text of a completion, which TRL gives as text or as messages."""
    return completion if isinstance(completion, str) else str(completion[-1]["content"])


def _score(line: bytes) -> tuple[int, float] | None:
    try:
        answer = json.loads(line)
        number, value = int(answer["item"]), float(answer["value"])
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):  # a header, or an invalid line
        return None
    return (number, value) if number >= 0 and math.isfinite(value) else None


WRITTEN = "written.json"
_TRIES = 5  # the training ends if no text passes in so many rounds from the first
_DECIDES = ("generations", "new_tokens", "temperature", "prompts", "round_steps", "least")


class Rounds:
    """The rows and their order for the loop, in self-training: the model generates the rows."""

    def __init__(
        self, options: argparse.Namespace, training: Training, group: Group, tokenizer: Any, paths: Sequence[Path]
    ) -> None:
        self.length = options.length
        self._options, self._training, self._group, self._tokenizer = options, training, group, tokenizer
        self._rewards = [Reward(command, options.reward_seconds) for command in options.reward]
        self._stops = some_stops(options.model, tokenizer)
        self.highest_token = -1  # highest token ID of the prompts
        tally = Tally()
        self._prompts = list(self._read_prompts(paths, tally))
        size = {"rows": len(self._prompts), "tokens": tally.tokens, "length": 0}  # 0: not known before texts exist
        self.facts: dict[str, Any] = {**size, "data": tally.facts()}
        self._round = -1
        self._kept: list[dict[str, Any]] = []
        self._history: list[dict[str, Any]] = []
        self._rows: Rows | None = None

    def __len__(self) -> int:
        """Return the number of prompts."""
        return len(self._prompts)

    @property
    def decides(self) -> dict[str, Any]:
        """The options and facts of self-training that decide the next step, for the fingerprint."""
        job = {name: getattr(self._options, name) for name in _DECIDES}
        if any(isinstance(record["prompt"], list) for record, _ in self._prompts):
            job["messages learned as"] = "messages"  # older versions learned the template's text
        if self.facts["data"]["newer"] > 2:  # older versions read other prompts
            job["records read as"] = self.facts["data"]["newer"]
        return {"stage": self._options.stage, **job, "reward": named(self._options.reward)}

    @property
    def metrics(self) -> Mapping[str, float]:
        """Mean reward and share of passed texts of the newest round."""
        return {name: self._history[-1][name] for name in ("reward", "passed")} if self._history else {}

    def begin(self, model: CausalLM, card: Device, resume: Path | None) -> None:
        """Set the model that generates, and restore the texts in the checkpoint ``resume``."""
        self._model, self._card = model, card
        if resume is not None and (resume / WRITTEN).exists():
            state = json.loads((resume / WRITTEN).read_bytes())
            self._kept, self._history = state["records"], state["rounds"]
            self._keep()

    def step(self, step: int) -> list[int]:
        """Return the rows of a step; the first step of a round generates its texts."""
        number, within = divmod(step, self._options.round_steps)
        if number != self._round:
            while not self._kept or self._history[-1]["round"] < number:
                self._write(number, step)
            self._round, self._rows = number, self._packed()
            seed = draw_seed(self._training.seed, number, 0)
            self._order = RowOrder(len(self._rows), self._options.batch * self._options.accumulate, seed)
        return self._order.step(within)

    def batch(self, indexes: Sequence[int]) -> Batch:
        """Return the rows of ``indexes``."""
        return self._now.batch(indexes)

    def targets(self, indexes: Sequence[int]) -> int:
        """Return the number of targets in the rows of ``indexes``."""
        return self._now.targets(indexes)

    @property
    def is_shared(self) -> bool:
        """Whether any row of this round has several documents."""
        return self._now.is_shared

    @property
    def _now(self) -> Rows:
        if self._rows is None:
            raise RuntimeError("no round has begun")
        return self._rows

    def _read_prompts(self, paths: Sequence[Path], tally: Tally) -> Iterator[tuple[dict[str, Any], str]]:
        """Yield records with their prompts as text; records without a usable prompt are counted in ``tally``."""
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
        """Return up to three prompts, each with a placeholder for the generated text."""
        return [f"{self._prompts[at][1]}{UNWRITTEN}" for at in spread(len(self._prompts))]

    @property
    def _room(self) -> int:
        """The number of a prompt's last tokens that the model sees."""
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
        """Generate and score the texts of a round; each rank does so for its share of the prompts."""
        tries, options = len(self._history), self._options
        order = RowOrder(len(self._prompts), min(options.prompts, len(self._prompts)), self._training.seed)
        chosen = order.step(tries)
        mine = chosen[self._group.rank :: self._group.size]
        written = [(at, text) for at in mine for text in self._texts(at, draw_seed(self._training.seed, tries, at))]
        gathered = self._group.gather(self._scored(written))
        answers = sorted((row for part in gathered for row in part), key=lambda row: (row["at"], row["number"]))
        passed = [row for row in answers if row["reward"] >= options.least]
        kept_lines = {_line(record) for record in self._kept}
        for row in passed:
            prompt = self._prompts[row["at"]][0]["prompt"]
            answer = row["text"] if isinstance(prompt, str) else [{"role": ASSISTANT, "content": row["text"]}]
            record = {
                "prompt": prompt, "completion": answer, "reward": row["reward"],
                "round": number, "model": {"job": self._training.job, "step": step},
            }  # fmt: skip
            if row["text"] and _line(record) not in kept_lines:
                kept_lines.add(_line(record))
                self._kept.append(record)
        mean = sum(row["reward"] for row in answers) / len(answers)
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
        say(
            f"round {number}: {len(passed)} of {len(answers)} texts passed, reward {mean:.3f} on average, "
            f"{len(self._kept)} are learned"
        )
        if not self._kept and tries + 1 >= _TRIES:
            raise TrainingRefused(
                f"none of the texts for {_TRIES} times {len(chosen)} prompts had a reward of {options.least:g} "
                "(--least): lower --least, raise --generations, or train on records first"
            )

    def _texts(self, at: int, seed: int) -> list[str]:
        """Return the generated texts for a prompt."""
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

    def _scored(self, written: Sequence[tuple[int, str]]) -> list[dict[str, Any]]:
        if not written:
            return []
        prompts, texts = [json.dumps(self._prompts[at][0]) for at, _ in written], [text for _, text in written]
        values = [reward(prompts, texts, record=prompts) for reward in self._rewards]
        return [
            {"at": at, "number": number, "text": text, "reward": float(sum(value[number] for value in values))}
            for number, (at, text) in enumerate(written)
        ]

    def _keep(self) -> None:
        """Put the texts so far into the next checkpoint."""
        self._model.beside[WRITTEN] = json.dumps({"rounds": self._history, "records": self._kept}).encode()

    def _packed(self) -> Rows:
        """Return the rows of this round. Each rank packs all rows, because there are few."""
        with tempfile.TemporaryDirectory(prefix="round-") as name:
            path = Path(name) / "train-0.jsonl"
            path.write_text("".join(f"{_line(record)}\n" for record in self._kept))
            options = self._options
            rows = pack([path], self._tokenizer, self.length, options.cache, alone=options.alone, stops=self._stops)
        why = left_out(rows.facts["data"])
        if why:
            say(f"left out of the passed texts: {why}")
        if not len(rows):
            raise TrainingRefused(f"none of the passed texts can be learned: {why}")
        return rows


def _line(record: Mapping[str, Any]) -> str:
    """Return a record's prompt and completion as a line of JSON."""
    return json.dumps({name: record[name] for name in ("prompt", "completion")})
