"""KernelBench runs: `runs/<run>/level_L_problem_P_sample_S_kernel.py` with `eval_results.json` beside them.

Comes in: a run's folder or the folder of runs, and KernelBench's folder of problems (`KernelBench/` of a checkout,
which is found by itself when the runs lie in that checkout). Goes out: an `Imported` for each kernel file. Times in
`eval_results.json` are milliseconds, whatever its comments say; it holds no times of PyTorch, so a run claims no
speed-up. Results go by problem and sample alone: with two levels in one folder nobody can tell whose they are, and
they are not used.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rag_kernels.archive.records import Claim, Imported
from rag_kernels.eval.records import Backend, Candidate
from rag_kernels.ingest.importers.protocol import (
    ImportRefused,
    Read,
    Skipped,
    known_problem,
    microseconds,
    number,
    read_text,
    stated,
    without_paths,
)

PROBLEMS_BY = "its problem is from KernelBench (MIT)"
KEPT = (
    "runtime_error",
    "runtime_error_name",
    "compilation_error",
    "compilation_error_name",
    "cuda_error",
    "other_error",
    "correctness_issue",
    "correctness_trials",
    "max_difference",
    "avg_difference",
    "excessive_speedup",
)
ERROR_CHARS = 2000
_KERNEL = re.compile(r"level_(\d+)_problem_(\d+)_sample_(\d+)_kernel\.py")

Results = dict[tuple[int, int], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class KernelBenchRuns:
    """Reads the kernels of KernelBench runs.

    `problems` is the folder with `level1/`, `level2/`...; None looks for it around the runs. `licence` is that of the
    kernels.
    """

    problems: Path | None = None
    licence: str = ""
    attribution: str = ""

    def read(self, path: Path) -> Iterator[Read]:
        runs = [folder for folder in [path, *sorted(path.glob("*/"))] if _kernels(folder)]
        if not runs:
            raise ImportRefused(
                f"{path} holds no KernelBench run: name a folder with files like level_1_problem_2_sample_0_kernel.py."
            )
        problems = _sources(self.problems or _around(path))
        for run in runs:
            yield from self._run(run, problems)

    def _run(self, run: Path, problems: dict[tuple[int, int], Path]) -> Iterator[Read]:
        kernels = _kernels(run)
        results: Results = {}
        if (run / "eval_results.json").exists():
            if len({level for level, _, _ in kernels}) > 1:
                yield Skipped(f"{run.name}/eval_results.json", "the folder has several levels, and results name none")
            else:
                results, unusable = _results(run)
                yield from unusable
        for (level, number_, sample), file in sorted(kernels.items()):
            try:
                result = results.pop((number_, sample), None)
                yield self._imported(run, file, problems.get((level, number_)), result)
            except ValueError as error:
                yield Skipped(f"{run.name}/{file.name}", str(error))
        for number_, sample in sorted(results):
            yield Skipped(
                f"{run.name}/eval_results.json problem {number_} sample {sample}", "there is no kernel file for it"
            )

    def _imported(self, run: Path, file: Path, problem_file: Path | None, result: dict[str, Any] | None) -> Imported:
        if problem_file is None:
            raise ValueError("KernelBench's folder has no such problem")
        problem = known_problem(problem_file.stem, read_text(problem_file))
        if isinstance(problem, str):
            raise ValueError(problem)
        source = read_text(file)
        if "class ModelNew" not in source:
            raise ValueError("it defines no ModelNew")
        said = result or {}
        known = said.get("metadata")
        metadata = known if isinstance(known, dict) else {}
        claim = Claim(
            importer="kernelbench",
            origin=f"{run.name}/{file.name}",
            licence=self.licence,
            attribution="; ".join(filter(None, [self.attribution or f"KernelBench run {run.name}", PROBLEMS_BY])),
            correct=_correct(said) if result is not None else None,
            device_name=str(metadata.get("hardware", "")),
            candidate_us=microseconds(said.get("runtime")),
            eager_us=microseconds(said.get("ref_runtime")),
            speedup_eager=_over_reference(said),
            warning=_warning(metadata),
            details=json.dumps(_details(said, metadata), sort_keys=True),
        )
        backend: Backend = "cpu" if metadata.get("device") == "cpu" else "cuda"
        return Imported(stated(problem, ""), Candidate(source, "module", backend), claim)


def _kernels(folder: Path) -> dict[tuple[int, int, int], Path]:
    """Return kernel files of a run by level, problem and sample."""
    found: dict[tuple[int, int, int], Path] = {}
    for file in folder.glob("level_*_kernel.py"):
        if name := _KERNEL.fullmatch(file.name):
            found[int(name[1]), int(name[2]), int(name[3])] = file
    return found


def _around(path: Path) -> Path:
    for folder in [path.absolute(), *path.absolute().parents]:
        if (folder / "KernelBench" / "level1").is_dir():
            return folder / "KernelBench"
    raise ImportRefused(
        "The problems are needed too: name KernelBench's folder with level1/, level2/... by --problems."
    )


def _sources(folder: Path) -> dict[tuple[int, int], Path]:
    """Return problem files by level and number."""
    found: dict[tuple[int, int], Path] = {}
    for file in sorted(folder.glob("level*/*.py")):
        level, head = file.parent.name.removeprefix("level"), file.stem.split("_")[0]
        if level.isdigit() and head.isdigit():
            found[int(level), int(head)] = file
    if not found:
        raise ImportRefused(f"{folder} has no level1/, level2/... with numbered problems: give --problems another one.")
    return found


def _results(run: Path) -> tuple[Results, list[Skipped]]:
    """Return a run's results by problem and sample; older runs have one result instead of a list."""
    where = f"{run.name}/eval_results.json"
    try:
        text = json.loads((run / "eval_results.json").read_text())
    except (OSError, ValueError) as error:
        return {}, [Skipped(where, f"it cannot be read: {error}")]
    found: Results = {}
    unusable: list[Skipped] = []
    for name, listed in text.items() if isinstance(text, dict) else ():
        for result in listed if isinstance(listed, list) else [listed]:
            if name.isdigit() and isinstance(result, dict) and isinstance(result.get("sample_id", 0), int):
                found[int(name), result.get("sample_id", 0)] = result
            else:
                unusable.append(Skipped(f"{where} problem {name}", "it is not a result with a sample_id"))
    return found, unusable


def _correct(result: dict[str, Any]) -> bool:
    for name in ("compiled", "correctness"):
        if not isinstance(result.get(name), bool):
            raise ValueError(f"its result says nothing under {name!r}")
    return bool(result["compiled"] and result["correctness"])


def _over_reference(result: dict[str, Any]) -> float | None:
    """Return the time over the reference's, which newer runs carry as well."""
    mine, theirs = number(result.get("runtime")), number(result.get("ref_runtime"))
    return theirs / mine if mine and theirs and mine > 0 and theirs > 0 else None


def _warning(metadata: dict[str, Any]) -> str:
    return "KernelBench calls its speed-up excessive" if metadata.get("excessive_speedup") else ""


def _details(result: dict[str, Any], metadata: dict[str, Any]) -> dict[str, Any]:
    said = {name: without_paths(str(metadata[name]))[:ERROR_CHARS] for name in KEPT if name in metadata}
    stats = result.get("runtime_stats")
    return {**said, **({"runtime_stats": stats} if stats else {})}
