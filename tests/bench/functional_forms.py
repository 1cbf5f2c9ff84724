"""Problems of our own from what the offline writer won: functional forms with parameters as plain tensors, our sizes.

    python tests/bench/functional_forms.py KernelBench/level1 KernelBench/level2 --rows rows.jsonl --out build/forms

Takes the problems of the folders that won by --least in the rows of `offline_kernelbench.py`, one for each graph, at
--max-mib of tensors, and writes a file for each: the `module_fn` that `rag-kernels functionalize` shows, called by a
module that holds its parameters. Left out are problems with whole numbers as inputs, whose bounds a functional form
does not know, and those that update buffers. `make starter FORMS=build/forms` grows the starter archive from them too.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

from rag_kernels.eval.problem import find_problems, load_problem, problem_from_source
from rag_kernels.eval.records import FunctionalProblem, ProblemError, TensorArgument
from rag_kernels.ingest.functional.functionalize import functionalize, functionalize_to_fit, open_workers

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--rows", nargs="+", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--max-mib", type=int, default=24)
    parser.add_argument("--least", type=float, default=1.05, help="speed-up over the better baseline")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    won = {
        (row["level"], row["name"])
        for file in asked.rows
        for line in file.read_text().splitlines()
        if (row := json.loads(line)).get("claims") and (row.get("speedup") or 0.0) >= asked.least
    }
    with open_workers() as workers:
        known = {functionalize(p, workers=workers).graph_key for p in map(load_problem, find_problems([EXAMPLES]))}
        for folder in asked.folders:
            for problem in map(load_problem, find_problems([folder])):
                if (folder.name, problem.name) not in won:
                    continue
                try:
                    fp = functionalize_to_fit(problem, workers=workers, max_bytes=asked.max_mib << 20)
                    text = "" if fp.graph_key in known else form(fp)
                    if text:
                        own = functionalize(problem_from_source(name_of(fp), text), workers=workers)
                except ProblemError as error:
                    print(f"{problem.name}: left out. {error}")
                    continue
                if text and own.graph_key == fp.graph_key:
                    known.add(fp.graph_key)
                    path = asked.out / f"{name_of(fp)}.py"
                    number = 2
                    while path.exists():
                        path, number = asked.out / f"{name_of(fp)}_{number}.py", number + 1
                    path.write_text(text)
                    print(f"{path}: {fp.graph_key}")


def name_of(fp: FunctionalProblem) -> str:
    """Its operators in order, each once."""
    names = dict.fromkeys(node.op.split(".")[1].strip("_") for node in fp.nodes if node.op.startswith("aten."))
    return "_".join(names)[:60].rstrip("_")


def form(fp: FunctionalProblem) -> str:
    """The problem's text; empty where inputs cannot be made up."""
    tensors = [a for a in fp.arguments if isinstance(a, TensorArgument)]
    if len(tensors) != len(fp.arguments) or fp.mutated or fp.uses_random:
        return ""
    if any(a.spec.dtype != "float32" for a in tensors):
        return ""
    held = [a for a in tensors if a.role != "input"]
    given = [a for a in tensors if a.role == "input"]
    lines = [fp.source.rstrip(), "", "", "class Model(torch.nn.Module):"]
    if held:
        lines += ["    def __init__(self):", "        super().__init__()"]
        lines += [f"        {_held(a)}" for a in held]
        lines += [""]
    names = [a.name for a in given]
    passed = [a.name if a.role == "input" else f"self.{a.name}" for a in tensors]
    lines += [f"    def forward(self, {', '.join(names)}):", f"        return module_fn({', '.join(passed)})", "", ""]
    lines += ["def get_inputs():", f"    return [{', '.join(f'torch.rand{_shape(a)}' for a in given)}]", "", ""]
    lines += ["def get_init_inputs():", "    return []", ""]
    return "\n".join(lines)


def _held(argument: TensorArgument) -> str:
    shape = argument.spec.shape
    if argument.role != "parameter":  # running statistics, of which a variance is positive
        return f'self.register_buffer("{argument.name}", torch.rand{_shape(argument)} + 0.5)'
    scale = 1.0 / math.sqrt(max(1, math.prod(shape[1:])))
    return f"self.{argument.name} = torch.nn.Parameter(torch.randn{_shape(argument)} * {scale:.3g})"


def _shape(argument: TensorArgument) -> str:
    return f"({', '.join(map(str, argument.spec.shape))})"


if __name__ == "__main__":
    main()
