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

LOG_LINES = 12


def print_verdict(judged: Judged) -> None:
    """Print a judgement on stdout."""
    Console(soft_wrap=True, highlight=False).print(report(judged))


def report(judged: Judged) -> RenderableType:
    """Return the headline, then the evidence."""
    verdict = judged.verdict
    if not isinstance(verdict, Passed):
        return Group(_headline(verdict_name(verdict), "red"), *_why(judged), *_where(judged))
    words = [verdict.trust, verdict.label, f"{verdict.precision} precision", *verdict.labels]
    claim = [] if verdict.claims_speed else ["no speed claim"]
    parts: list[RenderableType] = [_headline("passed", "green", " · ".join(words + claim)), times(verdict.measurement)]
    exactness = f"{verdict.error_ratio:.2g} times PyTorch's own error at worst"
    parts.append(Text(f"  checked   {', '.join(verdict.checks)}; {exactness}"))
    if verdict.contract is not None:
        parts.append(Text(f"  serves    {contract_line(verdict.contract)}"))
    parts += [Text(f"  note      {note}") for note in verdict.notes]
    if verdict.counters is not None:
        parts.append(Text(f"  ncu       {in_a_line(verdict.counters)}"))
    return Group(*parts, *_where(judged))


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


def _why(judged: Judged) -> Iterator[RenderableType]:
    verdict = judged.verdict
    if isinstance(verdict, Passed):
        return
    code = f" ({verdict.code})" if isinstance(verdict, Rejected) else ""
    yield Text(f"  why       {verdict.reason}{code}")
    if isinstance(verdict, Wrong):
        yield Text(f"  on        {verdict.input_class}")
        yield Text(f"  where     {verdict.where}")
    if isinstance(verdict, BuildFailed | Crashed) and verdict.log.strip():
        lines = [line for line in verdict.log.strip().splitlines() if line.strip() != verdict.reason.strip()]
        yield Text("\n".join(f"    {line}" for line in lines[:LOG_LINES]), "dim")


def _where(judged: Judged) -> Iterator[RenderableType]:
    spent = ", ".join(f"{name} {seconds:.2f}" for name, seconds in judged.stage_s.items() if seconds >= 0.005)
    yield Text(f"  device    {judged.device.name}, sandbox: {', '.join(judged.environment.sandbox) or 'none'}", "dim")
    yield Text(f"  seconds   {spent}", "dim")
