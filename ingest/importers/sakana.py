"""The AI CUDA Engineer archive: Parquet files with a row for each kernel that its search wrote, right or wrong.

Comes in: `level_1.parquet`... or the folder with them. Goes out: an `Imported` for each row. Problems are taken as
the rows have them, since their sizes are older than today's KernelBench. Times are in milliseconds, the kernel's
rounded to three decimals. No row names its parent, so no parents are made up: sweep, batch and sample, where a path
tells them, are kept as they are. Torch profiles and the text of clang-tidy are not taken.

What is known against a row hides its kernel until it is judged here: tasks whose output hardly depends on the input
(named below, or flagged by robust-kbench's filters, given its folder), and speed-ups that are too good.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rag_kernels.archive.records import Claim, Imported
from rag_kernels.eval.records import Candidate
from rag_kernels.ingest.importers.protocol import (
    ImportRefused,
    Read,
    Skipped,
    known_problem,
    library_calls,
    microseconds,
    number,
    stated,
    too_good,
    without_paths,
)
from rag_kernels.ingest.importers.task_filters import task_warnings

LICENCE = "CC-BY-4.0"
ATTRIBUTION = "Sakana AI, The AI CUDA Engineer archive; its PyTorch modules are from KernelBench (MIT)"
DEVICE = "NVIDIA H100"  # as its paper says; the rows do not
BATCH = 2000
ERROR_CHARS = 2000

TEXTS = ("Op_Name", "Kernel_Name", "CUDA_Code", "PyTorch_Code_Module")
NUMBERS = ("CUDA_Runtime", "PyTorch_Native_Runtime", "PyTorch_Compile_Runtime", "Max_Diff")
REQUIRED = (*TEXTS, *NUMBERS, "Level_ID", "Task_ID", "Correct", "CUDA_Speedup_Native", "CUDA_Speedup_Compile")
OPTIONAL = ("PyTorch_Code_Functional", "Error", "NCU_Profile", "Clang_Tidy", "__index_level_0__")

# Found by readers after the release, or by running what computes nothing against the problem.
KNOWN: dict[tuple[int, int], str] = {
    (1, 12): "the reference builds a diagonal matrix and multiplies by it, so any direct product is 50 times faster",
    (1, 15): "the best kernels computed only a part of the rows and passed for want of a fresh output buffer",
    (2, 9): "the output is zero for all inputs that are drawn",
    (2, 23): "the output is a mean of a normalization, which hardly depends on the input",
    (2, 36): "a constant passes for the output",
    (2, 38): "a constant passes for the output",
    (2, 42): "a constant passes for the output",
    (2, 65): "a constant passes for the output",
    (2, 80): "the output is zero by its algebra",
    (2, 83): "the output is clamped to zero",
}

# .../experiments/<sweep>/level_1/task_2/b3_s0_<name>/<edit>/file.cu
_COORDINATES = re.compile(r"experiments/([\w.-]+)/level_\d+/task_\d+/b(\d+)_s(\d+)_[^/\s]*/(\w+)/")
_METRIC = re.compile(r"'([^']+)': \{'unit': '([^']*)', 'avg_value': ([-+.\de]+)")
_RULE = re.compile(r"'(\w+)': \{'type': '(\w+)', 'description'")


@dataclass(frozen=True, slots=True)
class Sakana:
    """Reads the AI CUDA Engineer archive.

    `filters` is a checkout of robust-kbench, whose verdicts on tasks are joined in.
    """

    filters: Path | None = None

    def read(self, path: Path) -> Iterator[Read]:
        files = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
        if not files or not all(file.is_file() for file in files):
            raise ImportRefused(f"{path} holds no Parquet file: name level_1.parquet, or the folder with the levels.")
        flagged = {} if self.filters is None else task_warnings(self.filters)
        for file in files:
            for row_number, row in _rows(file):
                where = f"{file.name} row {row_number}"
                try:
                    yield _imported(row, flagged)
                except ValueError as error:
                    yield Skipped(where, str(error))


def _rows(file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the rows of a file with their numbers, from 0, a batch at a time."""
    import duckdb

    con = duckdb.connect(config={"threads": 2})
    try:
        table = con.read_parquet(str(file))
        missing = [name for name in REQUIRED if name not in table.columns]
        if missing:
            raise ImportRefused(f"{file} has no column {', '.join(missing)}: it is not the AI CUDA Engineer archive.")
        names = [*REQUIRED, *(name for name in OPTIONAL if name in table.columns)]
        columns = ", ".join(f'"{name}"' for name in names)
        cursor = con.execute(f"SELECT {columns} FROM read_parquet(?)", [str(file)])
        row_number = 0
        while batch := cursor.fetchmany(BATCH):
            for values in batch:
                yield row_number, dict(zip(names, values, strict=True))
                row_number += 1
    except duckdb.Error as error:
        raise ImportRefused(f"{file} cannot be read as Parquet: {error}. Download it again.") from error
    finally:
        con.close()


def _imported(row: dict[str, Any], flagged: dict[tuple[int, int], str]) -> Imported:
    """Return one row as a kernel.

    Raises ValueError with the reason when it cannot be used.
    """
    for name in TEXTS:
        if not isinstance(row[name], str) or not row[name].strip():
            raise ValueError(f"{name} is empty")
    level, task = _whole(row, "Level_ID"), _whole(row, "Task_ID")
    problem = known_problem(row["Op_Name"], row["PyTorch_Code_Module"])
    if isinstance(problem, str):
        raise ValueError(f"PyTorch_Code_Module is no problem: {problem}")
    if not isinstance(row["Correct"], bool):
        raise ValueError("Correct is neither true nor false")
    coordinates = _COORDINATES.search(row.get("Clang_Tidy") or "")
    claim = _claim(row, (level, task), coordinates, flagged)
    candidate = Candidate(row["CUDA_Code"], "module", "cuda")
    functional = stated(problem, row.get("PyTorch_Code_Functional") or "")
    return Imported(functional, candidate, claim, idea=row["Kernel_Name"].replace("_", " "))


def _claim(
    row: dict[str, Any],
    task: tuple[int, int],
    coordinates: re.Match[str] | None,
    flagged: dict[tuple[int, int], str],
) -> Claim:
    correct: bool = row["Correct"]
    eager = _speedup(row, "CUDA_Speedup_Native", correct)
    compiled = _speedup(row, "CUDA_Speedup_Compile", correct)
    warnings = [KNOWN.get(task, ""), flagged.get(task, ""), too_good(eager)]
    place = "" if coordinates is None else f", {coordinates[1]} b{coordinates[2]}_s{coordinates[3]}"
    note = library_calls(row["CUDA_Code"])
    return Claim(
        importer="sakana",
        origin=f"level {task[0]} task {task[1]}{place}, {row['Kernel_Name']}",
        licence=LICENCE,
        attribution=ATTRIBUTION,
        correct=correct,
        device_name=DEVICE,
        candidate_us=microseconds(row["CUDA_Runtime"]) if correct else None,
        eager_us=microseconds(row["PyTorch_Native_Runtime"]),
        compile_us=microseconds(row["PyTorch_Compile_Runtime"]),
        speedup_eager=eager,
        speedup_compile=compiled,
        notes=(note,) if note else (),
        warning="; ".join(filter(None, warnings)) if correct else "",
        details=json.dumps(_details(row, coordinates), sort_keys=True),
    )


def _details(row: dict[str, Any], coordinates: re.Match[str] | None) -> dict[str, Any]:
    """Return where the row comes from and what its profilers said, without what names people."""
    found: dict[str, Any] = {"index": row.get("__index_level_0__"), "max_diff": number(row["Max_Diff"])}
    if coordinates is not None:
        sweep, batch, sample, edit = coordinates.groups()
        found["inferred"] = {"sweep": sweep, "batch": int(batch), "sample": int(sample), "edit": edit}
    if row.get("Error"):
        found["error"] = without_paths(row["Error"][:ERROR_CHARS])
    profile = row.get("NCU_Profile") or ""
    metrics, _, rules = profile.partition("'rules':")
    if metrics:
        found["ncu"] = {name: [float(value), unit] for name, unit, value in _METRIC.findall(metrics)}
        found["ncu_warnings"] = [name for name, kind in _RULE.findall(rules) if kind == "WRN"]
    return found


def _speedup(row: dict[str, Any], name: str, correct: bool) -> float | None:
    """Return the row's speed-up, or None for a wrong kernel, which has 0.0 there."""
    value = number(row[name])
    return value if correct and value else None


def _whole(row: dict[str, Any], name: str) -> int:
    value: Any = row[name]
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{name} is {value!r}, which is no whole number")
    return value
