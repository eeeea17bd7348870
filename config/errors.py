"""The error that loading the settings raises."""

from jobs.problem import Problem, ProblemsFound

__all__ = ["ConfigError", "Problem"]


class ConfigError(ProblemsFound):
    """The settings cannot be used; ``problems`` names every reason at once, one line each when printed."""
