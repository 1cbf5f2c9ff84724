"""One judgement as a person wants to read it: the verdict, the times with their intervals, what was checked, and why.

Comes in: a Judged. Goes out: rich renderables. Knows nothing of archives or runs.
"""

from __future__ import annotations

from collections.abc import Iterator

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from rag_kernels.eval.contract import contract_line
from rag_kernels.eval.instruments.nsight_compute import in_a_line
from rag_kernels.eval.records import (
    BuildFailed,
    Crashed,
    Judged,
    Measurement,
    Passed,
    Ratio,
    Rejected,
    Wrong,
    verdict_name,
)
from rag_kernels.eval.told import told_floor, told_ratio
from rag_kernels.text.wording import broken

LOG_LINES = 12
HANG = 12  # where what is told of a field begins


def print_verdict(judged: Judged, call: str = "", step: str = "") -> None:
    """Print a judgement on stdout, with lines that fit where it is a terminal. `call` is how the kernel is called, said
    where it failed in being called; `step` is what is told of a right kernel of a training step.
    """
    console = Console(soft_wrap=True, highlight=False)
    console.print(report(judged, console.width if console.is_terminal else 0, call, step))


def report(judged: Judged, width: int = 0, call: str = "", step: str = "") -> RenderableType:
    """Return the headline, then the evidence, broken between words at a width; 0 breaks nothing."""
    verdict = judged.verdict
    if not isinstance(verdict, Passed):
        headline = _headline(verdict_name(verdict), "red")
        told = _why(judged, width)
        called = (
            [_field("called as", " ".join(call.split()), width)]
            if call and isinstance(verdict, Crashed) and verdict.raised
            else []
        )
        return Group(headline, *told, *called, *_where(judged, width))
    words = [verdict.trust, verdict.label, f"{verdict.precision} precision", *verdict.labels]
    claim = [] if verdict.claims_speed else ["no speed claim"]
    headline = _headline("passed", "green", broken(" · ".join(words + claim), width and width - 8, hang=2))
    parts: list[RenderableType] = [headline, times(verdict.measurement)]
    exactness = f"{verdict.error_ratio:.2g} times PyTorch's own error at worst"
    parts.append(_field("checked", f"{', '.join(verdict.checks)}; {exactness}", width))
    if step:
        parts.append(_field("step", step, width))
    if verdict.contract is not None:
        parts.append(_field("serves", contract_line(verdict.contract), width))
    parts += [_field("note", note, width) for note in verdict.notes]
    if verdict.counters is not None:
        parts.append(_field("ncu", in_a_line(verdict.counters), width))
    return Group(*parts, *_where(judged, width))


def _field(name: str, text: str, width: int, style: str = "") -> Text:
    return Text(broken(f"  {name:<9} {text}", width, hang=HANG), style)


def _headline(name: str, style: str, rest: str = "") -> Text:
    return Text.assemble((name.replace("_", " ").upper(), f"bold {style}"), f"  {rest}" if rest else "")


def times(m: Measurement) -> Table:
    """Return a table of candidate, baselines and floor; intervals are of about 95 %."""
    table = Table("", "time", "speed-up over it", box=SIMPLE_HEAD, padding=(0, 2))
    table.add_row("this kernel", _us(m.candidate_us), "cold caches" if m.cold else "")
    table.add_row("eager", _us(m.eager_us), _ratio(m, m.speedup_eager))
    if m.compile_us is not None and m.speedup_compile is not None:
        table.add_row("torch.compile", _us(m.compile_us), _ratio(m, m.speedup_compile))
    else:
        table.add_row("torch.compile", "-", m.compile_note)
    if m.speedup_warm is not None:
        table.add_row("eager, warm caches", "", _ratio(m, m.speedup_warm))
    if m.candidate_host_us is not None:
        others = (("eager", m.eager_host_us), ("torch.compile", m.compile_host_us))
        seen = ", ".join(f"{name} {_us(us)}" for name, us in others if us is not None)
        table.add_row("with the host's time", _us(m.candidate_host_us), seen)
    if m.candidate_extra_bytes is not None:
        eager = "" if m.eager_extra_bytes is None else f"eager {_mib(m.eager_extra_bytes)}"
        table.add_row("memory beside arguments and outputs", _mib(m.candidate_extra_bytes), eager)
    reached = told_floor(m)
    of_floor = f"{reached:.0%} of the speed of light" if reached is not None else "faster than this floor: it is none"
    table.add_row("physical floor", _us(m.floor_us), of_floor)
    table.caption = f"{m.pairs} pairs in random order{', confirmed in fresh processes' if m.confirmed else ''}"
    return table


def _us(us: float) -> str:
    return f"{us / 1000:.3g} ms" if us >= 1000 else f"{us:.3g} us"


def _mib(count: int) -> str:
    return f"{count / 2**20:,.1f} MiB"


def _ratio(m: Measurement, ratio: Ratio) -> str:
    sign = "" if m.confirmed else "≥ "
    return f"{sign}{told_ratio(m, ratio):.2f}x  ({ratio.low:.2f} to {ratio.high:.2f})"


def _why(judged: Judged, width: int) -> Iterator[RenderableType]:
    verdict = judged.verdict
    if isinstance(verdict, Passed):
        return
    code = f" ({verdict.code})" if isinstance(verdict, Rejected) else ""
    yield _field("why", f"{verdict.reason}{code}", width)
    if isinstance(verdict, Wrong):
        yield _field("on", verdict.input_class, width)
        yield _field("where", verdict.where, width)
    if isinstance(verdict, BuildFailed | Crashed) and verdict.log.strip():
        lines = [line for line in verdict.log.strip().splitlines() if line.strip() != verdict.reason.strip()]
        yield Text("\n".join(f"    {line}" for line in lines[:LOG_LINES]), "dim")


def _where(judged: Judged, width: int) -> Iterator[RenderableType]:
    spent = ", ".join(f"{name} {seconds:.2f}" for name, seconds in judged.stage_s.items() if seconds >= 0.005)
    sandbox = ", ".join(judged.environment.sandbox) or "none"
    yield _field("device", f"{judged.device.name}, sandbox: {sandbox}", width, "dim")
    if spent:
        yield _field("seconds", spent, width, "dim")
