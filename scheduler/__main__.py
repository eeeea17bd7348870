"""``python -m scheduler`` is ``schedctl``, for places where the console script is not on the path."""

from scheduler.cli.main import run

run()
