"""`schedctl advise`: does a model train on a machine, with which settings, how long and at what cost."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from jobs.advice.card import Card
from jobs.advice.seen import Measurement
from jobs.payload.bounds import digits
from scheduler.cli.shell.command import Tables, alone
from scheduler.cli.shell.context import Cli
from scheduler.cli.shell.exits import UsageFault

if TYPE_CHECKING:
    from jobs.advice.choice import Wishes


_PRICE_MAX = 100_000.0  # dollars an hour
_TOKENS_MAX = 1e18
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "g": 10**9}
Word = TypeVar("Word", bound=str)
_OWN = "advice.json"  # in the state folder


def _tokens(text: str) -> float:
    """Return a number of tokens as people write it: 20000000, 20e6, 20M or 0.02B."""
    unit = text[-1:].lower() if text[-1:].isalpha() else ""
    try:
        number = float(text.removesuffix(text[-1:]) if unit else text) * _UNITS[unit]
    except (ValueError, KeyError):
        number = math.nan
    if not 1 <= number <= _TOKENS_MAX:
        raise typer.BadParameter(f"{text} is no number of tokens; such as 20M, 20e6 or 1.5B")
    return number


@alone(
    "schedctl advise deepseek-coder-6.7b --on '5060ti x2' --tokens 20M",
    "schedctl advise deepseek-coder-1.3b --on t4 --method full --seq 1024 --explain",
    "schedctl advise deepseek-coder-6.7b --compare '5060ti x1' '5060ti x2' 4090 --picture out.svg",
    kind=Tables,
)
def advise(  # noqa: PLR0913, PLR0917 - one parameter for each option
    cli: Cli,
    model: Annotated[
        str,
        typer.Argument(metavar="MODEL", help="A shipped name, OWNER/NAME[@REVISION] of the Hub, or its config.json."),
    ] = "",
    machines: Annotated[
        list[str] | None, typer.Argument(metavar="[CARD[xN]]...", help="With --compare: the machines after its first.")
    ] = None,
    on: Annotated[
        str, typer.Option("--on", metavar="CARD[xN]|POOL", help="Such as 4090, '5060ti x2', or a pool of yours.")
    ] = "5060ti",
    method: Annotated[
        str, typer.Option("--method", metavar="full|lora|qlora", help="Default: LoRA where it fits, else QLoRA.")
    ] = "",
    seq: Annotated[int, typer.Option("--seq", min=1, max=1 << 20, help="Tokens of a row.")] = 2048,
    batch: Annotated[int, typer.Option("--batch", min=0, max=4096, help="Rows at a time on a device.")] = 0,
    rows: Annotated[int, typer.Option("--rows", min=1, max=1 << 20, help="Rows of a step on all devices.")] = 16,
    rank: Annotated[int, typer.Option("--rank", min=1, max=4096, help="Rank of the adapter.")] = 16,
    tokens: Annotated[
        float | None, typer.Option("--tokens", parser=_tokens, metavar="NUMBER", help="Tokens to train on: 20M, 20e6.")
    ] = None,
    samples: Annotated[int | None, typer.Option("--samples", min=1, help="Rows to train on, of --seq tokens.")] = None,
    epochs: Annotated[float, typer.Option("--epochs", min=0.001, help="How often all of them.")] = 1.0,
    image: Annotated[str, typer.Option("--image", metavar="WxH", help="Pixels of each row's image.")] = "",
    deadline: Annotated[str, typer.Option("--deadline", metavar="TIME", help="Within this time, such as 12h.")] = "",
    stack: Annotated[
        str, typer.Option("--stack", help="finetune (ours), finetune-compiled, transformers or transformers-bare.")
    ] = "finetune-compiled",
    checkpointing: Annotated[str, typer.Option("--checkpointing", metavar="on|off", help="Default: the quicker.")] = "",
    optimizer: Annotated[
        str, typer.Option("--optimizer", help="adamw, adamw8bit, adamw-foreach, adafactor or sgd. Default: any.")
    ] = "",
    parallel: Annotated[str, typer.Option("--parallel", help="ddp, fsdp, layers, zero1 to zero3. Default: any.")] = "",
    offload: Annotated[str, typer.Option("--offload", help="none, cpu or nvme. Default: any.")] = "",
    ram: Annotated[float, typer.Option("--ram-gib", min=1, help="Memory of the machine.")] = 128.0,
    price: Annotated[
        float | None, typer.Option("--price", min=0, help="Dollars an hour. Default: the pool's, else electricity.")
    ] = None,
    compare: Annotated[
        list[str] | None,
        typer.Option("--compare", metavar="CARD[xN][=$]", help="Machines side by side, with dollars an hour."),
    ] = None,
    picture: Annotated[
        Path | None, typer.Option("--picture", metavar="FILE", help="With --compare: time against money as SVG.")
    ] = None,
    write: Annotated[
        Path | None, typer.Option("--write", metavar="DIR", help="Write the job, DeepSpeed's file and the lines.")
    ] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Every figure with its formula and source.")] = False,
    read: Annotated[
        Path | None, typer.Option("--read", metavar="FILE", help="Take in what others measured (an advice.json).")
    ] = None,
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="Run a few real steps on this machine's card, and remember them.")
    ] = False,
    probe: Annotated[
        bool, typer.Option("--probe", help="Run two layers without weights, instead of believing the formula.")
    ] = False,
    python: Annotated[
        str, typer.Option("--python", metavar="PATH", help="With --calibrate, --probe: the Python that has torch.")
    ] = "python3",
) -> None:
    """Show whether a model fits a machine, with which settings, time and cost.

    Figures are computed, nothing is fetched, no card is needed. What was measured (--calibrate, --read, and the runs of
    your pools) counts more with every step. See docs/advice.md.
    """
    from scheduler.cli.parts import advice_words

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
    wishes = _wishes(
        method=method, seq=seq, batch=batch, rows=rows, rank=rank, tokens=tokens, samples=samples, epochs=epochs,
        image=image, stack=stack, checkpointing=checkpointing, optimizer=optimizer,
        parallel=parallel, offload=offload, ram=ram, price=price,
    )  # fmt: skip
    from jobs.advice.shape import find_shape

    shape = find_shape(model)
    if probe:
        from scheduler.cli.commands.advise_calibrate import probe as run_layers

        wishes = run_layers(cli, shape, wishes, python)
    if calibrate:
        from jobs.advice.card import recognised
        from scheduler.cli.commands.advise_calibrate import calibrate as run_steps
        from scheduler.cli.commands.advise_calibrate import calibrate_on

        if recognised(on) is None:
            _place(cli, on, wishes)
            calibrate_on(cli, shape, wishes, on)
            return
        measurements = run_steps(cli, shape, wishes, python, cli.paths.state_dir / _OWN, measurements)
    if compare:
        advice_words.show_comparison(
            cli.out,
            shape,
            [_machine(cli, words) for words in (*compare, *(machines or ()))],
            wishes,
            measurements,
            picture,
        )
        return
    card, devices, wishes, more = _place(cli, on, wishes)
    from jobs.advice.choice import advise as advise_on

    advice = advise_on(shape, card, devices, wishes, (*measurements, *more))
    advice_words.show_advice(cli.out, advice, deadline, explain=explain)
    if write is not None:
        advice_words.write_files(cli.out, advice, model, write)


def _wishes(  # noqa: PLR0913 - what the command line says
    *, method: str, seq: int, batch: int, rows: int, rank: int, tokens: float | None, samples: int | None,
    epochs: float, image: str, stack: str, checkpointing: str, optimizer: str,
    parallel: str, offload: str, ram: float, price: float | None,
) -> Wishes:  # fmt: skip
    from jobs.advice.choice import Wishes
    from jobs.advice.setup import METHODS, OFFLOADS, OPTIMIZERS, PARALLELS, STACKS

    chosen = _one_of("--method", method, METHODS)
    total = tokens * epochs if tokens else (samples or 0) * seq * epochs
    return Wishes(
        seq=seq,
        rows=max(rows, batch),
        tokens=total,
        methods=() if chosen is None else (chosen,),
        batch=batch,
        rank=rank,
        stack=STACKS[_one_of("--stack", stack, tuple(STACKS)) or "finetune-compiled"],
        image=_pixels(image),
        ram_gib=ram,
        usd_per_hour=price,
        checkpointing={"on": True, "off": False}.get(_one_of("--checkpointing", checkpointing, ("on", "off")) or ""),
        optimizer=_one_of("--optimizer", optimizer, OPTIMIZERS),
        parallel=_one_of("--parallel", parallel, PARALLELS),
        offload=_one_of("--offload", offload, OFFLOADS),
    )


def _one_of(option: str, word: str, choices: tuple[Word, ...]) -> Word | None:
    """Return the word of ``choices`` that was said, None if none was. Raises UsageFault."""
    choice = next((one for one in choices if one == word), None)
    if word and choice is None:
        raise UsageFault(f"{option} {word}", "there is no such word", f"Use: {', '.join(choices)}")
    return choice


def _pixels(image: str) -> tuple[int, int]:
    wide, _, high = image.lower().partition("x")
    if not image:
        return (0, 0)
    pixels = (digits(wide, 1 << 16) or 0, digits(high, 1 << 16) or 0)
    if not all(pixels):
        raise UsageFault(f"--image {image}", "it is not two numbers of pixels", "Write it like 1008x1008")
    return pixels


def _machine(cli: Cli, words: str) -> tuple[Card, int, float | None]:
    """Return the card, how many, and what an hour costs, as in ``h100 x1=2.50``. Raises UsageFault, NotFound."""
    from jobs.advice.choice import Wishes

    name, equals, price = words.partition("=")
    try:
        dollars = float(price.strip().removeprefix("$")) if equals else None
    except ValueError:
        dollars = -1.0
    if dollars is not None and not 0 <= dollars <= _PRICE_MAX:
        raise UsageFault(f"--compare {words}", f"{price} is no price of an hour", "Write it like 'h100 x1=2.50'")
    card, devices, wishes, _ = _place(cli, name.strip(), Wishes(usd_per_hour=dollars))
    return card, devices, wishes.usd_per_hour


def _place(cli: Cli, words: str, wishes: Wishes) -> tuple[Card, int, Wishes, tuple[Measurement, ...]]:
    """Return the card that words name; else that of a pool, with its price and with what its runs showed."""
    from dataclasses import replace

    from jobs.advice.card import find_cards, recognised

    if (recognised_card := recognised(words)) is not None:
        return (*recognised_card, wishes, ())
    pools = {name: pool for name, pool in cli.app.pools.items() if name == words}
    if not pools:
        find_cards(words)  # says which names are near
    from jobs.problem import NotFound
    from scheduler.service.facts.advised import card_of, seen_of_runs
    from scheduler.store import jobs, rates, series

    pool = pools[words]
    card = card_of(pool)
    if card is None:
        raise NotFound(
            f"pool {words}", f"its accelerator {pool.accelerator!r} is no card that is known", "Name one: --on 4090"
        )
    if pool.price_microdollars_per_hour and wishes.usd_per_hour is None:
        wishes = replace(wishes, usd_per_hour=pool.price_microdollars_per_hour / 1e6)
    with cli.app.database.read() as tx:
        specs = [record.spec for record in jobs.everything(tx)]
        measurements = seen_of_runs(specs, rates.everything(tx), cli.app.pools, series.peaks(tx))
    return card, pool.devices_per_session, wishes, measurements


def _measurements(cli: Cli, read: Path | None) -> tuple[Measurement, ...]:
    """Return what this machine and others saw; ``read`` is added to the own file."""
    from jobs.advice.seen import read_seen, write_seen

    own = cli.paths.state_dir / _OWN
    own_measurements = read_seen(own) if own.is_file() else ()
    if read is None:
        return own_measurements
    own_measurements = tuple(dict.fromkeys((*own_measurements, *read_seen(read))))
    own.parent.mkdir(parents=True, exist_ok=True)
    write_seen(own, own_measurements)
    return own_measurements
