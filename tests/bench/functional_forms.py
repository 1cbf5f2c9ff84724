"""Problems of our own from those of a benchmark: functional forms with parameters as plain tensors, our sizes.

    python tests/bench/functional_forms.py KernelBench/level1 KernelBench/level2 --rows rows.jsonl --out build/forms
    python tests/bench/functional_forms.py KernelBench/level1 --max-mib 256 --dtypes float32 bfloat16 --out build/forms

Takes the problems of the folders, of rows of `offline_kernelbench.py` those that won by --least, one for each graph, at
--max-mib of tensors, and writes a file for each and for each of --dtypes: the `module_fn` that `rag-kernels
functionalize` shows, called by a module that holds its parameters. Left out are problems with whole numbers as inputs,
whose bounds a functional form does not know, and those that update buffers. `make starter FORMS=build/forms` grows the
starter archive from them too.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import re
from collections.abc import Sequence
from pathlib import Path

from rag_kernels.eval.problem import find_problems, load_problem, problem_from_source
from rag_kernels.eval.records import FunctionalProblem, ProblemError, TensorArgument
from rag_kernels.ingest.functional.functionalize import functionalize, functionalize_to_fit, open_workers

SHORT = {"float32": "", "bfloat16": "_bf16", "float16": "_fp16"}
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--rows", nargs="+", type=Path, default=[])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--max-mib", type=int, default=24)
    parser.add_argument("--least", type=float, default=1.05, help="speed-up over the better baseline")
    parser.add_argument("--examples-too", action="store_true", help="also what has the graph of an example")
    parser.add_argument("--dtypes", nargs="+", default=["float32"], choices=SHORT)
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    won = {
        (row["level"], row["name"])
        for file in asked.rows
        for line in file.read_text().splitlines()
        if (row := json.loads(line)).get("claims") and (row.get("speedup") or 0.0) >= asked.least
    }
    with open_workers() as workers:
        own = [] if asked.examples_too else find_problems([EXAMPLES])
        known = {functionalize(p, workers=workers).graph_key for p in map(load_problem, own)}
        for folder in asked.folders:
            for problem in map(load_problem, find_problems([folder])):
                if asked.rows and (folder.name, problem.name) not in won:
                    continue
                try:
                    fp = functionalize_to_fit(problem, workers=workers, max_bytes=asked.max_mib << 20)
                    text = "" if fp.graph_key in known else form(fp)
                    if text:
                        again = functionalize(problem_from_source(name_of(fp), text), workers=workers)
                except ProblemError as error:
                    print(f"{problem.name}: left out. {error}")
                    continue
                if text and again.graph_key == fp.graph_key:
                    known.add(fp.graph_key)
                    name = free_name(name_of(fp), asked.out, asked.dtypes)
                    for dtype in asked.dtypes:
                        (asked.out / f"{name}{SHORT[dtype]}.py").write_text(in_dtype(text, dtype))
                    print(f"{name}: {fp.graph_key}", flush=True)


def name_of(fp: FunctionalProblem) -> str:
    """Its operators in order, each once."""
    names = dict.fromkeys(node.op.split(".")[1].strip("_") for node in fp.nodes if node.op.startswith("aten."))
    return "_".join(names)[:60].rstrip("_")


def free_name(name: str, folder: Path, dtypes: Sequence[str]) -> str:
    """The name, or with a number the first that no problem in the folder has in any of the dtypes."""
    names = (name if number == 1 else f"{name}_{number}" for number in itertools.count(1))
    return next(n for n in names if not any((folder / f"{n}{SHORT[d]}.py").exists() for d in dtypes))


def in_dtype(text: str, dtype: str) -> str:
    """A form, all of whose tensors are float32, in another dtype."""
    if dtype == "float32":
        return text
    made = re.sub(r"(torch\.randn?)\((\([^)]*\))\)", rf"\1(\2, dtype=torch.{dtype})", text)
    return made.replace("float32", dtype)


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
    lines += ["def get_inputs():", f"    return [{', '.join(f'torch.rand({_shape(a)})' for a in given)}]", "", ""]
    lines += ["def get_init_inputs():", "    return []", ""]
    return "\n".join(lines)


def _held(argument: TensorArgument) -> str:
    shape = argument.spec.shape
    if argument.role != "parameter":  # running statistics, of which a variance is positive
        return f'self.register_buffer("{argument.name}", torch.rand({_shape(argument)}) + 0.5)'
    scale = 1.0 / math.sqrt(max(1, math.prod(shape[1:])))
    return f"self.{argument.name} = torch.nn.Parameter(torch.randn({_shape(argument)}) * {scale:.3g})"


def _shape(argument: TensorArgument) -> str:
    sizes = ", ".join(map(str, argument.spec.shape))
    return f"({sizes},)" if len(argument.spec.shape) == 1 else f"({sizes})"


if __name__ == "__main__":
    main()
