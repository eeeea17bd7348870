"""The shipped character model, as scorers read its checkpoints."""

from __future__ import annotations

import json
from pathlib import Path

from .given import NotGiven

_NEWLINE = 1  # its code: what a text begins after, as in training


class Characters:
    """A checkpoint of charlm.py. Its alphabet is ASCII; any other byte is one code, whose loss counts all the same."""

    def __init__(self, folder: Path) -> None:
        try:
            import numpy as np
        except ImportError:
            raise NotGiven("the character model needs NumPy; add numpy to the evaluation's requirements") from None
        from ..trainers import charlm

        self._np, self._charlm = np, charlm
        try:
            shape = charlm.Shape(*json.loads((folder / "state.json").read_bytes())["shape"])
            weights = np.load(folder / "weights.npy", allow_pickle=False)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise NotGiven(f"the checkpoint in {folder} cannot be read: {error}") from None
        self._model = charlm.Model(shape, np.random.default_rng(0))
        if weights.shape != self._model.weights.shape or weights.dtype != np.float32:
            raise NotGiven(f"weights.npy holds {weights.shape} of {weights.dtype}, not {self._model.weights.shape}")
        if not np.isfinite(weights).all():
            raise NotGiven("weights.npy holds values that are not finite")
        self._model.weights[:] = weights

    def loss(self, text: str) -> float:
        """Return the mean loss of a text's characters, the first after a newline."""
        np, context = self._np, self._model.shape.context
        codes = np.concatenate([np.full(context, _NEWLINE, np.uint8), self._charlm.encode(iter([text]))])
        return self._model.loss(np.lib.stride_tricks.sliding_window_view(codes, context + 1))

    def lost(self, text: str) -> str:
        """Return how many characters its alphabet does not know."""
        unknown = sum(code == 0 for code in self._charlm.encode(iter([text])).tolist())
        return f"{unknown} bytes are no letter of its alphabet" if unknown else ""
