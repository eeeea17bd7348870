"""The stages of preference learning, run by TRL: dpo from pairs, kto from marked answers, grpo from rewards.

A step has --batch x --accumulate rows on any number of devices; a row is a pair, an answer, or a generated text. The
reference is the initial model; with an adapter it is kept in the checkpoint's folder ``ref``. grpo generates the texts
of a step within that step, so that every step can be resumed exactly.
"""

import argparse
import json
import os
import random
import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import torch

from ..trainer_kit import Training
from . import checkpoint, fingerprint
from .base import base_digest, check_length
from .data import documents, forms, reader
from .data.rows import LEARNED, UNWRITTEN, describe, endless, learned_after, spread
from .data.tally import Tally, check
from .devices.card import Device, find_card
from .errors import TrainingRefused, UnreadableData, say
from .memory import facts_of, recall
from .model import CausalLM, make_model
from .options import rows_at_once
from .rounds import Reward, RewardSpread, named
from .session import data_files, data_folder, judge

_FORMS = {
    "dpo": '{"prompt": ..., "chosen": ..., "rejected": ...}',
    "kto": '{"prompt": ..., "completion": ..., "label": true or false}',
    "grpo": '{"prompt": ...} and what the reward needs',
}
_BETA = {"dpo": 0.1, "kto": 0.1, "grpo": 0.0}
_DECIDES = {"dpo": ("beta",), "kto": ("beta",), "grpo": ("beta", "generations", "new_tokens", "temperature", "reward")}
_OPTIMIZERS = {"adamw": "adamw_torch", "adamw8bit": "adamw_bnb_8bit"}
_ANSWERS = frozenset({"chosen", "rejected", "completion"})
_JOINT = 40  # the last characters of a prompt may be the beginning of an answer, such as <think>
RECORD = "record"  # the column with a whole record, for the reward


def train(
    options: argparse.Namespace, training: Training, local_rank: int, no_corpus: str, callback: Callable[..., Any]
) -> None:
    """Train until the target step or a stop. Raises TrainingRefused and UnreadableData."""
    from transformers import AutoConfig

    torch.use_deterministic_algorithms(options.deterministic)
    card = find_card(local_rank, options.precision)
    devices = int(os.environ.get("WORLD_SIZE", "1"))
    source, resume = options.model, training.resume_dir
    before = None if resume is None else checkpoint.read_fingerprint(resume)
    check_length(options.length, AutoConfig.from_pretrained(source).to_dict(), source)
    model_digest = base_digest(source)
    parent = None if training.parent_dir is None else checkpoint.read_fingerprint(training.parent_dir)
    recall(options, facts_of(options, model_digest, card, devices), before, parent)
    options.beta = _BETA[options.stage] if options.beta is None else options.beta
    tokenizer = documents.load_tokenizer(source)
    paths = data_files(options, training)
    rows, tally, sizes = read_rows(options, paths, tokenizer)
    folder = data_folder(options, training)
    where, facts = str(folder), tally.facts()
    facts["left_out"] += reader.unread(folder, paths)
    if rows or tally.left_out:
        if os.environ.get("RANK", "0") == "0":
            texts = [_sample(rows[at], tokenizer) for at in spread(len(rows))]
            places = 0 if options.stage == "grpo" else _places(sizes, rows_at_once(options, devices), training.seed)
            describe(training, facts, (len(rows), tally.tokens), texts, places)
        check(facts, options.skip_at_most, where)
    if not rows:
        raise UnreadableData(
            f"{where} has no record for --stage {options.stage}: a line of train-*.jsonl such as "
            f"{_FORMS[options.stage]}. {no_corpus}; --data names another folder"
        )
    digests = model_digest, documents.digest(tokenizer), reader.data_digest(paths)
    now = _fingerprint(options, training, card, devices, digests)
    if tally.newer > 2:  # older versions learned other records
        now["job"]["records read as"] = tally.newer
    metrics = {}
    if resume is not None:
        judged = _judge(before, now, options)
        metrics["exactness"] = float(judged.exactness.removeprefix("E"))
        say(f"resuming, {judged.exactness}: {judged.text()}")
    _check_reference(options, training)
    torch.manual_seed(training.seed)
    # The checkpoint's weights are not loaded here: the Trainer loads them after copying this model as the reference.
    model = make_model(options, source, training.parent_dir, None, card)

    def beside(folder: Path) -> None:
        (folder / "training_args.bin").unlink(missing_ok=True)  # a pickle that is never read
        (folder / checkpoint.FINGERPRINT).write_text(json.dumps(now, indent=1))

    with tempfile.TemporaryDirectory(prefix="trl-") as name:
        reporter = callback(training, metrics=metrics, beside=beside)
        trainer = _trainer(options, training, (model, tokenizer, rows), card, name, reporter)
        trainer.train(resume_from_checkpoint=str(resume) if resume else None)


def read_rows(
    options: argparse.Namespace, paths: list[Path], tokenizer: Any
) -> tuple[list[dict[str, Any]], Tally, list[list[int]]]:
    """Return records, tally, and the token counts of each record's texts; leave out the rarer kind of prompt."""
    stops = documents.some_stops(options.model, tokenizer)
    tally, marks = Tally(), documents.special_texts(tokenizer)
    read: list[tuple[dict[str, Any], list[int], str]] = []
    most = -1
    for record, place in reader.records(paths, tally):
        try:
            row = _row(options.stage, record)
            if isinstance(row["prompt"], list) and not tokenizer.chat_template:
                raise forms.OddRecord("its prompt is messages, and the tokenizer has no chat template for them")
            documents.check_words([row[name] for name in ("prompt", *_ANSWERS) if name in row], marks)
            texts = _learned(options, row, tokenizer, stops)
            most = max(most, *map(max, texts))
            read.append((row, [len(tokens) for tokens in texts], place))
            tally.since(3, changed=forms.has_more(record) or _repeats(record, row))
        except forms.OddRecord as odd:
            tally.leave(place, str(odd))
            tally.since(3, changed=isinstance(odd, forms.LostPart))
    documents.check_vocabulary(options.model, tokenizer, most)
    kinds = Counter(type(row["prompt"]) for row, _, _ in read)
    usual = max(kinds, key=lambda kind: kinds[kind], default=str)
    rows, counts = [], []
    for row, full, place in read:
        if not isinstance(row["prompt"], usual):
            named = ("text", "messages") if usual is list else ("messages", "text")
            tally.leave(place, f"its prompt is {named[0]}, and those of most records are {named[1]}: give one kind")
            continue
        sizes = [min(size, options.length) for size in full]
        tally.take(options.stage)
        tally.cut += sizes != full
        tally.tokens += sum(sizes)
        rows.append(row)
        counts.append(sizes)
    return rows, tally, counts


def _places(sizes: list[list[int]], at_once: int, seed: int) -> int:
    """Return the tokens of all rows with padding, in a random order; TRL's order gives nearly the same sum."""
    drawn = random.Random(seed).sample(sizes, len(sizes))
    together = [[size for row in drawn[at : at + at_once] for size in row] for at in range(0, len(drawn), at_once)]
    return sum(len(batch) * max(batch) for batch in together)


def _sample(row: dict[str, Any], tokenizer: Any) -> str:
    """Return a record as TRL encodes it, with white brackets around what is learned or unlearned."""
    prompt = _text(tokenizer, row["prompt"])
    if RECORD in row:
        return f"{prompt}{UNWRITTEN}"
    part = {
        name: learned_after(prompt, _text(tokenizer, row["prompt"] + row[name], ends=True))
        for name in _ANSWERS & row.keys()
    }
    if "rejected" in part:
        return f"{prompt}{part['chosen']} and not {part['rejected']}"
    return f"{prompt}{part['completion']} ({'wanted' if row['label'] else 'unwanted'})"


def _row(stage: str, record: dict[str, Any]) -> dict[str, Any]:
    """Return a record's columns for TRL. Raises OddRecord."""
    if stage == "grpo":
        read = forms.read_prompt(record)
        prompt = _plain(list(read.messages) or read.prompt)
        return {"prompt": prompt, RECORD: json.dumps({**record, "prompt": prompt})}
    read = forms.without_given(forms.read_record(record))
    names = {"dpo": ("prompt", "chosen", "rejected"), "kto": ("prompt", "completion", "label")}[stage]
    if any(name not in read.fields for name in names) or not read.fields["prompt"]:
        raise forms.OddRecord(f"it does not have the form {_FORMS[stage]}")
    answers = [read.fields[name] for name in names if name in _ANSWERS]
    parts = [message for answer in answers if isinstance(answer, list) for message in answer]
    if any(forms.is_marked(message) and not forms.is_learned(message) for message in parts):
        raise forms.LostPart(f"a message of its answers is not to be learned, and --stage {stage} learns all of them")
    prompt = list(read.messages[: read.learned_from]) or read.fields["prompt"]
    return {name: _plain(prompt if name == "prompt" else read.fields[name]) for name in names}


def _repeats(record: dict[str, Any], row: dict[str, Any]) -> bool:
    """Return whether the answers of a pair repeated its prompt, which was removed."""
    return "chosen" in row and record.get("prompt") is not None and len(row["chosen"]) < len(record["chosen"])


def _plain(value: Any) -> Any:
    """Return messages with role and content alone, because all rows of a column need equal keys. Raises OddRecord."""
    if not isinstance(value, list):
        return value
    messages = [documents.with_one_text(message) for message in value]
    if not all(isinstance(message.get("content"), str) for message in messages):
        raise forms.OddRecord("a message is not text")
    names = ("tool_calls", *forms.THOUGHTS)
    if lost := next((name for message in messages for name in names if message.get(name)), ""):
        raise forms.LostPart(f"the {lost} of a message would be lost: only --stage sft learns them")
    return [{"role": message["role"], "content": message["content"]} for message in messages]


def _learned(
    options: argparse.Namespace, row: dict[str, Any], tokenizer: Any, stops: Collection[int]
) -> list[list[int]]:
    """Return the tokens of each text that is learned. Raises OddRecord if a text cannot be learned unchanged."""
    prompt = row["prompt"]
    prompt_text = _text(tokenizer, prompt)
    size = len(tokens := _tokens(tokenizer, prompt, prompt_text))
    if isinstance(prompt, list):
        documents.check_read(prompt, prompt_text, {})
    if options.stage == "grpo":
        if isinstance(prompt, str) and len(tokens) > 1 and tokens[-1] == tokenizer.eos_token_id:
            raise forms.LostPart("the tokenizer ends its prompt like an answer: set its add_eos_token to false")
        if size > options.length - options.new_tokens:
            raise forms.OddRecord(f"its prompt leaves no room for --new-tokens in --length {options.length}")
        return [tokens]
    if size >= options.length:
        raise forms.OddRecord(f"its prompt fills --length {options.length}")
    rows = []
    for answer in (row[name] for name in row if name in _ANSWERS):
        whole = _text(tokenizer, prompt + answer, ends=True)
        rows.append(tokens := _tokens(tokenizer, prompt, whole))
        if isinstance(answer, list):
            for message in answer:
                documents.check_written(message, whole[max(0, len(prompt_text) - _JOINT) :], "")
        if why := endless(tokens, bytes([LEARNED]) * len(tokens), tokenizer, stops):
            raise forms.OddRecord(why)
    return rows


def _fingerprint(
    options: argparse.Namespace, training: Training, card: Device, devices: int, digests: tuple[str, str, str]
) -> dict[str, Any]:
    place = fingerprint.place(options, card, devices, rows_at_once(options, devices))
    names = dict(zip(("model", "tokenizer", "data"), digests, strict=True))
    counts = {"seed": training.seed, "target step": training.target_step}
    now = fingerprint.fingerprint(options, names, counts, place | fingerprint.versions(("trl", "accelerate")))
    now["job"] |= {"stage": options.stage} | {name: getattr(options, name) for name in _DECIDES[options.stage]}
    if options.stage == "grpo":
        now["job"]["reward"] = named(options.reward)
    return now


def _judge(before: Any, now: dict[str, Any], options: argparse.Namespace) -> fingerprint.Resumption:
    """Return how exactly a checkpoint can be resumed. Raises TrainingRefused for another stage."""
    stage = "none that it names" if before is None else before["job"].get("stage", "sft")
    if stage != options.stage:
        raise TrainingRefused(
            f"the checkpoint is of the stage {stage}, and this is {options.stage}. Add a job for this stage, which "
            "starts from the other job's weights (start_from)"
        )
    return judge(before, now, accept=options.accept_inexact)


def _check_reference(options: argparse.Namespace, training: Training) -> None:
    """Raise TrainingRefused if the reference would be another job's weights, because a resumed session lacks them."""
    if options.beta and not options.lora and training.parent_dir is not None:
        raise TrainingRefused(
            f"--stage {options.stage} on all weights compares with the initial model, which every session needs. Name "
            "that model as --model (an input) instead of start_from, or train an adapter (--lora)"
        )


def _trainer(
    options: argparse.Namespace,
    training: Training,
    work: tuple[CausalLM, Any, list[dict[str, Any]]],
    card: Device,
    folder: str,
    reporter: Any,
) -> Any:
    try:
        import datasets
        import trl
    except ImportError as error:
        raise TrainingRefused(
            f"--stage {options.stage} needs {error.name}: name trl in the job's requirements"
        ) from None
    model, tokenizer, rows = work
    datasets.disable_progress_bars()
    arguments = _arguments(options, training, card, folder)
    settings = {
        "model": model.whole,
        "processing_class": tokenizer,
        "train_dataset": datasets.Dataset.from_list(rows),
        "callbacks": [reporter],
    }
    if options.stage == "grpo":
        rewards = [Reward(command, options.reward_seconds) for command in options.reward]
        config = trl.GRPOConfig(
            **arguments,
            beta=options.beta,
            num_generations=options.generations,
            max_completion_length=options.new_tokens,
            temperature=options.temperature,
        )
        settings["callbacks"] = [reporter, _spread_watch()]
        trainer = trl.GRPOTrainer(**settings, args=config, reward_funcs=rewards)
    else:
        kind = {"dpo": (trl.DPOConfig, trl.DPOTrainer), "kto": (trl.KTOConfig, trl.KTOTrainer)}[options.stage]
        trainer = kind[1](**settings, args=kind[0](**arguments, beta=options.beta, max_length=options.length))
    for part in model.trained:  # TRL trains adapters of 4-bit models in bf16, and resumes them in fp32
        part.data = part.data.float()
    return trainer


def _spread_watch() -> Any:
    """Return a callback that ends a training if the rewards of each prompt stay equal."""
    from transformers import TrainerCallback

    class SpreadWatch(TrainerCallback):  # type: ignore[misc]  # not installed where types are checked
        spread = RewardSpread()

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            del args, control
            if "frac_reward_zero_std" in (logs or {}):
                self.spread.note(int(state.global_step), float(logs["frac_reward_zero_std"]))

    return SpreadWatch()


def _tokens(tokenizer: Any, prompt: Any, text: str) -> list[int]:
    """Return the tokens of a text as TRL encodes it; the chat template has already rendered messages."""
    special = {} if isinstance(prompt, str) else {"add_special_tokens": False}
    tokens: list[int] = tokenizer(text, **special)["input_ids"]
    return tokens


def _text(tokenizer: Any, messages: Any, *, ends: bool = False) -> str:
    if isinstance(messages, str):
        return f"{messages}{tokenizer.eos_token or ''}" if ends else messages
    return documents.rendered(tokenizer, messages, for_answer=not ends)


def _arguments(options: argparse.Namespace, training: Training, card: Device, folder: str) -> Mapping[str, Any]:
    """Return the arguments of the Trainer that all stages share. The agent decides when to save."""
    devices = int(os.environ.get("WORLD_SIZE", "1"))
    at_once = rows_at_once(options, devices)
    return {
        "output_dir": folder,
        "max_steps": training.target_step,
        "seed": training.seed,
        "per_device_train_batch_size": at_once,
        "gradient_accumulation_steps": options.batch * options.accumulate // (devices * at_once),
        "learning_rate": options.rate,
        "lr_scheduler_type": "cosine" if options.schedule == "cosine" else "constant_with_warmup",
        "warmup_steps": options.warmup,
        "weight_decay": options.decay,
        "max_grad_norm": options.clip,
        "optim": _OPTIMIZERS[options.optimizer],
        "gradient_checkpointing": bool(options.gradient_checkpointing),
        "gradient_checkpointing_kwargs": {"use_reentrant": False},
        "bf16": card.precision == "bf16",
        "fp16": card.precision == "fp16",
        "use_cpu": not card.accelerated,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "logging_steps": options.report_every,
        "logging_nan_inf_filter": False,
    }
