"""Runs ``schedctl`` as ``python -m scheduler``, for environments whose PATH lacks the console script."""

from scheduler.cli.main import run

run()
