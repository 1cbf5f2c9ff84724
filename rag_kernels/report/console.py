"""Human output: the live table of attempts on a terminal, plain lines elsewhere, and the summaries.

Comes in: attempts and rows. Goes out: text on a rich console.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table
from rich.text import Text

from rag_kernels.archive.records import Attempt
from rag_kernels.eval.records import UNCHECKED
from rag_kernels.eval.sessions.admission import IGNORED
from rag_kernels.report.columns import GAP, fitting
from rag_kernels.report.json_rows import Row, attempt_row
from rag_kernels.report.waiting import changing, waiting
from rag_kernels.text.wording import LINE_CHARS, count, money, percent, shorten, times

if TYPE_CHECKING:
    from rag_kernels.archive.records import Run
    from rag_kernels.experiments.bootstrap import Interval
    from rag_kernels.experiments.retrieval_ablation import AblationTrial, Arm
    from rag_kernels.experiments.scores import Score, Solved

VERDICT_STYLES = {"passed": "green", "compiled": "yellow"}
WIDE_CHARS = 200
DETAIL = "idea, or what is wrong"
ATTEMPT_WIDTHS = {"#": 3, "verdict": 12, "vs eager": 8, "vs compile": 10, "of floor": 8, "s": 6, DETAIL: 30}
ATTEMPT_DROPPABLE = ("s", "of floor", "vs eager", "#")  # the first says least


@contextmanager
def attempts_table(console: Console, title: str) -> Iterator[Callable[[Attempt], None]]:
    """Hand out a function that shows an attempt: in a live table on a terminal, as a line elsewhere."""
    if not console.is_terminal:
        yield lambda attempt: console.print(attempt_line(attempt_row(attempt)), soft_wrap=True, highlight=False)
        return
    kept = fitting(ATTEMPT_WIDTHS, ATTEMPT_DROPPABLE, console.width)
    table = Table(*(Column(name, no_wrap=True) for name in kept), title=escape(title), box=SIMPLE_HEAD)
    room = console.width - sum(ATTEMPT_WIDTHS[name] + GAP for name in kept if name != DETAIL) - GAP - 1
    seen: set[str] = set()
    with waiting() as line:
        shown = Table.grid()
        shown.add_row(table)
        shown.add_row(line)
        with changing(shown, console, stays=True) as live:

            def show(attempt: Attempt) -> None:
                seen.add(attempt.candidate.id)
                line.judged(len(seen))
                cells = attempt_cells(attempt_row(attempt), room)
                table.add_row(*(cells[name] for name in kept))

            try:
                yield show
            finally:
                live.update(table)


@contextmanager
def waiting_line(console: Console) -> Iterator[Callable[[Attempt], None]]:
    """Hand out a function that takes an attempt and shows nothing; until the end, say on a terminal what goes on."""
    if not console.is_terminal:
        yield lambda attempt: None
        return
    with waiting() as line, changing(line, console):
        yield lambda attempt: None


def attempt_cells(row: Row, room: int) -> dict[str, str | Text]:
    """Return the cells of one attempt by the names of their columns; the detail has `room` characters."""
    over_eager, over_compile = speeds(row)
    told = row["note"] if row["note"] and not row["reason"] else detail(row)  # a note needs the room of who wrote it
    return {
        "#": str(row["attempt"]),
        "verdict": Text(row["verdict"], VERDICT_STYLES.get(row["verdict"], "red")),
        "vs eager": over_eager,
        "vs compile": over_compile,
        "of floor": percent(row["floor_fraction"]),
        "s": f"{row['seconds']:.1f}",
        DETAIL: escape(shorten(told, room)),
    }


def attempt_line(row: Row) -> str:
    """Return one attempt on one line."""
    head = f"{row['attempt']:>3}  {row['verdict']:<12}"
    if row["verdict"] == "passed":
        over_eager, over_compile = speeds(row)
        head += f"  {over_eager} eager  {over_compile} compile"
        reached = row["floor_fraction"]
        head += "  above the floor" if reached is None else f"  {percent(reached)} of floor"
    return f"{head}  {row['seconds']:.1f} s  {shorten(detail(row))}"


def speeds(row: Row) -> tuple[str, str]:
    """Return what is told of the speed-ups over eager and over torch.compile."""
    at_least = bool(row["at_least"])
    return times(row["speedup_eager"], at_least=at_least), times(row["speedup_compile"], at_least=at_least)


def detail(row: Row) -> str:
    """Return who wrote an attempt and why, or what is wrong with it."""
    return f"{row['model'] or row['writer']}: {_reason(row) or row['note'] or row['idea']}"


def _reason(row: Row) -> str:
    """Return why a candidate failed; of wrong numbers also on which inputs, and where."""
    if not row.get("where"):
        return str(row["reason"])
    return f"{row['reason'].rstrip('.')} on {row['input_class']}: {row['where']}"


def summary(row: Row) -> str:
    """Return the end of a run in a few lines; `row` is `json_rows.result_row`'s."""
    spent = f"{count(row['attempts'], 'candidate')} in {row['seconds']:.1f} s, {money(row['cost_usd'])}"
    if row["kernel_id"] is None:
        last = f" The last one: {row['verdict']}. {_reason(row)}" if row["verdict"] else f" {row['reason']}"
        more = f" Run {row['run_id']}." if row["verdict"] else ""
        return f"No verified kernel ({spent}).{last}{more}"
    trust = _trust(row, "confirmed in a fresh process")
    over_eager, over_compile = speeds(row)
    reached = row["floor_fraction"]
    floor = (
        "faster than the floor that was measured" if reached is None else f"{percent(reached)} of the physical floor"
    )
    labels = [label for label in row["labels"] if not label.startswith(UNCHECKED)]
    labels += [] if row["claims_speed"] else ["no speed claim"]
    lines = [
        f"{row['problem']}: kernel {row['kernel_id']}, {trust}",
        f"  {over_eager} eager, {over_compile} torch.compile, {floor}, on {row['device_name']}",
        *([f"  {_slower(row)}"] if row["confirmed"] and row["speedup"] < 1 else []),
        *([f"  {row['step']}"] if row["step"] else []),
        f"  {row['label']}, {row['tier']} tier, {row['precision']} precision, {row['writer']} writer"
        + (f" ({row['model']})" if row["model"] else ""),
        *([f"  {', '.join(labels)}"] if labels else []),
        *([f"  serves {row['serves']}"] if row["serves"] else []),
        f"  {spent}; run {row['run_id']}",
    ]
    if row["exemplars"]:
        lines.append(f"  shown to the writer: {', '.join(row['exemplars'])}")
    if row["out"]:
        lines.append(f"  written to {row['out']}")
    return "\n".join(lines)


def _slower(row: Row) -> str:
    """Return what to do with a kernel that is slower than a baseline."""
    over_compile = row["speedup_compile"]
    ahead = "torch.compile" if over_compile is not None and over_compile <= row["speedup_eager"] else "eager PyTorch"
    return f"slower than {ahead}: use that, or look further with more `--effort` or a model"


def _trust(row: Row, confirmed: str) -> str:
    """Return how far to trust a kernel: what could not be tried is named."""
    left_out = [label.partition(": ")[2] for label in row.get("labels", ()) if label.startswith(UNCHECKED)]
    if not row["confirmed"]:
        return "verified, not confirmed"
    return f"{confirmed}, but for what could not be tried: {', '.join(left_out)}" if left_out else confirmed


def archived_line(row: Row) -> str:
    """Return where a judged kernel is kept, when its verdict and times are on the screen already."""
    if row["kernel_id"] is None:
        return f"  archived  as a failed attempt of run {row['run_id']}"
    trust = _trust(row, "confirmed")
    return f"  archived  {row['kernel_id']}, {trust}; run {row['run_id']}"


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
    over_eager, over_compile = speeds(row)
    return f"{over_eager} eager" + (f"  {over_compile} compile" if row["speedup_compile"] else "")


def print_table(
    rows: Sequence[Row], columns: dict[str, str], droppable: Sequence[str] = (), console: Console | None = None
) -> None:
    """Print rows as a table; `columns` maps headings to keys. A narrow terminal leaves out the `droppable` headings, in
    their order; nothing is left out where there is no terminal.
    """
    console = console or Console()
    if not console.is_terminal:
        console = Console(width=WIDE_CHARS)
    texts = [
        {name: cell(row.get(key), key, at_least=bool(row.get("at_least"))) for name, key in columns.items()}
        for row in rows
    ]
    widths = {name: max([len(name), *(len(text[name]) for text in texts)]) for name in columns}
    kept = fitting(widths, droppable, console.width)
    made = Table(*(Column(name, no_wrap=True) for name in kept), box=SIMPLE_HEAD)
    for text in texts:
        made.add_row(*(escape(text[name]) for name in kept))
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
    if "kernel_id" not in row:
        return f"differs  {row['difference']}"
    head = f"{row['attempt']:>3}  {row['kernel_id']}"
    if row["difference"]:
        return f"{head}  differs: {row['difference']}"
    then, now = (times(row[when]["speedup"], at_least=bool(row[when]["at_least"])) for when in ("then", "now"))
    return f"{head}  {row['now']['verdict']} again{f'  {then} then, {now} now' if row['now']['speedup'] else ''}"


SCORES_TOLD = (
    "fast_p is the share of problems whose best kernel is more than p times as fast as the better of eager and "
    "torch.compile; pass@k and fast_p@k are the chance that k candidates of the first round hold one that is right, or "
    "so fast. Intervals are of about 95 %."
)


def runs_text(runs: Sequence[Run]) -> str:
    """Return which runs a report is of, as a sentence."""
    ordered = sorted(runs, key=lambda run: run.started_at)
    first, last = ordered[0], ordered[-1]
    when = f"{first.started_at[:16].replace('T', ' ')} UTC"
    if len(runs) == 1:
        return f"Of run {first.id}: {first.command} {first.problem_name}, {when}."
    commands = ", ".join(sorted({run.command for run in runs}))
    return f"Of {len(runs)} runs ({commands}), {first.id} to {last.id}, the first of {when}."


def scores_text(problems: Sequence[Solved], scores: Sequence[Score]) -> str:
    """Return Markdown tables: a line for each problem, and a line for each number."""
    lines = [
        "| problem | candidates | first round | right of it | best speed-up | cost |",
        "|---|---|---|---|---|---|",
    ]
    for one in problems:
        best = times(one.best, at_least=one.best_at_least)
        lines.append(
            f"| {one.problem} | {one.candidates} | {one.samples} | {one.right} | {best} | {money(one.cost_usd)} |"
        )
    lines += ["", "| | problems | share | interval |", "|---|---|---|---|"]
    for score in scores:
        found = score.interval
        name = score.metric if score.p is None else score.metric.replace("_p", f"_{score.p:g}")
        interval = f"{percent(found.low)} to {percent(found.high)}"
        lines.append(f"| {name.replace('@k', f'@{score.k}')} | {score.problems} | {percent(found.mean)} | {interval} |")
    return "\n".join(lines)


def arms_text(arms: Sequence[Arm]) -> str:
    """Return a Markdown table, a line for each way of retrieval, with intervals of about 95 %."""

    def told(value: Interval | None) -> str:
        return "-" if value is None else f"{value.mean:.2f} [{value.low:.2f}, {value.high:.2f}]"

    lines = [
        "",
        "| retrieval | problems | solved | at the first candidate | faster than PyTorch | speed-up | over off |"
        " over random | exemplars | likest exemplar | near-copies | tokens |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for arm in arms:
        cells = map(told, (arm.solved, arm.first, arm.faster, arm.speedup, arm.over_off, arm.over_random))
        like = "-" if arm.likest is None else percent(arm.likest)
        lines.append(
            f"| {arm.arm} | {arm.problems} | {' | '.join(cells)} | {arm.shown:.1f} | {like} | {arm.near_copies} "
            f"| {arm.tokens:.0f} |"
        )
    return "\n".join(lines)


def cell(value: Any, key: str, *, at_least: bool = False) -> str:
    if value is None:
        return "-"
    if key.startswith("speedup"):
        return times(value, at_least=at_least)
    if key == "floor_fraction":
        return percent(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
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
    times = f", {_baselines(row)}" if row["eager_us"] else ""
    return f"{row['problem']}: admitted{gap}{times}, {row['seconds']:.1f} s{remark}"


def _baselines(row: Row) -> str:
    """Return what a kernel for a problem has to beat."""
    compiled = f", torch.compile {row['compile_us']:.0f} us" if row["compile_us"] else ""
    note = f" ({row['compile_note']})" if row["compile_note"] else ""
    return f"eager {row['eager_us']:.0f} us{compiled}{note}"


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
    if row["eager_us"]:
        console.print(f"  To be beaten: {_baselines(row)}")
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
    values = dict(rows)
    at_least = bool(values.pop("at_least", False))
    known = [(name, cell(value, name, at_least=at_least)) for name, value in values.items()]
    width = max((len(name) for name, _ in known), default=0)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in known)
