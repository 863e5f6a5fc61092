"""Argument checks shared by components."""

__all__ = ["check_int"]


def check_int(name, value, low, high):
    """Raise unless `value` is an integer from `low` to `high`.

    Raises
    ------
    TypeError
        If `value` is not an integer.
    ValueError
        If it is outside the range.
    """
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} must be an integer from {low} to {high}, not {value!r}")
    if not low <= value <= high:
        raise ValueError(f"{name} must be an integer from {low} to {high}, not {value!r}")
