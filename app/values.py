"""Format values as text: numbers with units, moments, ids.

Comes in: values. Goes out: strings. Knows nothing of pages.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime

DASH = "–"


def duration(microseconds: float | None) -> str:
    """Return seconds to three significant digits with the unit that fits: `812 µs`, `4.31 ms`, `1.20 s`."""
    if microseconds is None:
        return DASH
    for limit, unit, scale in ((1e3, "µs", 1.0), (1e6, "ms", 1e3)):
        if microseconds < limit:
            return f"{significant(microseconds / scale)} {unit}"
    return f"{significant(microseconds / 1e6)} s"


def span(seconds: float) -> str:
    """Return seconds as `4.20 s`, `12 min`, `3 h 05 min`, `2 days 4 h`."""
    minutes = round(seconds / 60)
    if seconds < 100:
        return duration(1e6 * seconds)
    if minutes < 100:
        return f"{minutes} min"
    hours, rest = divmod(minutes, 60)
    return f"{hours} h {rest:02} min" if hours < 48 else f"{hours // 24} days {hours % 24} h"


def significant(value: float) -> str:
    """Return three significant digits, never in scientific form for the sizes that occur here."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def times(speedup: float | None, *, at_least: bool = False) -> str:
    """Return a speed-up; `at_least` marks one that nothing confirmed: it is the lower end of its interval."""
    return DASH if speedup is None else f"{'≥ ' if at_least else ''}{significant(speedup)}×"


def percent(fraction: float | None) -> str:
    return DASH if fraction is None else f"{100 * fraction:.0f} %"


def dollars(amount: float | None) -> str:
    """Return a price; `None` is an unknown one, not a free one."""
    return "unknown" if amount is None else f"${amount:,.2f}" if amount >= 0.1 or amount == 0 else f"${amount:.4f}"


def quantity(value: float, unit: str) -> str:
    """Return `1.5 GFLOP`, `268 MB`: powers of a thousand."""
    for prefix in ("", "k", "M", "G"):
        if value < 1000:
            return f"{value:.0f} {unit}" if not prefix else f"{significant(value)} {prefix}{unit}"
        value /= 1000
    return f"{significant(value)} T{unit}"


def amount(budget: str, used: float) -> str:
    """Return how much of a budget is used, in its own unit."""
    match budget:
        case "time":
            return span(used)
        case "money":
            return dollars(used)
        case _:
            return f"{used:,.0f}"


def moment(iso: str) -> datetime | None:
    try:
        parsed = datetime.fromisoformat(iso)
    except ValueError:
        return None
    return parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)


def when(iso: str | None) -> str:
    parsed = moment(iso) if iso else None
    return parsed.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC") if parsed else DASH


def short(content_id: str) -> str:
    """Return enough of an id to name it: the archive takes unambiguous prefixes."""
    return content_id[:10]


def brief(text: str) -> str:
    """Return a remark with its kernels' ids shortened."""
    return re.sub(r"(k_[0-9a-f]{8})[0-9a-f]+", r"\1", text)


def words(name: str) -> str:
    """Return `build_failed` as a reader says it."""
    return name.replace("_", " ")


def shape(sizes: Sequence[int]) -> str:
    return "×".join(map(str, sizes)) or "scalar"
