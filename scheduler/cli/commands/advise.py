"""`schedctl advise`: show whether a model can be trained on a machine, with which settings, time and cost."""

import json
import math
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from jobs.advice import shape as shapes
from jobs.advice.choice import Advice, Choice, Wishes, flags
from jobs.advice.choice import advise as advise_on
from jobs.advice.choice import compare as compare_machines
from jobs.advice.choice import files as job_files
from jobs.advice.choice import picture as draw_machines
from jobs.advice.memory import cadence
from jobs.advice.seen import Measurement, read_seen, write_seen
from jobs.catalogue import job_from_table
from jobs.duration import parse_duration, show_duration
from jobs.payload.bounded_file import read_bounded
from jobs.payload.bounds import digits, read_json
from jobs.problem import NotFound, Refusal
from jobs.size import counted
from scheduler.cli.shell.command import Tables, argument, command, option
from scheduler.cli.shell.context import Cli
from scheduler.cli.shell.exits import UsageFault
from scheduler.cli.shell.output import Output
from scheduler.views.documents import picked

_PRICE_MAX = 100_000.0  # dollars per hour
_TOKENS_MAX = 1e18
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "g": 10**9}
Word = TypeVar("Word", bound=str)
_OWN = "advice.json"  # file of this machine's measurements, in the state folder
SECONDS = 240  # time limit of the measuring script
PROGRAM = Path(__file__).resolve().parents[3] / "jobs/payload/trainers/calibrate.py"
# (batch, sequence length): five to eight steps of each are measured.
_POINTS = ((1, 512), (1, 2048), (2, 2048), (1, 8192))
_TABLE = ("option", "result", ">GiB", ">batch", ">tokens/s", ">hours", ">p90", ">kWh", ">money")
_DISK_BYTES_A_SECOND = 1e9  # assumed write speed for a checkpoint


def _tokens(text: str) -> float:
    """Parse a number of tokens: 20000000, 20e6, 20M or 0.02B. Raises BadParameter."""
    unit = text[-1:].lower() if text[-1:].isalpha() else ""
    try:
        number = float(text.removesuffix(text[-1:]) if unit else text) * _UNITS[unit]
    except (ValueError, KeyError):
        number = math.nan
    if not 1 <= number <= _TOKENS_MAX:
        raise typer.BadParameter(f"{text} is no number of tokens; such as 20M, 20e6 or 1.5B")
    return number


@command(
    "schedctl advise deepseek-coder-6.7b --on '5060ti x2' --tokens 20M",
    "schedctl advise deepseek-coder-1.3b --on t4 --method full --seq 1024 --explain",
    "schedctl advise hours",
    "schedctl advise deepseek-coder-6.7b --compare '5060ti x1' '5060ti x2' 4090 --picture out.svg",
    kind=Tables,
)
def advise(  # noqa: PLR0913, PLR0917 - one parameter for each option
    cli: Cli,
    model: Annotated[
        str,
        argument("MODEL", "A shipped name, OWNER/NAME[@REVISION] of the Hub, its config.json; or hours: see below."),
    ] = "",
    machines: Annotated[list[str] | None, argument("[CARD[xN]]...", "With --compare: the other machines.")] = None,
    on: Annotated[str, option("--on CARD[xN]|POOL", "Such as 4090, '5060ti x2', or a pool of yours.")] = "5060ti",
    method: Annotated[str, option("--method full|lora|qlora", "Default: LoRA where it fits, else QLoRA.")] = "",
    seq: Annotated[int, option("--seq", "Tokens of a row.", min=1, max=1 << 20)] = 2048,
    batch: Annotated[int, option("--batch", "Rows at a time on a device.", min=0, max=4096)] = 0,
    rows: Annotated[int, option("--rows", "Rows of a step on all devices.", min=1, max=1 << 20)] = 16,
    rank: Annotated[int, option("--rank", "Rank of the adapter.", min=1, max=4096)] = 16,
    tokens: Annotated[float | None, option("--tokens NUMBER", "Tokens to train on: 20M, 20e6.", parser=_tokens)] = None,
    samples: Annotated[int | None, option("--samples", "Rows to train on, of --seq tokens.", min=1)] = None,
    epochs: Annotated[float, option("--epochs", "How often all of them.", min=0.001)] = 1.0,
    image: Annotated[str, option("--image WxH", "Pixels of each row's image.")] = "",
    deadline: Annotated[str, option("--deadline TIME", "Within this time, such as 12h.")] = "",
    stack: Annotated[
        str, option("--stack", "finetune (ours), finetune-compiled, transformers or transformers-bare.")
    ] = "finetune-compiled",
    checkpointing: Annotated[str, option("--checkpointing on|off", "Default: the quicker.")] = "",
    optimizer: Annotated[
        str, option("--optimizer", "adamw, adamw8bit, adamw-foreach, adafactor or sgd. Default: any.")
    ] = "",
    parallel: Annotated[str, option("--parallel", "ddp, fsdp, layers, zero1 to zero3. Default: any.")] = "",
    offload: Annotated[str, option("--offload", "none, cpu or nvme. Default: any.")] = "",
    ram: Annotated[float, option("--ram-gib", "Memory of the machine.", min=1)] = 128.0,
    price: Annotated[
        float | None, option("--price", "Dollars an hour. Default: the pool's, else electricity.", min=0)
    ] = None,
    compare: Annotated[list[str] | None, option("--compare CARD[xN][=$]", "Machines and prices, side by side.")] = None,
    picture: Annotated[Path | None, option("--picture FILE", "With --compare: time against money as SVG.")] = None,
    write: Annotated[Path | None, option("--write DIR", "Write the job, DeepSpeed's file and the lines.")] = None,
    explain: Annotated[bool, option("--explain", "Every figure with its formula and source.")] = False,
    read: Annotated[Path | None, option("--read FILE", "Take in what others measured (an advice.json).")] = None,
    calibrate: Annotated[bool, option("--calibrate", "Measure real steps on this machine's card; keep them.")] = False,
    probe: Annotated[bool, option("--probe", "Run two layers without weights instead of using the formula.")] = False,
    python: Annotated[str, option("--python PATH", "With --calibrate, --probe: the Python with torch.")] = "python3",
) -> None:
    """Show whether a model fits a machine, with which settings, time and cost.

    Figures are computed, nothing is fetched, no card is needed. What was measured (--calibrate, --read, and the runs of
    your pools) counts more with every step. See docs/advice.md. "schedctl advise hours" shows instead which of your
    jobs are worth more hours: what the free ones of this week could buy, and what those of last week bought.
    """
    if model == "hours":
        from scheduler.cli.commands.forecasts import show_advice

        show_advice(cli)
        return
    if machines and not compare:
        raise UsageFault(
            f"advise {model} {' '.join(machines)}",
            "one machine is asked about by --on",
            "Several: put --compare before",
        )
    measurements = _measurements(cli, read)
    if not model and read is None:
        remedy = "Name one, such as deepseek-coder-6.7b: schedctl advise --help"
        raise UsageFault("advise", "no model was named", remedy)
    if not model:
        cli.out.say(f"{len(measurements)} measurements are known now.")
        return
    chosen = _one_of("--method", method, shapes.METHODS)
    wishes = Wishes(
        seq=seq,
        rows=max(rows, batch),
        tokens=tokens * epochs if tokens else (samples or 0) * seq * epochs,
        methods=() if chosen is None else (chosen,),
        batch=batch,
        rank=rank,
        stack=shapes.STACKS[_one_of("--stack", stack, tuple(shapes.STACKS)) or "finetune-compiled"],
        image=_pixels(image),
        ram_gib=ram,
        usd_per_hour=price,
        checkpointing={"on": True, "off": False}.get(_one_of("--checkpointing", checkpointing, ("on", "off")) or ""),
        optimizer=_one_of("--optimizer", optimizer, shapes.OPTIMIZERS),
        parallel=_one_of("--parallel", parallel, shapes.PARALLELS),
        offload=_one_of("--offload", offload, shapes.OFFLOADS),
    )
    shape = shapes.find_shape(model)
    if probe:
        wishes = _run_layers(cli, shape, wishes, python)
    if calibrate:
        if shapes.recognised(on) is None:
            _place(cli, on, wishes)
            _queue_steps(cli, shape, wishes, on)
            return
        measurements = _run_steps(cli, shape, wishes, python, measurements)
    if compare:
        _show_comparison(
            cli.out,
            shape,
            [_machine(cli, words) for words in (*compare, *(machines or ()))],
            wishes,
            measurements,
            picture,
        )
        return
    card, devices, wishes, more = _place(cli, on, wishes)
    advice = advise_on(shape, card, devices, wishes, (*measurements, *more))
    _show_advice(cli.out, advice, deadline, explain=explain)
    if write is not None:
        _write_files(cli.out, advice, model, write)


def _one_of(option: str, word: str, choices: tuple[Word, ...]) -> Word | None:
    """Return ``word`` if it is one of ``choices``, None if it is empty. Raises UsageFault."""
    choice = next((one for one in choices if one == word), None)
    if word and choice is None:
        raise UsageFault(f"{option} {word}", "there is no such word", f"Use: {', '.join(choices)}")
    return choice


def _pixels(image: str) -> tuple[int, int]:
    """Parse ``1008x1008``, width and height in pixels; (0, 0) for an empty text. Raises UsageFault."""
    wide, _, high = image.lower().partition("x")
    if not image:
        return (0, 0)
    pixels = (digits(wide, 1 << 16) or 0, digits(high, 1 << 16) or 0)
    if not all(pixels):
        raise UsageFault(f"--image {image}", "it is not two numbers of pixels", "Write it like 1008x1008")
    return pixels


def _machine(cli: Cli, words: str) -> tuple[shapes.Card, int, float | None]:
    """Parse ``h100 x1=2.50`` into GPU, count and dollars per hour (None if absent). Raises UsageFault, NotFound."""
    name, equals, price = words.partition("=")
    try:
        dollars = float(price.strip().removeprefix("$")) if equals else None
    except ValueError:
        dollars = -1.0
    if dollars is not None and not 0 <= dollars <= _PRICE_MAX:
        raise UsageFault(f"--compare {words}", f"{price} is no price of an hour", "Write it like 'h100 x1=2.50'")
    card, devices, wishes, _ = _place(cli, name.strip(), Wishes(usd_per_hour=dollars))
    return card, devices, wishes.usd_per_hour


def _place(cli: Cli, words: str, wishes: Wishes) -> tuple[shapes.Card, int, Wishes, tuple[Measurement, ...]]:
    """Return the GPU that ``words`` name, or the GPU of a pool with its price and the measurements of its runs."""
    if (recognised_card := shapes.recognised(words)) is not None:
        return (*recognised_card, wishes, ())
    pools = {name: pool for name, pool in cli.app.pools.items() if name == words}
    if not pools:
        shapes.find_cards(words)  # raises NotFound with similar names
    from scheduler.service.facts.overheads import card_of, seen_of_runs
    from scheduler.store import jobs, rates, series

    pool = pools[words]
    card = card_of(pool)
    if card is None:
        why = f"its accelerator {pool.accelerator!r} is no card that is known"
        if pool.kind == "tpu":
            why = "finetune needs torch with CUDA; scripts of yours that use JAX or torch_xla can train on a TPU"
        raise NotFound(f"pool {words}", why, "Name a card: --on 4090")
    if pool.price_microdollars_per_hour and wishes.usd_per_hour is None:
        wishes = replace(wishes, usd_per_hour=pool.price_microdollars_per_hour / 1e6)
    with cli.app.database.read() as tx:
        specs = [record.spec for record in jobs.everything(tx)]
        measurements = seen_of_runs(specs, rates.everything(tx), cli.app.pools, series.gpu_metrics(tx))
    return card, pool.devices_per_session, wishes, measurements


def _measurements(cli: Cli, read: Path | None) -> tuple[Measurement, ...]:
    """Return the measurements in this machine's file, after the measurements in the file ``read`` are added to it."""
    own = cli.paths.state_dir / _OWN
    own_measurements = read_seen(own) if own.is_file() else ()
    if read is None:
        return own_measurements
    return _keep(own, (*own_measurements, *read_seen(read)))


def _keep(own: Path, measurements: Sequence[Measurement]) -> tuple[Measurement, ...]:
    """Write measurements without duplicates to the file ``own``, and return them."""
    result = tuple(dict.fromkeys(measurements))
    own.parent.mkdir(parents=True, exist_ok=True)
    write_seen(own, result)
    return result


# Calibration measures real training steps, on this machine's GPU or in a short session on a pool.
def setups(shape: shapes.Shape, wishes: Wishes) -> list[dict[str, Any]]:
    """Return the setups that calibrate.py measures: each wanted method, with and without gradient checkpointing."""
    config = {
        "model_type": "qwen2" if shape.bias else "llama",
        "hidden_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv,
        "intermediate_size": shape.between,
        "vocab_size": shape.words,
        "tie_word_embeddings": shape.tied,
        "max_position_embeddings": 32_768,
    }
    own = wishes.stack.name.startswith("finetune")
    return [
        {
            "name": f"{shape.name} {method}{' checkpointing' if again else ''}",
            "model": shape.name,
            "shape": config,
            "trainer": "finetune" if own else "transformers",
            "method": method,
            "rank": wishes.rank,
            "weights": "fp32" if method == "full" and own else "bf16",
            "autocast": wishes.stack.autocast,
            "checkpointing": again,
            "compile": wishes.stack.compiled,
            "points": list(_POINTS),
        }
        for method in wishes.methods or shapes.METHODS[1:]
        for again in (True, False)
    ]


def _run_steps(
    cli: Cli, shape: shapes.Shape, wishes: Wishes, python: str, measurements: Sequence[Measurement]
) -> tuple[Measurement, ...]:
    """Measure on this machine's GPU, store the result, and return all measurements. Raises Refusal if it fails."""
    with tempfile.TemporaryDirectory(prefix="schedctl-calibrate-") as name:
        setups_file, out = Path(name) / "setups.json", Path(name) / "out.json"
        setups_file.write_text(json.dumps(setups(shape, wishes)), encoding="utf-8")
        words = [python, str(PROGRAM), str(out), str(setups_file), "--seconds", str(SECONDS)]
        cli.out.say(f"Real steps of {shape.name}, {SECONDS // 60} minutes at most ...")
        try:
            ended = subprocess.run(words, capture_output=True, text=True, check=False, timeout=2 * SECONDS)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Refusal("nothing was measured", str(error), f"Name a Python with torch: --python {python}") from None
        if ended.returncode or not out.is_file():
            last = (ended.stderr.strip() or ended.stdout.strip() or "it said nothing").splitlines()[-1]
            raise Refusal("nothing was measured", last[:300], "Name a Python with torch: --python PATH")
        measured = read_seen(out)
    own = cli.paths.state_dir / _OWN
    result = _keep(own, (*measurements, *measured))
    cli.out.say(f"{len(measured)} measurements more; {own} has all {len(result)}, and may be shared.")
    return result


def _run_layers(cli: Cli, shape: shapes.Shape, wishes: Wishes, python: str) -> Wishes:
    """Return the wishes with the bytes that a layer keeps per token, measured without weights. Raises Refusal."""
    probed = []
    config = Path(shape.source)
    for setup in [one for one in setups(shape, wishes) if not one["checkpointing"]]:
        # The activations of an adapter do not depend on the precision of its base model.
        like = {**setup, "method": "lora" if setup["method"] == "qlora" else setup["method"], "compile": False}
        if config.name == "config.json" and config.is_file():
            like["shape"] = read_json(read_bounded(config))
        words = [python, str(PROGRAM.with_name("probe.py")), json.dumps(like)]
        try:
            ended = subprocess.run(words, capture_output=True, text=True, check=True, timeout=SECONDS)
            kept = float(read_json(ended.stdout)["layer_bytes"])
        except (OSError, subprocess.SubprocessError, ValueError, KeyError, TypeError) as error:
            last = (str(getattr(error, "stderr", "") or "").strip().splitlines() or [str(error)])[-1]
            raise Refusal("nothing was probed", last[:300], "Name a Python with torch: --python PATH") from None
        probed.append((setup["method"], kept))
        cli.out.say(f"A layer keeps {kept:,.0f} bytes a token ({setup['method']}).")
    return replace(wishes, probed=tuple(probed))


def _queue_steps(cli: Cli, shape: shapes.Shape, wishes: Wishes, pool: str) -> None:
    """Queue a job that measures in a short session on a pool, and saves the measurements as its checkpoint."""
    name = f"calibrate-{shape.name.rpartition('/')[2].lower()}"[:40].rstrip("-._")
    out = "output/measured.json"
    program = ["{python}", "{payload}/trainers/calibrate.py", out, json.dumps(setups(shape, wishes))]
    table = {"name": name, "role": "evaluate", "command": program, "whole": "15m", "pools": [pool], "weight": 2.0}
    from scheduler.cli.commands.queue_add import add_specs

    add_specs(cli, [job_from_table(table, "advise --calibrate")], "advise --calibrate")
    cli.out.say(f"When {name} is done: schedctl checkpoints pull {name} DIR; schedctl advise --read DIR/measured.json")


# Advice as text: the result, a table of options, formulas, and machines side by side.
def _show_advice(out: Output, advice: Advice, deadline: str, *, explain: bool) -> None:
    """Write the chosen option and all options. Raises UsageFault for an invalid deadline."""
    try:
        within = parse_duration(deadline) if deadline else 0
    except ValueError as error:
        raise UsageFault(f"--deadline {deadline}", str(error), "Write it like 12h") from None
    if out.as_json:
        document = advice_json(advice)
        if within and advice.best:
            document["in_time"] = _in_time(advice.best, within)
        out.data(document)
        return
    machine = f"{advice.devices} x {advice.card.name} ({advice.card.usable_gib:g} GiB each)"
    one = advice.best
    if one is None:
        out.line(f"{advice.shape.name} does not fit {machine}.")
        for rung in advice.rungs:
            out.line(f"  {rung.rung}: {rung.why}")
        out.line(f"Nearest that fits: {advice.nearest}" if advice.nearest else "Nothing near it fits.")
        return
    out.line(f"{advice.shape.name} ({advice.shape.parameters / 1e9:.2f} B) on {machine}: {one.setup.text}")
    out.facts(*_facts(advice, one, within))
    out.line()
    out.table(_TABLE, [_row(rung, advice.wishes) for rung in advice.rungs])
    for warning in advice.card.warnings:
        out.warn(f"{advice.card.name}: {warning}")
    if explain:
        _explain(out, advice, one)


def _facts(advice: Advice, one: Choice, within: int) -> list[tuple[str, str]]:
    """Return the chosen option as names and values; ``within`` is the deadline in seconds, 0 for none."""
    setup, pace, tokens = one.setup, one.pace, advice.wishes.tokens
    document = choice_json(one, has_time=bool(tokens))
    basis = f"{pace.samples:,} measured steps" if pace.samples else "a prior; schedctl advise --calibrate measures"
    late = f"{one.hours_p90:.1f} h in 90 % of cases (P90)"
    return [
        ("memory", f"{one.verdict}: {one.why}, {100 * one.margin:.0f} % left"),
        (
            "step",
            (
                f"{counted(setup.batch, 'row')} x {setup.accumulate} x {setup.devices} = {counted(setup.rows, 'row')} "
                f"of {counted(setup.seq, 'token')}"
            ),
        ),
        ("speed", f"{pace.tokens_per_second:,.0f} tokens a second, limited by {pace.limit} ({basis})"),
        ("time", f"{one.hours:.1f} h for {tokens / 1e6:,.1f} M tokens, {late}" if tokens else ""),
        ("quota", f"{one.hours:.1f} session hours" if tokens else ""),
        ("money", f"${one.usd:.2f}, {one.kwh:.1f} kWh" if tokens else ""),
        ("in time", _in_time(one, within) if within and tokens else ""),
        ("machine", f"{one.storage.ram / shapes.GIB:.0f} GiB of RAM, {one.storage.disk / 1e9:.0f} GB of disk"),
        (
            "checkpoint",
            f"{one.storage.checkpoint / 1e9:.2f} GB, every {show_duration(document['checkpoint_every_seconds'])}",
        ),
        ("numbers", f"{setup.precision}, {advice.card.attention} attention; {advice.card.wheel}"),
        ("flags", flags(setup)),
    ]


def _in_time(one: Choice, within: int) -> str:
    if one.hours_p90 * 3_600 <= within:
        return "yes, in nine of ten cases"
    return "in half of all cases" if one.hours * 3_600 <= within else "no"


def _row(one: Choice, wishes: Wishes) -> list[str]:
    """Return the cells of one option, as in ``_TABLE``; time and money are empty without an amount of training."""
    has_time = wishes.tokens > 0 and one.verdict != "does not fit"
    setup = one.setup
    return [
        one.rung + (", checkpointing" if setup.checkpointing else ""),
        "not enough RAM" if one.verdict == "does not fit" and one.memory.gib <= one.card.usable_gib else one.verdict,
        f"{one.memory.gib:.1f}",
        f"{setup.batch} x {setup.accumulate}",
        f"{one.pace.tokens_per_second:,.0f}" if one.verdict != "does not fit" else "",
        f"{one.hours:.1f}" if has_time else "",
        f"{one.hours_p90:.1f}" if has_time else "",
        f"{one.kwh:.1f}" if has_time else "",
        f"${one.usd:.2f}" if has_time else "",
    ]


def _explain(out: Output, advice: Advice, one: Choice) -> None:
    """Write how the memory and the time of the chosen option were computed, with formulas and sources."""
    pace, card = one.pace, advice.card
    out.line()
    out.line(f"Memory of a device at its worst instant, the {one.memory.instant}:")
    rows = [(part.name, f"{part.bytes / shapes.GIB:.2f}", part.formula) for part in one.memory.parts if part.bytes]
    out.table(("part", ">GiB", "formula"), [*rows, ("all", f"{one.memory.gib:.2f}", "")])
    out.line()
    micro = max(pace.floor, pace.fixed + pace.per_token * one.setup.tokens)
    out.line(
        f"Time of a micro-batch: max({pace.floor:.3f}, {pace.fixed:.3f} + {pace.per_token * 1e6:.1f}e-6 x "
        f"{one.setup.tokens:,}) = {micro:.3f} s; of a step {pace.step:.2f} s: "
        + ", ".join(f"{name} {100 * share:.0f} %" for name, share in pace.limits.items())
    )
    out.line(f"{card.name}: {card.tflops:g} TFLOP/s x {card.sustained:g}, {card.gb_s:g} GB/s. Source: {card.source}")
    out.line(f"{advice.shape.name}: {advice.shape.parameters:,} parameters. Source: {advice.shape.source}")
    out.line("Formulas: docs/advice.md")


def _show_comparison(
    out: Output,
    shape: shapes.Shape,
    machines: Sequence[tuple[shapes.Card, int, float | None]],
    wishes: Wishes,
    measurements: Sequence[Measurement],
    path: Path | None,
) -> None:
    """Write a table with the best option of each machine; unless ``path`` is None, also write the picture there."""
    compared = compare_machines(shape, machines, wishes, measurements)
    if path is not None:
        path.write_text(draw_machines(compared), encoding="utf-8")
    if out.as_json:
        out.data({"machines": [advice_json(advice) for advice in compared]})
        return
    rows = []
    for advice in compared:
        nearest = f"nearest: {advice.nearest}" if advice.nearest else "nothing"
        none = [nearest, "does not fit", *[""] * (len(_TABLE) - 2)]
        cells = _row(advice.best, wishes) if advice.best else none
        rows.append([f"{advice.card.name} x{advice.devices}", *cells])
    out.table(("machine", *_TABLE), rows)
    if path is not None:
        out.say(f"{path} shows time against money.")


def _write_files(out: Output, advice: Advice, model: str, folder: Path) -> None:
    """Write the files with which the chosen option can be run. Raises Refusal if nothing fits or a file exists."""
    if advice.best is None:
        raise Refusal(f"{model} cannot be written", "nothing fits this machine", advice.nearest or "Choose another")
    one = advice.best
    steps = max(1, round((advice.wishes.tokens or 1e6) / (one.setup.rows * one.setup.seq)))
    source = f"hf:{advice.shape.hub}" if advice.shape.hub else str(Path(model).expanduser().resolve())
    name = advice.shape.name.rpartition("/")[2].lower().replace("_", "-")[:40]
    written = job_files(one, name, source, steps)
    there = [name for name in written if (folder / name).exists()]
    if there:
        raise Refusal(f"{folder / there[0]} is there already", "nothing is overwritten", "Name another folder")
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in written.items():
        (folder / name).write_text(text, encoding="utf-8")
    out.say(f"{folder} has {', '.join(sorted(written))}.")


# The JSON documents of the advice.
def advice_json(advice: Advice) -> dict[str, Any]:
    """Return all options, the chosen one, and what would fit if none does. Memory is in GiB, times are in hours."""
    has_time = advice.wishes.tokens > 0
    return {
        "model": advice.shape.name,
        "parameters": advice.shape.parameters,
        "card": advice.card.name,
        "devices": advice.devices,
        **picked(advice.card, "usable_gib", "precision", "attention", "wheel"),
        "warnings": list(advice.card.warnings),
        "tokens": advice.wishes.tokens,
        "taken": choice_json(advice.best, has_time=has_time) if advice.best else None,
        "nearest": advice.nearest,
        "rungs": [choice_json(one, has_time=has_time) for one in advice.rungs],
    }


def choice_json(one: Choice, *, has_time: bool) -> dict[str, Any]:
    """Return one option as a JSON document. Hours and money are null unless the amount of training is known."""
    setup, pace = one.setup, one.pace
    return {
        **picked(one, "rung", "verdict", "why"),
        "told": setup.text,
        **picked(setup, "method", "batch", "accumulate", "rows", "seq", "checkpointing", "parallel", "offload"),
        "gib": round(one.memory.gib, 2),
        "allocated_gib": round(one.memory.allocated / shapes.GIB, 2),
        "margin": round(one.margin, 3),
        "instant": one.memory.instant,
        "parts": {
            part.name: {"gib": round(part.bytes / shapes.GIB, 3), "formula": part.formula} for part in one.memory.parts
        },
        "ram_gib": round(one.storage.ram / shapes.GIB, 1),
        "checkpoint_gb": round(one.storage.checkpoint / 1e9, 2),
        "disk_gb": round(one.storage.disk / 1e9, 1),
        "checkpoint_every_seconds": cadence(max(1.0, one.storage.checkpoint / _DISK_BYTES_A_SECOND)),
        "tokens_per_second": round(pace.tokens_per_second),
        "step_seconds": round(pace.step, 3),
        "sigma": round(pace.sigma, 3),
        "seen_steps": pace.samples,
        "limits": {name: round(share, 3) for name, share in pace.limits.items()},
        "hours": round(one.hours, 3) if has_time else None,
        "hours_p90": round(one.hours_p90, 3) if has_time else None,
        "kwh": round(one.kwh, 2) if has_time else None,
        "usd": round(one.usd, 2) if has_time else None,
        "flags": flags(setup),
    }
