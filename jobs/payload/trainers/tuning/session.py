"""Set up one process (rank) of a training: device, data, fingerprint, model. Then run the loop."""

import argparse
import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ..trainer_kit import Training
from . import checkpoint, fingerprint
from .attention import is_apart, tell_apart
from .base import base_digest, check_length
from .data.documents import check_vocabulary, digest, load_tokenizer, stop_tokens
from .data.images import KINDS, Sight, find_sight, image_digest, lay
from .data.reader import data_digest, files, unread
from .data.rows import RowOrder, Rows, describe, pack, samples
from .data.tally import check, left_out
from .devices.card import Device, find_card
from .devices.group import Group
from .devices.sharding import Sharing, is_shared, load_in_turn, parameters
from .errors import TrainingRefused, UnreadableData, say
from .loop import FirstSteps, Loop, LoopWork
from .memory import facts_of, keep, recall
from .model import ALONE, CausalLM, load_libraries, make_model, separation
from .options import by_layers, rows_at_once
from .rounds import Rounds
from .start import Start

HELD_OUT_ROWS = 32  # rows for the held-out loss


def train(options: argparse.Namespace, training: Training, local_rank: int, no_corpus: str, start: Start) -> None:
    """Train until the target step, or until a stop is requested. Raises TrainingRefused and UnreadableData."""
    torch.use_deterministic_algorithms(options.deterministic)
    # Deterministic mode would also fill uninitialised memory, to reveal reads before writes. No code here does that,
    # and filling takes 1 to 3 % of the time.
    torch.utils.deterministic.fill_uninitialized_memory = False
    card = find_card(local_rank, options.precision)
    group = Group(card.device, alone=bool(options.zero))
    _train(options, training, group, card, no_corpus, start)
    group.leave()  # not after an error: it would deadlock with the other ranks


def _train(
    options: argparse.Namespace, training: Training, group: Group, card: Device, no_corpus: str, start: Start
) -> None:
    load_libraries(options, card)
    start.passed("libraries")
    source, resume = options.model, training.resume_dir
    before, parent = (
        None if folder is None else checkpoint.read_fingerprint(folder) for folder in (resume, training.parent_dir)
    )
    digests = {"model": base_digest(source)}
    devices = _devices(options, group, card)
    facts = facts_of(options, digests["model"], card, devices)
    recall(options, facts, before, parent)
    options.apart = is_apart(options, source, card)
    options.alone = _is_alone(options, source)
    options.shared = bool(options.zero) or is_shared(options, source, card, group)
    at_once = rows_at_once(options, group.size)
    tokenizer = load_tokenizer(source)
    sight = _sight(options, source, group)
    rows: Rows | Rounds
    rows, held_out, digests["data"] = _corpus(options, training, group, tokenizer, sight)
    if options.stage == "selftrain":
        rows = Rounds(options, training, group, tokenizer, data_files(options, training))
    _check_data(options, training, group, (rows, held_out), tokenizer)
    digests["tokenizer"] = digest(tokenizer)
    if not len(rows):
        raise UnreadableData(
            f"{data_folder(options, training)} has nothing to learn for a row of {options.length} tokens. {no_corpus}"
        )
    place = fingerprint.place(options, card, devices, at_once)
    now = _fingerprint(options, training, digests, place, rows, seeing=sight is not None)
    group.same("fingerprint", json.dumps(now, sort_keys=True))
    start.passed("rows")
    accepted = options.accept_inexact or fingerprint.changed_alone(before, now, options.changed)
    resumption = None if resume is None else judge(before, now, accept=accepted)
    model = _model(options, training, source, group, card)
    if not options.zero:  # DeepSpeed broadcasts the weights itself, once they are on the devices
        group.share(model.trained)
    start.passed("weights")
    order: RowOrder | Rounds = RowOrder(len(rows), options.batch * options.accumulate, training.seed)
    if isinstance(rows, Rounds):
        rows.begin(model, card, resume)
        order = rows

    def report(text: str) -> None:
        say(text)
        if group.first:
            keep(options, facts, at_once)

    first_steps = FirstSteps(card, options.batch * options.accumulate * options.length, report)
    work = LoopWork(model, tokenizer, rows, order, held_out, at_once, now, first_steps)
    loop = Loop(options, training, group, card, work, start)
    if resume is not None and resumption is not None:
        details = {"class": resumption.exactness, "changed": [list(change) for change in resumption.changed]}
        # If the checkpoint has no fingerprint or another optimiser, only weights and step can be restored.
        same_optimizer = before is not None and before["job"]["optimizer"] == options.optimizer
        loop.restore(resume, details, optimizer=same_optimizer)
        say(f"resuming from step {loop.step}, {resumption.exactness}: {resumption.text()}")
    loop.run()


def _devices(options: argparse.Namespace, group: Group, card: Device) -> int:
    """Return the number of devices of a step: one per rank, or several for one rank. Set ``options.spread``."""
    if by_layers(options) and group.size == 1 and card.accelerated:
        options.spread = options.devices or torch.cuda.device_count()
        say(f"the layers of the base are spread over {options.spread} devices")
    return group.size * int(options.spread)


def _check_data(
    options: argparse.Namespace, training: Training, group: Group, data: tuple[Rows | Rounds, Rows], tokenizer: Any
) -> None:
    """Report the training data. Raises UnreadableData if too many records are left out, or tokens have no embedding."""
    rows, held_out = data
    facts = rows.facts
    facts["data"]["left_out"] += unread(data_folder(options, training), data_files(options, training))
    if group.first:
        texts = rows.samples() if isinstance(rows, Rounds) else samples(rows, tokenizer)
        describe(training, facts["data"], (facts["rows"], facts["tokens"]), texts, facts["rows"] * facts["length"])
        if why := left_out(held_out.facts["data"]):
            say(f"left out of the held-out records: {why}")
    check(facts["data"], options.skip_at_most, str(data_folder(options, training)))
    check_vocabulary(options.model, tokenizer, rows.highest_token)


def _is_alone(options: argparse.Namespace, source: str) -> bool:
    """Return whether each document gets its own rows; if so, print why. Raises TrainingRefused if rows are too long."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(source)
    check_length(options.length, config.to_dict(), source)
    if config.model_type in KINDS or separation(config, options.length) != ALONE:
        return False
    say(
        f"each document has rows of its own (padding): layers of {config.model_type} are not known to keep documents "
        f"of one row of {options.length} tokens apart. A smaller --length wastes less"
    )
    return True


def _sight(options: argparse.Namespace, source: str, group: Group) -> Sight | None:
    """Return the image settings of a vision model; None for text. Raises TrainingRefused if --zero cannot train it."""
    sight = find_sight(source, options.image_tokens)
    if options.zero:
        from .devices.zero import check

        if sight is not None:
            raise TrainingRefused("--zero is for models of text only. Omit it: an adapter (--lora) needs little memory")
        check(options, parameters(source), group)
    return sight


def _fingerprint(
    options: argparse.Namespace,
    training: Training,
    digests: Mapping[str, str],
    place: dict[str, Any],
    rows: Rows | Rounds,
    *,
    seeing: bool,
) -> dict[str, Any]:
    now = fingerprint.fingerprint(options, digests, {"seed": training.seed, "target step": training.target_step}, place)
    if seeing:
        now["job"]["image tokens"] = options.image_tokens
        now["place"] |= fingerprint.versions(("pillow",))
    if isinstance(rows, Rounds):
        now["job"] |= rows.decides
    elif (parts := rows.facts.get("windows", 1)) > 1:
        now["job"]["packed in parts"] = parts  # as the next two: older versions made other rows of the same data
    if not isinstance(rows, Rounds) and (version := rows.facts["data"]["newer"]):
        now["job"]["records read as"] = version
    if options.alone:
        now["job"]["documents a row"] = 1
    return now


def _model(options: argparse.Namespace, training: Training, source: str, group: Group, card: Device) -> CausalLM:
    """Return the model, or this rank's shard of it."""
    torch.manual_seed(training.seed)
    make = partial(make_model, options, source, training.parent_dir, training.resume_dir, card)
    if options.shared:
        by = f"ZeRO-{options.zero}{' and host memory' if options.offload else ''}" if options.zero else "FSDP2"
        say(f"the weights are sharded over {group.size} devices ({by})")
        share_out = None if options.zero else Sharing(card, group).share_out
        itemsize = card.dtype.itemsize if options.lora or options.zero else 4
        model = load_in_turn(partial(make, share_out), itemsize * parameters(source), group)
    else:
        model = make()
    if options.apart:
        tell_apart(model.root)
    return model


def _corpus(
    options: argparse.Namespace, training: Training, group: Group, tokenizer: Any, sight: Sight | None
) -> tuple[Rows, Rows, str]:
    """Return training rows, held-out rows, and the digest of the training files. Rank 0 packs while others wait."""
    folder = data_folder(options, training)
    paths = data_files(options, training)

    stops = stop_tokens(options.model, tokenizer)

    def rows_of(files: list[Path], rows_max: int | None = None) -> Rows:
        if sight is None:
            return pack(files, tokenizer, options.length, options.cache, rows_max, alone=options.alone, stops=stops)
        return lay(files, folder, tokenizer, sight, options.length, options.cache, rows_max, stops)

    if not group.first:
        group.wait()
    rows, held_out = rows_of(paths), rows_of(files(folder, "heldout"), HELD_OUT_ROWS)
    if group.first:
        group.wait()
    return rows, held_out, data_digest(paths) if sight is None else f"{data_digest(paths)} {image_digest(folder)}"


def data_folder(options: argparse.Namespace, training: Training) -> Path:
    """Return the folder of the data: --data if it is set, else the job's corpus."""
    return Path(options.data) if options.data else training.data_dir


def data_files(options: argparse.Namespace, training: Training) -> list[Path]:
    """Return the training files, in reading order."""
    return files(data_folder(options, training), "train-*")


def judge(before: Any, now: dict[str, Any], *, accept: bool) -> fingerprint.Resumption:
    """Return how exactly a checkpoint can be resumed. Raises TrainingRefused if inexactly, unless ``accept``."""
    resumption = fingerprint.compare(before, now)
    if resumption.exactness == fingerprint.INEXACT and not accept:
        raise TrainingRefused(
            f"the checkpoint is of another training ({resumption.exactness}): {resumption.text()}. Add a new job, "
            "which may start from this job's weights (start_from), or set --accept-inexact"
        )
    return resumption
