"""The errors that say for sure that nothing was started."""


class OutOfCapacityError(RuntimeError):
    """There is no such machine now."""


class NotSupportedError(RuntimeError):
    """There is no such machine at all."""
