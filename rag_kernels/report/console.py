"""Human output: the live table of attempts on a terminal, plain lines elsewhere, and the summaries.

Comes in: attempts and rows. Goes out: text on a rich console.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.spinner import Spinner
from rich.table import Column, Table
from rich.text import Text

from rag_kernels.archive.records import Attempt
from rag_kernels.eval.sessions.admission import IGNORED
from rag_kernels.report.json_rows import Row, attempt_row
from rag_kernels.text.wording import LINE_CHARS, count, money, percent, shorten, times

if TYPE_CHECKING:
    from rag_kernels.experiments.bootstrap import Interval
    from rag_kernels.experiments.retrieval_ablation import AblationTrial, Arm
    from rag_kernels.experiments.scores import Score, Solved

VERDICT_STYLES = {"passed": "green", "compiled": "yellow"}
WIDE_CHARS = 200


@contextmanager
def attempts_table(console: Console, title: str) -> Iterator[Callable[[Attempt], None]]:
    """Hand out a function that shows an attempt: in a live table on a terminal, as a line elsewhere."""
    if not console.is_terminal:
        yield lambda attempt: console.print(attempt_line(attempt_row(attempt)), soft_wrap=True, highlight=False)
        return
    names = ("#", "verdict", "vs eager", "vs compile", "of floor", "s", "idea, or what is wrong")
    table = Table(*(Column(name, no_wrap=True) for name in names), title=escape(title), box=SIMPLE_HEAD)
    room = max(20, console.width - 66)
    waiting = Table.grid()
    waiting.add_row(table)
    waiting.add_row(Spinner("dots", "working"))
    with Live(waiting, console=console, refresh_per_second=8, transient=False) as live:

        def show(attempt: Attempt) -> None:
            row = attempt_row(attempt)
            table.add_row(
                str(row["attempt"]),
                Text(row["verdict"], VERDICT_STYLES.get(row["verdict"], "red")),
                times(row["speedup_eager"]),
                times(row["speedup_compile"]),
                percent(row["floor_fraction"]),
                f"{row['seconds']:.1f}",
                escape(shorten(detail(row), room)),
            )

        try:
            yield show
        finally:
            live.update(table)


def attempt_line(row: Row) -> str:
    """Return one attempt on one line."""
    head = f"{row['attempt']:>3}  {row['verdict']:<12}"
    if row["verdict"] == "passed":
        head += f"  {times(row['speedup_eager'])} eager  {times(row['speedup_compile'])} compile"
        head += f"  {percent(row['floor_fraction'])} of floor"
    return f"{head}  {row['seconds']:.1f} s  {shorten(detail(row))}"


def detail(row: Row) -> str:
    """Return who wrote an attempt and why, or what is wrong with it."""
    return f"{row['model'] or row['writer']}: {row['reason'] or row['note'] or row['idea']}"


def summary(row: Row) -> str:
    """Return the end of a run in a few lines; `row` is `json_rows.result_row`'s."""
    spent = f"{count(row['attempts'], 'candidate')} in {row['seconds']:.1f} s, {money(row['cost_usd'])}"
    if row["kernel_id"] is None:
        last = f" The last one: {row['verdict']}. {row['reason']}" if row["verdict"] else f" {row['reason']}"
        return f"No verified kernel ({spent}).{last}"
    trust = "confirmed in a fresh process" if row["confirmed"] else "verified, not confirmed"
    lines = [
        f"{row['problem']}: kernel {row['kernel_id']}, {trust}",
        f"  {times(row['speedup_eager'])} eager, {times(row['speedup_compile'])} torch.compile, "
        f"{percent(row['floor_fraction'])} of the physical floor, on {row['device_name']}",
        f"  {row['label']}, {row['tier']} tier, {row['precision']} precision, {row['writer']} writer"
        + (f" ({row['model']})" if row["model"] else ""),
        f"  {spent}; run {row['run_id']}",
    ]
    if row["exemplars"]:
        lines.append(f"  shown to the writer: {', '.join(row['exemplars'])}")
    if row["out"]:
        lines.append(f"  written to {row['out']}")
    return "\n".join(lines)


def served_line(row: Row) -> str:
    """Return a workload's outcome as a line."""
    if row["verdict"] != "passed":
        return f"  {row['workload']}  {row['verdict']}  {row['reason']}"
    often = f"  (weight {row['weight']:g})" if row["weight"] != 1 else ""
    scaled = "".join(f"  {note}" for note in row["notes"] if note.startswith("scaled down"))
    return f"  {row['workload']}  passed  {row['candidate_us']:,.4g} us  {_over(row)}{often}{scaled}"


def total_line(row: Row) -> str:
    """Return the sum of all workloads as a line."""
    passed = f"{row['passed']} of {row['workloads']} workloads passed"
    if not row["passed"]:
        return f"{passed}."
    return f"{passed}; together {row['candidate_us']:,.4g} us  {_over(row)}"


def _over(row: Row) -> str:
    compiled = row["speedup_compile"]
    return f"{row['speedup_eager']:.2f}x eager" + (f"  {compiled:.2f}x compile" if compiled else "")


def print_table(rows: Sequence[Row], columns: dict[str, str]) -> None:
    """Print rows as a table; `columns` maps headings to keys. Nothing is cut where there is no terminal."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDE_CHARS)
    made = Table(*(Column(name, no_wrap=True) for name in columns), box=SIMPLE_HEAD)
    for row in rows:
        made.add_row(*(escape(cell(row.get(key), key)) for key in columns.values()))
    console.print(made)


def trial_line(trial: AblationTrial) -> str:
    """Return one trial of an ablation on one line."""
    head = f"{trial.problem}  {trial.arm:<7} seed {trial.seed}  "
    if trial.failure:
        return f"{head}cannot be used. {trial.failure}"
    result = f"{trial.speedup:.2f}x" if trial.solved else "no verified kernel"
    like = "" if trial.likest is None else f", {percent(trial.likest)} like its likest exemplar"
    return f"{head}{result}, {count(trial.candidates, 'candidate')}, {count(trial.shown, 'exemplar')}{like}"


def replayed_line(row: Row) -> str:
    """Return one step of a replay on one line."""
    if row["type"] == "differs":
        return f"differs  {row['difference']}"
    head = f"{row['attempt']:>3}  {row['kernel_id']}"
    if row["difference"]:
        return f"{head}  differs: {row['difference']}"
    speeds = f"  {times(row['then']['speedup'])} then, {times(row['now']['speedup'])} now"
    return f"{head}  {row['now']['verdict']} again{speeds if row['now']['speedup'] else ''}"


def scores_text(problems: Sequence[Solved], scores: Sequence[Score]) -> str:
    """Return Markdown tables: a line for each problem, and a line for each number."""
    lines = ["| problem | candidates | first round | of it right | best speed-up | cost |", "|---|---|---|---|---|---|"]
    for one in problems:
        lines.append(
            f"| {one.problem} | {one.candidates} | {one.samples} | {one.right} | {times(one.best)} "
            f"| {money(one.cost_usd)} |"
        )
    lines += ["", "| | problems | share | interval |", "|---|---|---|---|"]
    for score in scores:
        found = score.interval
        name = score.metric if score.p is None else score.metric.replace("_p", f"_{score.p:g}")
        interval = f"{percent(found.low)} to {percent(found.high)}" if score.problems > 1 else "one problem"
        lines.append(f"| {name.replace('@k', f'@{score.k}')} | {score.problems} | {percent(found.mean)} | {interval} |")
    return "\n".join(lines)


def arms_text(arms: Sequence[Arm]) -> str:
    """Return a Markdown table, a line for each way of retrieval, with intervals of about 95 %."""

    def told(value: Interval | None) -> str:
        return "-" if value is None else f"{value.mean:.2f} [{value.low:.2f}, {value.high:.2f}]"

    lines = [
        "",
        "| retrieval | problems | solved | faster than PyTorch | speed-up | over off | over random | exemplars |"
        " likest exemplar | near-copies |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for arm in arms:
        cells = map(told, (arm.solved, arm.faster, arm.speedup, arm.over_off, arm.over_random))
        like = "-" if arm.likest is None else percent(arm.likest)
        lines.append(
            f"| {arm.arm} | {arm.problems} | {' | '.join(cells)} | {arm.shown:.1f} | {like} | {arm.near_copies} |"
        )
    return "\n".join(lines)


def cell(value: Any, key: str) -> str:
    if value is None:
        return "-"
    if key.startswith("speedup"):
        return times(value)
    if key == "floor_fraction":
        return percent(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.3g}"
    if isinstance(value, list | tuple):
        return ", ".join(str(v) for v in value)
    return str(value)


def admission_line(row: Row) -> str:
    """Return one problem's admission on one line."""
    if not row["ok"]:
        return f"{row['problem']}: cannot be used. {row['reason']}"
    if row["degenerate"]:
        return f"{row['problem']}: degenerate; {row['degenerate']}"
    if not row["outputs"]:
        return f"{row['problem']}: {'; '.join(row['notes'])}"
    calibration = row["calibration"]
    gap = f", gap {calibration['gap']:.3g}" if calibration else ""
    remark = f" ({'; '.join(row['notes'])})" if row["notes"] else ""
    return f"{row['problem']}: admitted{gap}, {row['seconds']:.1f} s{remark}"


def print_admission(row: Row) -> None:
    """Print all that was found about one problem, for a person who is about to spend tokens on it."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(width=LINE_CHARS, highlight=False)
    verdict = Text("degenerate", "bold red") if row["degenerate"] else Text("admitted", "bold green")
    verdict = verdict if row["outputs"] else Text("not examined", "bold yellow")
    console.print(Text.assemble((row["problem"], "bold"), "  ", verdict, f"  on {row['device_name']}"))
    if row["degenerate"]:
        advice = "No speed is claimed on it: change its inputs or its formula."
        console.print(f"  {row['degenerate']}. {advice}", markup=False)
    shapes = ", ".join(f"{a['name']} {a['shape']} {a['dtype']}" for a in row["arguments"])
    results = ", ".join(f"{o['shape']} {o['dtype']}" for o in row["outputs"])
    console.print(f"  {shapes or 'no tensors'}  ->  {results}", markup=False)
    console.print(
        f"  {row['bytes_moved'] / 1e6:.3g} MB to move, {row['flops'] / 1e9:.3g} GFLOP in products: "
        f"{row['floor_us'] / 1e3:.3g} ms a call at best"
    )
    if row["sensitivities"]:
        console.print(_sensitivities(row["sensitivities"]))
    if row["null_kernels"]:
        console.print(_null_kernels(row["null_kernels"]))
    if row["calibration"]:
        console.print(_precisions(row["calibration"]))
    else:
        console.print("  Precision is judged by the fixed limits of the outputs' dtype.")
    for note in row["notes"]:
        console.print(Text.assemble(("  note  ", "yellow"), note))


def _sensitivities(rows: Sequence[Row]) -> Table:
    table = Table("drawn anew", "", "moves the output by", "", box=SIMPLE_HEAD)
    for row in rows:
        change = row["change"]
        if change is None:
            table.add_row(row["name"], row["role"], row["why"] or "beyond measure", "")
        else:
            bar = Text("█" * max(1, round(12 * min(change, 1.5))), "cyan")
            table.add_row(
                row["name"], row["role"], f"{change:.2g}", bar if change > IGNORED else Text("not at all", "yellow")
            )
    return table


def _null_kernels(rows: Sequence[Row]) -> Table:
    table = Table("a kernel that returns", "error", "this judge", "KernelBench's 1e-2", box=SIMPLE_HEAD)
    for row in rows:
        here = Text("passes it", "bold red") if row["passes"] else Text("rejects it", "green")
        if row["passes_own"] and not row["passes"]:
            here = Text("rejects it on zero-mean inputs", "green")
        there = Text("passes it", "red") if row["kernelbench"] else Text("rejects it", "green")
        table.add_row(row["name"], error(row["ratio"]), here, there)
    return table


def _precisions(found: Row) -> Table:
    """Return where the limit lies between honest rounding and lower precision."""
    table = Table("precision", "error", "this judge", box=SIMPLE_HEAD)
    table.add_row("honest rounding, 16 times as bad", error(found["noise_rms"]), "")
    table.add_row("limit", Text(error(found["limit_rms"]), "bold"), f"gap {found['gap']:.3g}")
    for cheat in found["cheats"]:
        caught = cheat["rms"] is None or cheat["rms"] > found["limit_rms"]
        mark = Text("rejects it", "green") if caught else Text("cannot tell", "yellow")
        table.add_row(cheat["name"], error(cheat["rms"]), mark)
    return table


def error(ratio: float | None) -> str:
    """Return an error as a multiple of PyTorch's own."""
    if ratio is None or ratio > 1e12:
        return "beyond measure"
    return f"{ratio:,.0f}x PyTorch's" if 100 <= ratio < 1e5 else f"{ratio:.2g}x PyTorch's"


def facts(rows: Iterable[tuple[str, Any]]) -> str:
    """Return names and values, one on a line, aligned."""
    known = [(name, cell(value, name)) for name, value in rows]
    width = max((len(name) for name, _ in known), default=0)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in known)
