"""How much of a search is tried with every push; the night tries all of it."""

from hypothesis import settings

NIGHT, PUSH = "night", "push"
_ONE_IN = 5  # with every push


def register_profiles() -> None:
    """Tell Hypothesis of both. No deadline: a slow machine is no failure. Derandomised: what is red stays red."""
    settings.register_profile(NIGHT, deadline=None, derandomize=True)
    settings.register_profile(PUSH, settings.get_profile(NIGHT), max_examples=100 // _ONE_IN)


def one_in() -> int:
    """Return of how many cases one is tried."""
    return 1 if settings.get_current_profile_name() == NIGHT else _ONE_IN


def share(count: int) -> int:
    """Return how many of ``count`` examples are tried."""
    return -(-count // one_in())
