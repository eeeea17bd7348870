"""A script that knows nothing of the training contract: it is run whole, in one session that holds all of it.

schedctl submit train.py --whole 1h
schedctl checkpoints pull whole ./trained      # what it left in ./output
"""

from __future__ import annotations

import json
import random
from pathlib import Path

chance = random.Random(1)
slope, offset = 0.0, 0.0
for _ in range(20_000):
    x = chance.uniform(-1, 1)
    error = slope * x + offset - (3 * x + 1 + chance.gauss(0, 0.1))
    slope, offset = slope - 0.01 * error * x, offset - 0.01 * error
print(f"slope {slope:.3f} offset {offset:.3f}")
Path("output").mkdir(exist_ok=True)
(Path("output") / "model.json").write_text(json.dumps({"slope": slope, "offset": offset}))
