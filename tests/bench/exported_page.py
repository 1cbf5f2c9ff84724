"""Writes what `exported_packages.py` measured as a page of docs/measured.

    python tests/bench/exported_page.py FOLDER call.txt

`call.txt` is what `exported_call.py` printed, and may be left out.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from exported_clocks import TURNS
from exported_peers import BURST, FORMS

PAGE = """# Exported packages on a GPU

{kernels} CUDA kernels of the starter archive in every format of `rag-kernels export`, each taken by its peer's loader
(Hugging Face's `get_local_kernel`, flashinfer-bench's `apply`, pip for the wheel, torch's loader of extensions as
SOL-ExecBench, GPU MODE and KernelBench use it), on {device}, {date}; what evaluators said is below the table. The
numbers are those of the problem's own module in {right} of {all} packages.

A package's time stands over the judge's time of the same kernel in the same hour: between {least:.3f} and {most:.3f},
within 3 % of it in {near} of {timed}. Over the bare kernel, called in the same process without a package, it is between
{least_bare:.3f} and {most_bare:.3f}: what is more than that lies between the two clocks, and not in the packages. The
judge's is its own (a race with eager in its workers); the packages' does the same, as far as it is known: medians of
{turns} bursts of up to {burst} calls with cold caches, queued behind a delay, each call with inputs of its own, after
calls of eager, formats in turn. `clocks` says why the two differ.

Made by `python tests/bench/exported_packages.py`; its first lines say how.

| kernel | judge's time | bare kernel | {heads} |
|---|---:|---:|{rules}|
{rows}

{said}
{call}"""


CALL = """
What a call costs on that machine's processor, where only the way to a CPU kernel counts (`tanh(x) * 2` of 8 by 16
floats), and how much it is beside the module's own:

    {rows}
"""


def page(folder: Path, call: str) -> str:
    """Return the measured rows as a page, with what a call costs where that was measured."""
    rows = [json.loads(row) for row in (folder / "rows.jsonl").read_text().splitlines()]
    kept = folder / "said.jsonl"
    evaluated = [json.loads(row) for row in kept.read_text().splitlines()] if kept.exists() else []
    verdicts = {(row["kernel"], row["form"]): row["said"] for row in evaluated}
    kernels = list(dict.fromkeys(row["kernel"] for row in rows))
    cells = {(row["kernel"], row["form"]): row for row in rows}
    made = [row for row in rows if row["form"] != "bare kernel"]
    timed = [row["us"] / row["judged_us"] for row in made if row["us"]]
    over_bare = [row["us"] / cells[row["kernel"], "bare kernel"]["us"] for row in made if row["us"]]
    lines = []
    for kernel in kernels:
        bare = cells[kernel, "bare kernel"]
        shares = [cells[kernel, form] for form in ("bare kernel", *FORMS)]
        told = [f"{row['us'] / row['judged_us']:.3f}" if row["us"] else "none" for row in shares]
        lines.append(f"| {bare['problem']} | {bare['judged_us']:.1f} us | {' | '.join(told)} |")
    said: dict[tuple[str, str], list[str]] = {}
    for row in made:
        told_of = "; ".join(filter(None, (row["told"], verdicts.get((row["kernel"], row["form"]), ""))))
        if told_of != "right":
            said.setdefault((row["form"], told_of), []).append(row["problem"])
    told_by = [f"- `{form}`: {told} ({', '.join(names)})" for (form, told), names in said.items()]
    return PAGE.format(
        kernels={3: "Three", 4: "Four", 5: "Five"}.get(len(kernels), str(len(kernels))),
        date=time.strftime("%-d %B %Y"),
        device=f"an {rows[0]['device']}", right=sum(row["told"].startswith("right") for row in made), all=len(made),
        turns=TURNS, burst=BURST, least=min(timed), most=max(timed), near=sum(abs(t - 1) <= 0.03 for t in timed),
        timed=len(timed), heads=" | ".join(FORMS), rules="|".join(["---:"] * len(FORMS)), rows="\n".join(lines),
        said="\n".join(told_by),
        call=CALL.format(rows=call.strip().replace("\n", "\n    ")) if call else "",
        least_bare=min(over_bare), most_bare=max(over_bare),
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("folder", type=Path)
    parser.add_argument("call", type=Path, nargs="?")
    given = parser.parse_args()
    print(page(given.folder, given.call.read_text() if given.call else ""), end="")


if __name__ == "__main__":
    main()
