"""The format `sol-execbench`: a problem's folder for SOL-ExecBench, CUDA alone.

Comes in: an attempt and a folder. Goes out: the folder as its command takes a problem, with the solution beside it.
"""

from __future__ import annotations

from pathlib import Path

from rag_kernels.archive.records import Attempt
from rag_kernels.export.card import Licence
from rag_kernels.export.forms.bench_sets import records, solution_head, write_cards, write_json
from rag_kernels.export.forms.module_file import compiled_of
from rag_kernels.export.package import Folder
from rag_kernels.export.plain.texts import CUDA_FLAGS, binding_text, exported, kernel_text

SOL_SPEC = {
    "languages": ["cuda_cpp"],
    "target_hardware": ["LOCAL"],
    "entry_point": "main.cpp::run",
    "dependencies": [],
    "destination_passing_style": True,
    "binding": "torch",
    "compile_options": {"cflags": ["-O2"], "cuda_cflags": list(CUDA_FLAGS), "ld_flags": []},  # no fast math: as judged
}


def write_sol_execbench(attempt: Attempt, out: Path, licence: Licence | None = None) -> Path:
    """Write the problem's folder, with the solution beside it; raises ProblemError for a kernel that cannot be one."""
    definition, workload, trace = records(attempt, "sol-execbench", licence)
    definition.pop("tags"), definition.pop("constraints")
    solution = {**solution_head(attempt, definition), "spec": SOL_SPEC, "sources": _sol_sources(attempt)}
    write_json(out / "definition.json", definition)
    write_json(out / "workload.jsonl", workload)
    write_json(out / "solution.json", solution)
    write_json(out / "trace.jsonl", trace)
    (out / "reference.py").write_text(definition["reference"])
    write_cards(attempt, "sol-execbench", out, licence)
    return out


def _sol_sources(attempt: Attempt) -> list[dict[str, str]]:
    candidate, made = attempt.candidate, compiled_of(attempt)
    inputs, constants = len(made.served.arguments), list(made.constants.values())
    binding = binding_text(exported(candidate), constants, inputs).replace('{"forward",', '{"run",')
    return [
        {"path": "main.cpp", "content": binding},
        {"path": "kernel.cu", "content": kernel_text(candidate)},
    ]


PACKAGE = Folder(write=write_sol_execbench, loaded_by="SOL-ExecBench's packager and driver", backends=("cuda",))
