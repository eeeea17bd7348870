"""Advice on a page: a form, the best way on each machine, and time against money. It reads no file and no database."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query

Words = Annotated[str, Query(max_length=200)]
Number = Annotated[int, Query(ge=1, le=1 << 20)]
Tokens = Annotated[float, Query(ge=1, le=1e15)]
MACHINES = "5060ti, 5060ti x2, 4090, 5090, h100"
_MACHINES_MAX = 8


def advice(model: str, on: str, method: str, seq: int, tokens: float) -> dict[str, Any]:
    """Return what the page shows: shipped models alone, so that no visitor names a file of this machine."""
    from jobs.advice.card import find_cards
    from jobs.advice.choice import Wishes
    from jobs.advice.compare import compare, picture
    from jobs.advice.errors import Unknown
    from jobs.advice.setup import METHODS
    from jobs.advice.shape import shipped

    known = shipped()
    names = sorted(name for name in known if "/" not in name)
    found: list[Any] = []
    trouble, drawn = "", ""
    shape = known.get(model.strip().lower())
    words = [word.strip() for word in on.split(",") if word.strip()][:_MACHINES_MAX]
    try:
        machines = [(*find_cards(word), None) for word in words]
        if shape is None:
            trouble = f"{model}: no such model is shipped. The command reads any config.json: schedctl advise --help"
        elif machines:
            chosen = tuple(one for one in METHODS if one == method)
            found = compare(shape, machines, Wishes(seq=seq, tokens=tokens, methods=chosen), ())
            drawn = picture(found)
    except Unknown as error:
        trouble = str(error)
    return {
        "asked": {"model": model, "on": on, "method": method, "seq": seq, "tokens": tokens},
        "names": names,
        "methods": METHODS,
        "found": found,
        "picture": drawn,
        "trouble": trouble,
    }
