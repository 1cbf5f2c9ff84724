"""A Definition of FlashInfer-Bench or SOL-ExecBench as a Problem, its Workloads as the problem's.

Comes in: a Definition's JSON file, with workloads in it, beside it, or where a data set keeps them. Goes out: the text
of a problem in KernelBench form: axes are sizes at module level, `reference` is the module. Nothing of it is run.
"""

from __future__ import annotations

import ast
import json
import keyword
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rag_kernels.eval.records import ProblemError

DTYPES = {
    "float32": "float32",
    "float16": "float16",
    "bfloat16": "bfloat16",
    "float64": "float64",
    "float8_e4m3fn": "float8_e4m3fn",
    "float8_e5m2": "float8_e5m2",
    "int64": "int64",
    "int32": "int32",
    "int16": "int16",
    "int8": "int8",
    "uint8": "uint8",
    "bool": "bool",
}
UNSEEN = 128  # of a free axis that no workload gives a value

TEXT = """\
{reference}


import torch  # noqa: E402

# Added by rag-kernels: KernelBench's form of the definition above.
{axes}


class Model(torch.nn.Module):
    def forward(self, {names}):
        return run({names})


def get_inputs():
    return [{drawn}]


def get_init_inputs():
    return []
"""


def source_of_definition(path: Path) -> str:
    """Return a problem's text for a Definition.

    Raises ProblemError for a file of another form, and for inputs that kernels cannot be given.
    """
    try:
        read = json.loads(path.read_text())
        record: Mapping[str, Any] = read.get("definition", read)
        name, reference = str(record["name"]), str(record["reference"])
        axes, inputs = dict(record["axes"]), dict(record["inputs"])
        rows = list(workloads(path, read, name))
        functions = {n.name for n in ast.parse(reference).body if isinstance(n, ast.FunctionDef)}
    except (OSError, ValueError, KeyError, AttributeError, TypeError, SyntaxError) as error:
        raise ProblemError(
            f"{path} is no Definition of FlashInfer-Bench or SOL-ExecBench ({type(error).__name__}: {error})."
        ) from error
    if "run" not in functions:
        raise ProblemError(f"{path}: its reference has no function `run`, which a Definition calls.")
    first: Mapping[str, Any] = rows[0] if rows else {}
    sizes = {a: size_of(a, spec, first.get("axes", {})) for a, spec in axes.items()}
    drawn = [drawn_input(path, n, spec, first.get("inputs", {}).get(n, {})) for n, spec in inputs.items()]
    text = TEXT.format(
        reference=reference.strip(),
        axes="\n".join(f"{a} = {n}" for a, n in sizes.items()),
        names=", ".join(f"{n}_" if keyword.iskeyword(n) else n for n in inputs),
        drawn=", ".join(drawn),
    )
    free = [a for a, spec in axes.items() if spec.get("type") == "var"]
    counted = Counter(tuple((a, size_of(a, axes[a], row.get("axes", {}))) for a in free) for row in rows)
    if not free or not counted:
        return text
    listed = "\n".join(f"        {dict(key) | {'weight': count}!r}," for key, count in counted.items())
    return f"{text}\n\ndef get_workloads():\n    return [\n{listed}\n    ]\n"


def size_of(axis: str, spec: Mapping[str, Any], given: Mapping[str, Any]) -> int:
    """Return an axis's size: its constant, a workload's value, or a size of our own choice."""
    return int(spec["value"] if spec.get("type") == "const" else given.get(axis, UNSEEN))


def drawn_input(path: Path, name: str, spec: Mapping[str, Any], given: Mapping[str, Any]) -> str:
    """Return an expression for one input: drawn, or the number that a workload gives."""
    dtype, shape = str(spec.get("dtype")), spec.get("shape")
    if given.get("type") == "scalar":
        return repr(given["value"])
    if given.get("type") not in (None, "random"):
        raise ProblemError(
            f"{path}: the workload takes {name} from a file or a generator ({given['type']}), and a problem draws its "
            "inputs; write a problem file whose get_inputs() makes it."
        )
    if dtype not in DTYPES:
        raise ProblemError(f"{path}: {name} is of {dtype}, which kernels cannot be given here.")
    if shape is None:
        raise ProblemError(f"{path}: {name} is a number, and no workload says which.")
    dims = f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"
    if dtype == "bool":
        return f"torch.rand({dims}) < 0.5"
    if dtype.startswith(("int", "uint")):
        return f"torch.randint(0, {UNSEEN}, {dims}, dtype=torch.{dtype})"
    return f"torch.randn({dims}).to(torch.{dtype})"


def workloads(path: Path, read: Mapping[str, Any], name: str) -> Iterator[Mapping[str, Any]]:
    """Yield a definition's workloads: those in its file, in NAME.jsonl beside it, or in the data set's folder."""
    for row in read.get("workloads", ()):
        yield row.get("workload", row)
    folders = [path.parent, *(p.parent / "workloads" for p in path.parents if p.name == "definitions")]
    files = {path.parent / "workload.jsonl", *(f for folder in folders for f in folder.rglob(f"{name}.jsonl"))}
    for file in sorted(files):
        for line in file.read_text().splitlines() if file.is_file() else ():
            row = json.loads(line) if line.strip() else None
            if row is not None and row.get("definition", name) == name:
                yield row.get("workload", row)
