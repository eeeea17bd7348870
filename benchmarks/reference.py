"""Update what the documents hold of commands, exit codes, settings and ranges; or print the rooms of the house.

python benchmarks/reference.py [FOLDER]    # writes into the documents of this folder, here ./docs
python benchmarks/reference.py --rooms     # prints every room and what it is for
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.lab.reference import REPOSITORY, rooms, written


def main() -> int:
    """Update the documents, or print the rooms."""
    if "--rooms" in sys.argv:
        print("\n".join(rooms(REPOSITORY)))
        return 0
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else REPOSITORY / "docs"
    for page in sorted(folder.rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        if (new := written(text)) != text:
            page.write_text(new, encoding="utf-8")
            print(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
