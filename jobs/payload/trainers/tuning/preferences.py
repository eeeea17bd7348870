"""Stages that learn what is better, by TRL: dpo from pairs, kto from marked answers, grpo from what a reward scores.

A step has --batch x --accumulate rows on however many devices, as in every stage; a row is a pair, an answer, or a text
that the model writes. The model that training begins with is the reference: with an adapter it is kept in the
checkpoint's folder ``ref``. grpo writes the texts of a step, and trains on them, in that step: every step is a
boundary of generation, and resumed exactly.
"""

from __future__ import annotations

import json
import os
import tempfile
from typing import TYPE_CHECKING, Any

import torch

from . import checkpoint, fingerprint
from .card import find_card
from .documents import data_digest
from .errors import Refused, UnreadableData
from .model import base_digest, make_model
from .options import rows_at_once
from .remembered import facts_of, recall
from .rewards import Reward, named
from .session import data_files, judge
from .tokenizer import digest, load_tokenizer

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from ..trainer_kit import Training
    from .card import Card
    from .model import Model

_FORMS = {
    "dpo": '{"prompt": ..., "chosen": ..., "rejected": ...}',
    "kto": '{"prompt": ..., "completion": ..., "label": true or false}',
    "grpo": '{"prompt": ...} and what the reward needs',
}
_BETA = {"dpo": 0.1, "kto": 0.1, "grpo": 0.0}
_DECIDES = {"dpo": ("beta",), "kto": ("beta",), "grpo": ("beta", "generations", "new_tokens", "temperature", "reward")}
_OPTIMIZERS = {"adamw": "adamw_torch", "adamw8bit": "adamw_bnb_8bit"}
RECORD = "record"  # the column that carries a whole record to the reward


def train(
    options: argparse.Namespace,
    training: Training,
    local_rank: int,
    no_corpus: str,
    callback: Callable[..., Any],
) -> None:
    """Train until the target step, or until asked to stop. Raises Refused and UnreadableData."""
    torch.use_deterministic_algorithms(options.deterministic)
    card = find_card(local_rank, options.precision)
    devices = int(os.environ.get("WORLD_SIZE", "1"))
    source, resume = options.model, training.resume_dir
    before = None if resume is None else checkpoint.read_fingerprint(resume)
    model_digest = base_digest(source)
    parent = None if training.parent_dir is None else checkpoint.read_fingerprint(training.parent_dir)
    recall(options, facts_of(options, model_digest, card, devices), before, parent)
    options.beta = _BETA[options.stage] if options.beta is None else options.beta
    tokenizer = load_tokenizer(source)
    paths = data_files(options, training)
    rows = read_rows(options.stage, paths, chat=bool(tokenizer.chat_template))
    if not rows:
        raise UnreadableData(
            f"{options.data or training.data_dir} has no record for --stage {options.stage}, which are lines of "
            f"train-*.jsonl like {_FORMS[options.stage]}. {no_corpus}; --data names another folder"
        )
    now = _fingerprint(options, training, card, devices, (model_digest, digest(tokenizer), data_digest(paths)))
    metrics = {}
    if resume is not None:
        judged = _judge(before, now, options)
        metrics["exactness"] = float(judged.exactness.removeprefix("E"))
        _tell(f"going on, {judged.exactness}: {judged.told()}")
    _check_reference(options, training)
    torch.manual_seed(training.seed)
    # Not with the checkpoint's weights, which the Trainer loads itself: the reference is made of what is there before.
    model = make_model(options, source, training.parent_dir, None, card)

    def beside(folder: Path) -> None:
        (folder / "training_args.bin").unlink(missing_ok=True)  # a pickle, of which nothing is read again
        (folder / checkpoint.FINGERPRINT).write_text(json.dumps(now, indent=1))

    with tempfile.TemporaryDirectory(prefix="trl-") as folder:
        told = callback(training, metrics=metrics, beside=beside)
        trainer = _trainer(options, training, (model, tokenizer, rows), card, folder, told)
        trainer.train(resume_from_checkpoint=str(resume) if resume else None)


def read_rows(stage: str, paths: list[Path], *, chat: bool) -> list[dict[str, Any]]:
    """Return the records of a stage; what is none is passed over and counted. ``chat``: messages can be written.

    All of a training must be texts, or all messages: raises UnreadableData where they are mixed.
    """
    rows: list[dict[str, Any]] = []
    passed_over, kinds = 0, set()
    for path in paths:
        with path.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                row = _row(stage, line)
                if row is None:
                    passed_over += bool(line.strip())
                    continue
                kinds.add(type(row["prompt"]))
                rows.append(row)
    if len(kinds) > 1:
        raise UnreadableData("some prompts are texts and some are messages; a training takes one kind")
    if list in kinds and not chat:
        raise UnreadableData("the prompts are messages, and the tokenizer has no chat template to write them with")
    if passed_over:
        _tell(f"{passed_over} lines are no record of {_FORMS[stage]} and were passed over")
    return rows


def _tell(words: str) -> None:
    """Print what all processes know, from the first of them."""
    if os.environ.get("RANK", "0") == "0":
        print(f"finetune: {words}", flush=True)


def _row(stage: str, line: str) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    if not isinstance(record, dict) or not _is_said(record.get("prompt")):
        return None
    kind = type(record["prompt"])
    match stage, record:
        case "dpo", {"prompt": prompt, "chosen": chosen, "rejected": rejected}:
            if _is_said(chosen, kind) and _is_said(rejected, kind) and chosen != rejected:
                return {"prompt": prompt, "chosen": chosen, "rejected": rejected}
        case "kto", {"prompt": prompt, "completion": completion, "label": bool(label)}:
            if _is_said(completion, kind):
                return {"prompt": prompt, "completion": completion, "label": label}
        case "grpo", {"prompt": prompt}:
            return {"prompt": prompt, RECORD: json.dumps(record)}
    return None


def _is_said(value: object, kind: type = object) -> bool:
    """Tell whether a value is a text or messages, of ``kind`` where another one has told it."""
    if isinstance(value, str):
        return bool(value) and issubclass(str, kind)
    return (
        isinstance(value, list)
        and bool(value)
        and issubclass(list, kind)
        and all(
            isinstance(message, dict) and message.keys() == {"role", "content"} and
            all(isinstance(part, str) for part in message.values())
            for message in value
        )
    )  # fmt: skip


def _fingerprint(
    options: argparse.Namespace, training: Training, card: Card, devices: int, digests: tuple[str, str, str]
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
    """Return how exactly a checkpoint is gone on from. Raises Refused for that of another stage, told or not."""
    stage = "none that it names" if before is None else before["job"].get("stage", "sft")
    if stage != options.stage:
        raise Refused(
            f"the checkpoint is of the stage {stage}, and this is {options.stage}: a stage is a job of its own, which "
            "begins with the other's weights (start_from)"
        )
    return judge(before, now, accept=options.accept_inexact)


def _check_reference(options: argparse.Namespace, training: Training) -> None:
    """Refuse all weights on another job's: the reference would be that job's, and is no longer there after a resume."""
    if options.beta and not options.lora and training.parent_dir is not None:
        raise Refused(
            f"--stage {options.stage} on all weights compares with the model that it begins with, which every session "
            "needs again: name that as --model (an input) instead of start_from, or train an adapter (--lora)"
        )


def _trainer(
    options: argparse.Namespace,
    training: Training,
    work: tuple[Model, Any, list[dict[str, Any]]],
    card: Card,
    folder: str,
    told: Any,
) -> Any:
    try:
        import datasets
        import trl
    except ImportError as error:
        raise Refused(f"--stage {options.stage} needs {error.name}: name trl in the job's requirements") from None
    model, tokenizer, rows = work
    datasets.disable_progress_bars()
    arguments = _arguments(options, training, card, folder)
    given = {
        "model": model.whole,
        "processing_class": tokenizer,
        "train_dataset": datasets.Dataset.from_list(rows),
        "callbacks": [told],
    }
    if options.stage == "grpo":
        longest = options.length - options.new_tokens
        kept = given["train_dataset"].filter(lambda row: _tokens(tokenizer, row["prompt"]) <= longest)
        if not len(kept):
            raise UnreadableData(
                f"no prompt leaves room for --new-tokens {options.new_tokens} in --length {options.length}"
            )
        rewards = [Reward(command, options.reward_seconds) for command in options.reward]
        config = trl.GRPOConfig(
            **arguments,
            beta=options.beta,
            num_generations=options.generations,
            max_completion_length=options.new_tokens,
            temperature=options.temperature,
        )
        trainer = trl.GRPOTrainer(**{**given, "train_dataset": kept}, args=config, reward_funcs=rewards)
    else:
        kind = {"dpo": (trl.DPOConfig, trl.DPOTrainer), "kto": (trl.KTOConfig, trl.KTOTrainer)}[options.stage]
        trainer = kind[1](**given, args=kind[0](**arguments, beta=options.beta, max_length=options.length))
    for part in model.trained:  # TRL would train adapters of 4 bit models in 16 bits, and resume them in 32
        part.data = part.data.float()
    return trainer


def _tokens(tokenizer: Any, prompt: Any) -> int:
    if isinstance(prompt, str):
        return len(tokenizer(prompt)["input_ids"])
    return len(tokenizer.apply_chat_template(prompt, add_generation_prompt=True, return_dict=True)["input_ids"])


def _arguments(options: argparse.Namespace, training: Training, card: Card, folder: str) -> Mapping[str, Any]:
    """Return what the Trainers of all stages are told. When to save is the agent's to say."""
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
