"""What advice raises: something is not known, or makes no sense."""

from __future__ import annotations


class Unknown(ValueError):
    """Nothing is known of what was named: why, and what to do next."""

    def __init__(self, what: str, why: str, remedy: str) -> None:
        super().__init__(f"{what}: {why}. {remedy}")
        self.what, self.why, self.remedy = what, why, remedy
