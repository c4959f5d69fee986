"""Numbers as text: with their interval, and with no more digits than the interval warrants."""

from __future__ import annotations

import math

MISSING = "n/a"


def is_missing(value: float | None) -> bool:
    """Whether there is no number: None or nan."""
    return value is None or (isinstance(value, float) and math.isnan(value))


def warranted(low: float | None, high: float | None) -> int | None:
    """Decimals that an interval warrants: the first digit of its half-width, the second if the first is a 1."""
    if is_missing(low) or is_missing(high):
        return None
    half = (high - low) / 2  # type: ignore[operator]
    if not math.isfinite(half) or half <= 0:
        return None
    exponent = math.floor(math.log10(half))
    leading = half / 10**exponent
    return min(6, max(0, -exponent + (1 if leading < 2 else 0)))


def decimals(value: float, significant: int = 3) -> int:
    """Decimals at which a number shows so many significant digits, at least 2 and at most 6 below 10."""
    if value == 0 or not math.isfinite(value):
        return 2
    exponent = math.floor(math.log10(abs(value)))
    return min(6, max(0, significant - 1 - exponent))


def number(value: float | None, digits: int | None = None, signed: bool = False) -> str:
    """A number with a true minus sign; None and nan are ``n/a``; without ``digits`` three significant ones."""
    if value is None or is_missing(value):
        return MISSING
    if math.isinf(value):
        return ("+" if signed else "") + "∞" if value > 0 else "−∞"
    digits = decimals(value) if digits is None else digits
    if value != 0 and ((abs(value) < 1e-4 and digits >= 6) or abs(value) >= 1e7):
        shown = f"{value:{'+' if signed else ''}.2e}"
    else:
        shown = f"{value:{'+' if signed else ''}.{digits}f}"
        if float(shown) == 0:
            shown = shown.lstrip("+-")
    return shown.replace("-", "−")


def plain(value: float) -> str:
    """A threshold, tick or end of a scale: as short as it can be said."""
    return f"{value:.4g}".replace("e+0", "e").replace("e-0", "e-").replace("-", "−")


def estimate(value: float | None, low: float | None, high: float | None, signed: bool = False) -> str:
    """``0.95 [0.93, 0.97]``, or the bare value where there is no interval."""
    if is_missing(low) or is_missing(high):
        return number(value, signed=signed)
    digits = warranted(low, high)
    return f"{number(value, digits, signed)} {interval(low, high, digits, signed)}"


def interval(low: float | None, high: float | None, digits: int | None, signed: bool = False) -> str:
    """``[0.93, 0.97]``, both ends at the same number of decimals."""
    if digits is None:
        digits = max(decimals(low or 0.0), decimals(high or 0.0))
    return f"[{number(low, digits, signed)}, {number(high, digits, signed)}]"
