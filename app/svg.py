"""Draw charts as SVG text, for the explorer and for pages without scripts alike.

Comes in: numbers. Goes out: an `<svg>` whose lines and letters take the colour of the page around it, with axis titles
that name units, marks that differ in shape as well as in colour, and a `<title>` on each. Knows nothing of archives.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from typing import Literal

BLUE, ORANGE, GREEN, PINK, GREY = "#3A8FCB", "#E69F00", "#009E73", "#CC79A7", "#8C8C8C"
WIDTH, HEIGHT = 560, 290
LEFT, RIGHT, TOP, BOTTOM = 58, 14, 12, 44
LETTER = 9  # pixels of a tick's letter, in the larger print of a phone
Mark = Literal["circle", "square", "diamond", "ring", "line", "dashes"]
SMALL = 400  # a chart narrower than this is drawn as large as it is
DASHES = "6 3"
DOTS: dict[str, tuple[str, str]] = {  # a short path around a place, and its stroke
    "circle": ("h0", 'stroke-width="5" stroke-linecap="round"'),
    "square": ("h0", 'stroke-width="4.4" stroke-linecap="square"'),
    "diamond": ("m-2.6 0l2.6-3 2.6 3-2.6 3z", 'stroke-width="1.6"'),
    "ring": ("m-2 0a2 2 0 1 0 4 0a2 2 0 1 0-4 0", 'stroke-width="1.2"'),
}


@dataclass(frozen=True, slots=True)
class Axis:
    """Hold one axis: what it says, and from where to where it goes."""

    title: str
    low: float
    high: float
    log: bool = False
    names: tuple[tuple[float, str], ...] = ()  # ticks that are not at round numbers

    def share(self, value: float) -> float:
        """Return where a value lies, 0 to 1."""
        if self.log:
            return (math.log(value) - math.log(self.low)) / (math.log(self.high) - math.log(self.low))
        return (value - self.low) / (self.high - self.low)

    def ticks(self) -> list[tuple[float, str]]:
        if self.names:
            return [(value, name) for value, name in self.names if self.low <= value <= self.high]
        values = _powers(self.low, self.high) if self.log else _steps(self.low, self.high)
        return [(value, number(value)) for value in values]


@dataclass(frozen=True, slots=True)
class Point:
    """Hold one mark: where, what a reader sees on it, and where a click on it leads."""

    x: float
    y: float
    told: str
    colour: str = GREEN
    mark: Mark = "circle"
    link: str = ""
    size: float = 4.5


def axis(title: str, values: Sequence[float], *, log: bool = False, zero: bool = False) -> Axis:
    """Return an axis around the values, with a little room on both sides."""
    low, high = min(values), max(values)
    if log:
        low, high = low / 1.25, high * 1.25
        return Axis(title, low, max(high, low * 2), log=True)
    low = min(0.0, low) if zero else low
    room = 0.06 * (high - low) or 0.1 * abs(high) or 1.0
    return Axis(title, low if zero else low - room, high + room)


def number(value: float) -> str:
    """Return a tick's label: three digits, with k, M, G from ten thousand on."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= limit:
            return f"{value / (1e3 if unit == 'k' else limit):g}{unit}"
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _steps(low: float, high: float, count: int = 5) -> list[float]:
    raw = (high - low) / count
    power = 10 ** math.floor(math.log10(raw))
    step = next(power * n for n in (1, 2, 2.5, 5, 10) if power * n >= raw)
    first = math.ceil(low / step - 1e-9)
    return [round(i * step, 12) for i in range(first, math.floor(high / step + 1e-9) + 1)]


def _powers(low: float, high: float) -> list[float]:
    for parts in ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 4, 5, 7)):
        exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        found = [n * 10.0**e for e in exponents for n in parts if low <= n * 10.0**e <= high]
        if len(found) >= 3:
            return found if len(found) <= 8 else found[:: -(-len(found) // 8)]
    return [low, high]


# --- pieces


def _text(x: float, y: float, text: str, *, anchor: str = "middle", turn: bool = False, size: int = 12) -> str:
    turned = f' transform="rotate(-90 {x:.1f} {y:.1f})"' if turn else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="currentColor"{turned}>'
        f"{escape(text)}</text>"
    )


def _line(x1: float, y1: float, x2: float, y2: float, *, dash: str = "", opacity: float = 0.18) -> str:
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="currentColor" '
        f'stroke-opacity="{opacity}"{dashed}/>'
    )


def _mark(x: float, y: float, point: Point) -> str:
    r, title = point.size, f"<title>{escape(point.told)}</title>" if point.told else ""
    fill = f'fill="{point.colour}"'
    match point.mark:
        case "circle":
            drawn = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{r:g}" {fill}>{title}</circle>'
        case "ring":
            ring = f'fill="none" stroke="{point.colour}" stroke-width="1.8"'
            drawn = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{r:g}" {ring}>{title}</circle>'
        case "square":
            drawn = f'<rect x="{x - r:.1f}" y="{y - r:.1f}" width="{2 * r:g}" height="{2 * r:g}" {fill}>{title}</rect>'
        case "diamond":
            d = 1.4 * r
            corners = f"{x:.1f},{y - d:.1f} {x + d:.1f},{y:.1f} {x:.1f},{y + d:.1f} {x - d:.1f},{y:.1f}"
            drawn = f'<polygon points="{corners}" {fill}>{title}</polygon>'
        case "line" | "dashes":
            dash = f' stroke-dasharray="{DASHES}"' if point.mark == "dashes" else ""
            drawn = f'<path d="M{x - 10:.1f} {y:.1f}h16" stroke="{point.colour}" stroke-width="2.5"{dash}/>'
    return f'<a href="{escape(point.link)}">{drawn}</a>' if point.link else drawn


def _svg(label: str, parts: Sequence[str], height: float = HEIGHT, width: float = WIDTH) -> str:
    small = " rk-small" if width < SMALL else ""
    return (
        f'<svg class="rk-chart{small}" viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{escape(label)}" '
        f'xmlns="http://www.w3.org/2000/svg" font-family="inherit">{"".join(parts)}</svg>'
    )


class Frame:
    """Two axes and what is drawn between them."""

    def __init__(self, label: str, x: Axis, y: Axis, legend: Sequence[tuple[str, str, Mark]] = ()) -> None:
        self.label, self.x, self.y = label, x, y
        self.top = TOP + (22 if legend else 0)
        self.left = max(LEFT, 26 + LETTER * max((len(name) for _, name in y.ticks()), default=0))
        self.parts: list[str] = []
        place = float(self.left)
        for name, colour, mark in legend:
            self.parts.append(_mark(place + 5, 14, Point(0, 0, "", colour, mark)))
            self.parts.append(_text(place + 15, 18, name, anchor="start"))
            place += 30 + 6.6 * len(name)
        self._axes()

    def at(self, x: float, y: float) -> tuple[float, float]:
        return (
            self.left + self.x.share(x) * (WIDTH - self.left - RIGHT),
            HEIGHT - BOTTOM - self.y.share(y) * (HEIGHT - BOTTOM - self.top),
        )

    def _axes(self) -> None:
        bottom = HEIGHT - BOTTOM
        for value, name in self.x.ticks():
            x, _ = self.at(value, self.y.low)
            self.parts += [_line(x, bottom, x, bottom + 4, opacity=0.6), _text(x, bottom + 18, name)]
        for value, name in self.y.ticks():
            _, y = self.at(self.x.low, value)
            self.parts += [_line(self.left, y, WIDTH - RIGHT, y), _text(self.left - 7, y + 4, name, anchor="end")]
        self.parts.append(_line(self.left, bottom, WIDTH - RIGHT, bottom, opacity=0.6))
        self.parts.append(_text((self.left + WIDTH - RIGHT) / 2, HEIGHT - 8, self.x.title))
        self.parts.append(_text(14, (self.top + bottom) / 2, self.y.title, turn=True))

    def line(self, places: Sequence[tuple[float, float]], colour: str, *, dash: str = "", width: float = 2.2) -> None:
        drawn = " ".join(f"{x:.1f},{y:.1f}" for x, y in (self.at(*place) for place in places))
        dashed = f' stroke-dasharray="{dash}"' if dash else ""
        self.parts.append(
            f'<polyline points="{drawn}" fill="none" stroke="{colour}" stroke-width="{width:g}"{dashed} '
            'stroke-linejoin="round"/>'
        )

    def steps(self, places: Sequence[tuple[float, float]], colour: str, *, dash: str = "") -> None:
        """Draw a line whose value holds until the next place."""
        corners = [places[0]]
        for (_, before), (x, y) in pairwise(places):
            corners += [(x, before), (x, y)] if y != before else []
        self.line([*corners, (places[-1][0], places[-1][1])], colour, dash=dash)

    def level(self, y: float, told: str = "") -> None:
        """Draw a dashed line across, with a word on it."""
        if self.y.low <= y <= self.y.high:
            _, height = self.at(self.x.low, y)
            self.parts.append(_line(self.left, height, WIDTH - RIGHT, height, dash="4 4", opacity=0.7))
            if told:
                self.parts.append(_text(WIDTH - RIGHT - 4, height - 5, told, anchor="end", size=11))

    def points(self, points: Sequence[Point]) -> None:
        self.parts += [_mark(*self.at(point.x, point.y), point) for point in points]

    def dots(self, name: str, places: Sequence[tuple[float, float]], colour: str, mark: Mark) -> None:
        """Draw many marks of one kind as one path, which takes a tenth of the text."""
        shape, stroke = DOTS[mark]
        drawn = "".join(f"M{x:.0f} {y:.1f}{shape}" for x, y in (self.at(*place) for place in places))
        self.parts.append(
            f'<path d="{drawn}" fill="none" stroke="{colour}" {stroke}><title>{escape(name)}</title></path>'
        )

    def text(self) -> str:
        return _svg(self.label, self.parts)


# --- charts


def bars(rows: Sequence[tuple[str, float, str, str]], label: str) -> str:
    """Draw a bar for each row: name, length, what is written at its end, colour."""
    longest = max(length for _, length, _, _ in rows)
    room, each, parts = WIDTH - 130 - 110, 30, []
    for place, (name, length, told, colour) in enumerate(rows):
        y, long = 6 + each * place, max(2.0, room * length / longest if longest else 0.0)
        parts.append(_text(122, y + 15, name, anchor="end"))
        parts.append(f'<rect x="130" y="{y}" width="{long:.1f}" height="20" rx="2" fill="{colour}"/>')
        parts.append(_text(136 + long, y + 15, told, anchor="start"))
    return _svg(label, parts, height=12 + each * len(rows))


def intervals(rows: Sequence[tuple[str, float, float, float, str]], label: str) -> str:
    """Draw low, median and high of each row beside the line of no gain: name, low, median, high, colour."""
    x = axis("", [1.0, *(value for row in rows for value in row[1:4])])
    each, parts, start, end = 32, [], 130, WIDTH - 20
    bottom = 8 + each * len(rows)

    def at(value: float) -> float:
        return start + x.share(value) * (end - start)

    for value, name in x.ticks():
        parts += [_line(at(value), 4, at(value), bottom), _text(at(value), bottom + 16, name)]
    parts.append(_line(at(1), 4, at(1), bottom, dash="4 4", opacity=0.8))
    for place, (name, low, median, high, colour) in enumerate(rows):
        y = 8 + each * (place + 0.5)
        told = f"{name}: {median:.2f}, {low:.2f} to {high:.2f}"
        parts.append(_text(122, y + 4, name, anchor="end"))
        parts.append(
            f'<line x1="{at(low):.1f}" y1="{y:.1f}" x2="{at(high):.1f}" y2="{y:.1f}" stroke="{colour}" '
            'stroke-width="3"/>'
        )
        parts.append(_mark(at(median), y, Point(0, 0, told, colour, "circle" if place % 2 == 0 else "square", size=6)))
    parts.append(_text((start + end) / 2, bottom + 34, "faster by (×); the dashed line is no gain"))
    return _svg(label, parts, height=bottom + 42)


def progress(
    tries: Sequence[Point], *, clock: Callable[[float], str], span: str, label: str, colour: str = GREEN
) -> str:
    """Draw speed-ups against seconds: each try a mark, and the best so far as a line: of what is confirmed, and dashed
    where nothing is. `span` is the axis title.
    """
    ordered = sorted(tries, key=lambda point: point.x)
    x = axis(span, [0.0, *(p.x for p in ordered)], zero=True)
    steps = [value for value, _ in x.ticks()]
    x = Axis(span, x.low, x.high, names=tuple((value, clock(value)) for value in steps))
    frame = Frame(label, x, axis("speed-up (×)", [1.0, *(p.y for p in ordered)], zero=True))
    best = 0.0
    places: list[tuple[float, float]] = []
    sure = [point for point in ordered if point.mark != "ring"]
    for point in sure or ordered:
        if point.y > best:
            places += [(point.x, best)] if places else []
            best = point.y
            places.append((point.x, best))
    if places:
        frame.line([*places, (x.high, best)], colour, dash="" if sure else DASHES)
    frame.level(1.0, "PyTorch")
    frame.points(ordered)
    return frame.text()


def roofline(bandwidth_gbs: float, gflops: float, points: Sequence[Point], label: str) -> str:
    """Draw a device's roof, and points at (FLOP per byte, GFLOP/s) under it."""
    ridge = gflops / bandwidth_gbs
    places = [ridge, *(point.x for point in points)]
    x = Axis("arithmetic intensity (FLOP per byte)", min(places) / 4, max(places) * 4, log=True)
    heights = [gflops, x.low * bandwidth_gbs, *(point.y for point in points)]
    frame = Frame(label, x, axis("GFLOP/s", heights, log=True))
    frame.line([(x.low, x.low * bandwidth_gbs), (ridge, gflops), (x.high, gflops)], GREY)
    frame.points(points)
    return frame.text()


def pairs(columns: Sequence[tuple[str, Sequence[float], str, Mark]], unit: str, label: str) -> str:
    """Draw interleaved timings: number of the pair against time, a mark for each side: name, times, colour, mark.

    Times that are far out are drawn at the upper edge.
    """
    everything = sorted(value for _, values, _, _ in columns for value in values)
    most = 1.15 * everything[min(len(everything) - 1, int(0.98 * len(everything)))]
    longest = max(len(values) for _, values, _, _ in columns)
    x = Axis("pair", 0, longest + 1)
    y = Axis(f"time per call ({unit})", 0, most)
    frame = Frame(label, x, y, legend=[(name, colour, mark) for name, _, colour, mark in columns])
    for name, values, colour, mark in columns:
        frame.dots(name, [(i, min(value, most)) for i, value in enumerate(values, 1)], colour, mark)
    return frame.text()


def rows(
    named: Sequence[tuple[str, Sequence[Point]]], x: Axis, label: str, legend: Sequence[tuple[str, str, Mark]]
) -> str:
    """Draw a row for each name with its points beside the line of no gain; a point's `y` is not used."""
    each, top, start, end, parts = 24, TOP + 22, 176, WIDTH - 20, []
    bottom = top + each * len(named)

    def at(value: float) -> float:
        return start + x.share(value) * (end - start)

    for place, (name, colour, mark) in enumerate(legend):
        left = start + 140 * place
        parts += [_mark(left + 5, 14, Point(0, 0, "", colour, mark)), _text(left + 15, 18, name, anchor="start")]
    for value, name in x.ticks():
        parts += [_line(at(value), top, at(value), bottom), _text(at(value), bottom + 16, name)]
    parts.append(_line(at(1), top, at(1), bottom, dash="4 4", opacity=0.8))
    for place, (name, points) in enumerate(named):
        y = top + each * (place + 0.5)
        parts += [_line(start, y, end, y), _text(start - 8, y + 4, clip(name), anchor="end")]
        parts += [_mark(at(point.x), y, point) for point in points]
    parts.append(_text((start + end) / 2, bottom + 36, f"{x.title}; the dashed line is no gain"))
    return _svg(label, parts, height=bottom + 44)


def histogram(bins: Sequence[tuple[float, float, int]], x: Axis, unit: str, label: str) -> str:
    """Draw a small bar for each bin (from, to, how many) beside the line of no gain."""
    width, height, left, bottom = 260, 150, 34, 112
    most = max(count for _, _, count in bins)

    def at(value: float) -> float:
        return left + x.share(min(max(value, x.low), x.high)) * (width - left - 8)

    parts = [_text(left - 5, 16, number(most), anchor="end"), _text(left - 5, bottom, "0", anchor="end")]
    for low, high, count in bins:
        long = (bottom - 12) * count / most
        told = f"{low:.2f}× to {high:.2f}×: {count:,} {unit}"
        parts.append(
            f'<rect x="{at(low):.1f}" y="{bottom - long:.1f}" width="{max(1.0, at(high) - at(low) - 1):.1f}" '
            f'height="{long:.1f}" fill="{BLUE}"><title>{escape(told)}</title></rect>'
        )
    parts += [
        _line(left, bottom, width - 8, bottom, opacity=0.6),
        _line(at(1), 8, at(1), bottom, dash="4 4", opacity=0.8),
    ]
    parts += [_text(at(value), bottom + 16, name) for value, name in x.ticks()]
    parts.append(_text((left + width) / 2, height - 4, x.title))
    return _svg(label, parts, height=height, width=width)


def clip(text: str, length: int = 20) -> str:
    """Return a name that fits beside a row."""
    return text if len(text) <= length else f"{text[: length - 1]}…"
