"""Unit constants and formatters. Internal values are in seconds, bytes and FLOPs only."""

from __future__ import annotations

__all__ = [
    "GB",
    "GIB",
    "MIB",
    "MS_PER_S",
    "TFLOPS",
    "format_bytes",
    "format_count",
    "format_rate",
    "format_seconds",
    "format_usd",
]

GB = 10**9
GIB = 2**30
MIB = 2**20
TFLOPS = 10**12
MS_PER_S = 1000.0


def counted(count: int, noun: str) -> str:
    """A number with what it counts, such as `1 run` or `2,000 runs`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def format_bytes(size_bytes: float) -> str:
    """Size in binary units with two decimals: `7.49 GiB`."""
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.2f} {unit}"
        size /= 1024
    return f"{size:.2f} TiB"


def format_count(number: float) -> str:
    """Count in short decimal form: `4.02 B`, `151.9 K`, `812`."""
    for limit, suffix in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e4, "K")):
        if abs(number) >= limit:
            scale = 1e3 if suffix == "K" else limit
            return f"{number / scale:.3g} {suffix}"
    return f"{number:.0f}"


def format_seconds(duration_s: float | None) -> str:
    """Duration in its largest suitable unit: `0.8 ms`, `27.6 ms`, `5.52 s`, `3 min 10 s`."""
    if duration_s is None:
        return "-"
    if duration_s < 0.01:
        return f"{duration_s * 1e3:.2f} ms"
    if duration_s < 1:
        return f"{duration_s * 1e3:.1f} ms"
    if duration_s < 120:
        return f"{duration_s:.2f} s"
    minutes, seconds = divmod(round(duration_s), 60)
    if minutes < 60:
        return f"{minutes} min {seconds} s"
    return f"{minutes // 60} h {minutes % 60} min"


def format_rate(per_s: float | None) -> str:
    """Rate with three significant digits and thousands separators: `1,096`, `5.60`."""
    if per_s is None:
        return "-"
    return f"{per_s:,.0f}" if abs(per_s) >= 100 else f"{per_s:.3g}"


def format_usd(amount_usd: float | None) -> str:
    """Dollars with as many digits as the amount needs: `$1.09`, `$0.0042`."""
    if amount_usd is None:
        return "-"
    return f"${amount_usd:,.2f}" if abs(amount_usd) >= 0.1 else f"${amount_usd:.3g}"
