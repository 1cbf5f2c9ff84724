"""Problems from where users have them: a running program, a module in a file, a benchmark's Definition."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from rag_kernels.eval.problem import load_module, load_problem
from rag_kernels.eval.records import FunctionalProblem, ProblemError
from rag_kernels.eval.sizes.workloads import Workload, problem_at, workloads_of
from rag_kernels.ingest.functional.functionalize_child import functionalize_here
from rag_kernels.ingest.live import capture_run
from rag_kernels.ingest.live.called_module import Call, problem_of_calls
from rag_kernels.ingest.live.named_module import named_module, problem_of_named
from rag_kernels.ingest.live.named_module_child import problem_here

PARTS = """import torch


def gate(a, b):
    return torch.nn.functional.silu(a) * b
"""
MODEL = """import torch
from parts import gate


class Block(torch.nn.Module):
    def __init__(self, width, heads=4):
        super().__init__()
        self.heads = heads
        self.up = torch.nn.Linear(width, 2 * width)

    def forward(self, x, *, mask=None, options=None, how="sum"):
        out = gate(*self.up(x).chunk(2, -1))
        if mask is not None:
            out = out.masked_fill(mask[..., None], 0.0)
        out = out + options["bias"] if options else out
        return {"out": out.sum(1) if how == "sum" else out.amax(1), "none": None}


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(Block(8) for _ in range(2))

    def forward(self, x):
        return sum(layer(x, mask=x[..., 0] > 1, options={"bias": x[0, 0]})["out"] for layer in self.layers)
"""
PROGRAM = """import sys
import torch
from mymodel import Net

net = Net().eval()
for batch, length in [(3, 6)] * 4 + [(5, 2), (1, 7), (1, 7)]:
    net(torch.randn(batch, length, 8))
net.layers[0](torch.randn(2, 3, 8))
assert sys.argv[1:] == ["--requests", "3"]
raise SystemExit(3)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in {"parts.py": PARTS, "mymodel.py": MODEL, "serve.py": PROGRAM}.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def captured(folder: Path, module: str) -> subprocess.CompletedProcess[str]:
    """Run `rag-kernels capture` in a folder."""
    main = "import sys; from rag_kernels.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", main, "capture", "serve.py", "--module", module, "--out", "block.py"]
    return subprocess.run([*command, "--", "--requests", "3"], cwd=folder, capture_output=True, text=True, check=False)


def test_a_program_is_recorded_as_a_problem_with_its_workloads(folder: Path) -> None:
    done = captured(folder, "layers.*")
    assert done.returncode == 1  # the program's own exit code was not 0
    assert "Block (layers.0, layers.1): 14 calls, 3 kinds" in done.stdout
    problem = load_problem(folder / "block.py")
    assert workloads_of(problem) == (
        Workload((("X_0", 3), ("X_1", 6)), 8.0),
        Workload((("X_0", 1), ("X_1", 7)), 4.0),
        Workload((("X_0", 5), ("X_1", 2)), 2.0),
    )
    for workload in workloads_of(problem):
        sized = problem_at(problem, workload)
        text = load_module("captured", sized.source)
        x, mask, bias = text.get_inputs()
        assert (x.shape, mask.shape) == ((*dict(workload.sizes).values(), 8), x.shape[:2])
        model = text.Model()
        a, b = torch.nn.functional.linear(x, model.up.weight, model.up.bias).chunk(2, -1)
        right = (torch.nn.functional.silu(a) * b).masked_fill(mask[..., None], 0.0) + bias
        torch.testing.assert_close(model(x, mask, bias), right.sum(1))


TRAINS = """import torch

norm = torch.nn.LayerNorm(8)
norm.register_buffer("scale", torch.ones(8), persistent=False)
for batch in (4, 2, 4):
    with torch.autocast("cpu", torch.bfloat16):
        norm(torch.randn(batch, 8)).sum().backward()
raise ENDED
"""


@pytest.mark.parametrize(("ended", "code"), [("KeyboardInterrupt", 0), ("RuntimeError('no memory')", 1)])
def test_a_program_that_trains_and_is_ended_is_recorded_until_then(
    ended: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, out = tmp_path / "train.py", tmp_path / "told.json"
    script.write_text(TRAINS.replace("ENDED", ended))
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert capture_run.main(str(out), "LayerNorm", str(script)) == code
    told = json.loads(out.read_text())
    assert told["trained"] and "autocast (bfloat16) was on" in told["notes"][0]
    assert load_module("trains", told["source"]).get_workloads()[0] == {"INPUT_0": 4, "weight": 2}


def test_a_program_without_that_module_names_those_it_has(folder: Path) -> None:
    done = captured(folder, "Blocks")
    assert done.returncode == 2
    assert "nothing that is named 'Blocks'; it called Block, Linear, Net" in done.stderr


def test_a_module_of_a_file_is_a_problem(folder: Path) -> None:
    inputs = 'torch.randn(3, 6, 8), mask=torch.rand(3, 6) < 0.5, options={"bias": torch.ones(8)}, how="max"'
    problem = problem_of_named(folder / "mymodel.py", "Block", inputs=inputs, init="8, heads=2").problem
    form = functionalize_here({"problem": problem, "threads": 1})
    assert isinstance(form, FunctionalProblem) and form.verified
    assert [a.name for a in form.arguments] == ["x", "mask", "options", "up_weight", "up_bias"]
    with pytest.raises(ProblemError, match="Say what Block is called with"):
        problem_of_named(folder / "mymodel.py", "Block", inputs="")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"name": "Blok"}, "has no 'Blok'; its modules are Block, Net"),
        ({"init": ""}, '--init "512, heads=8" has its arguments'),
        ({"inputs": "torch.rand(3"}, "--inputs 'torch.rand[(]3' cannot be read"),
        ({"inputs": "3"}, "is called without a tensor"),
        ({"name": "gate"}, "--init|no torch.nn.Module"),
    ],
)
def test_a_module_of_a_file_that_cannot_be_used_says_why(
    change: dict[str, str], said: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    payload = {"file": str(folder / "mymodel.py"), "name": "Block", "init": "8", "inputs": "torch.rand(3, 6, 8)"}
    assert re.search(said, problem_here({**payload, **change})["reason"])


def test_a_file_and_a_name_in_it() -> None:
    assert named_module("a/mymodel.py:Block") == (Path("a/mymodel.py"), "Block")
    assert named_module("a/mymodel.py") is None and named_module("problem.py:") is None


def test_inputs_lie_in_memory_as_in_the_call() -> None:
    x = torch.randn(2, 3, 5, 4).to(memory_format=torch.channels_last)
    made = problem_of_calls(torch.nn.Conv2d(3, 4, 3).eval(), [Call((x,), {})], "conv")
    [drawn] = load_module("conv", made.source).get_inputs()
    assert drawn.shape == x.shape and drawn.stride() == x.stride()


def test_calls_of_another_kind_are_left_out_and_told() -> None:
    calls = [Call((torch.randn(2, 4),), {}, 5), Call((torch.randn(2, 3, 4),), {}, 2)]
    made = problem_of_calls(torch.nn.Linear(4, 3), calls, "linear")
    assert made.notes == ("2 calls with other constants, dtypes, ranks or layouts are left out",)
    assert "get_workloads" not in made.source


@pytest.mark.parametrize(
    ("forward", "sizes"),
    [
        (lambda x, y: x.topk(12).values.sum() + y.sum(), "12 or more"),
        (lambda x, y: x.reshape(4, 300) + y, "300"),
        (lambda x, y: x.sum(1) + (y if x.size(1) < 700 else -y).sum(), "699 or less"),
    ],
)
def test_a_size_that_cannot_be_free_is_named_with_what_to_do(forward: Any, sizes: str) -> None:
    class Made(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            made: torch.Tensor = forward(x, y)
            return made

    calls = [Call((torch.randn(4, n), torch.randn(3, 1, 1)), {}) for n in (300, 128)]
    [note] = problem_of_calls(Made(), calls, "made").notes
    told = f"size 1 of x cannot be free (the forward was traced for {sizes} alone): give calls that agree there"
    assert note == f"only the most frequent call is kept, since {told}"


REFERENCE = (
    "import torch\n\ndef run(x, weight, eps):\n    return x * torch.rsqrt(x.pow(2).mean(-1, True) + eps) * weight\n"
)
DEFINITION = {
    "name": "rmsnorm_h64",
    "op_type": "rmsnorm",
    "axes": {"batch": {"type": "var"}, "hidden": {"type": "const", "value": 64}},
    "inputs": {
        "x": {"shape": ["batch", "hidden"], "dtype": "float32"},
        "weight": {"shape": ["hidden"], "dtype": "float32"},
        "eps": {"shape": None, "dtype": "float32"},
    },
    "outputs": {"y": {"shape": ["batch", "hidden"], "dtype": "float32"}},
    "reference": REFERENCE,
}


def rows() -> list[dict]:
    given = {"x": {"type": "random"}, "weight": {"type": "random"}, "eps": {"type": "scalar", "value": 1e-6}}
    return [{"uuid": str(n), "axes": {"batch": n}, "inputs": given} for n in (7, 7, 96)]


@pytest.mark.parametrize("kept", ["in the file", "beside it", "in a data set"])
def test_a_definition_is_a_problem_with_its_workloads(kept: str, tmp_path: Path) -> None:
    file = tmp_path / "rmsnorm.json"
    lines = "\n".join(json.dumps({"definition": "rmsnorm_h64", "workload": row}) for row in rows())
    if kept == "in the file":
        file.write_text(json.dumps({"definition": DEFINITION, "workloads": rows()}))
    elif kept == "beside it":
        file.write_text(json.dumps(DEFINITION))
        (tmp_path / "workload.jsonl").write_text("\n".join(map(json.dumps, rows())))
    else:
        file = tmp_path / "definitions" / "norms" / "rmsnorm_h64.json"
        (tmp_path / "workloads" / "norms").mkdir(parents=True)
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps(DEFINITION))
        (tmp_path / "workloads" / "norms" / "rmsnorm_h64.jsonl").write_text(lines)
    problem = load_problem(file)
    assert workloads_of(problem) == (Workload((("batch", 7),), 2.0), Workload((("batch", 96),)))
    form = functionalize_here({"problem": problem, "threads": 1})
    assert isinstance(form, FunctionalProblem) and form.verified
    assert form.outputs[0].shape == (7, 64)


def test_a_definition_may_have_floats_of_eight_bits(tmp_path: Path) -> None:
    inputs = {"x": {"shape": ["batch"], "dtype": "float8_e5m2"}}
    (tmp_path / "d.json").write_text(json.dumps({**DEFINITION, "inputs": inputs}))
    assert ".to(torch.float8_e5m2)" in load_problem(tmp_path / "d.json").source


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"reference": "def other(x):\n    return x\n"}, "no function `run`"),
        ({"inputs": {"x": {"shape": ["batch"], "dtype": "float4_e2m1"}}}, "is of float4_e2m1"),
        ({"inputs": {"x": {"shape": None, "dtype": "int32"}}}, "no workload says which"),
        ({"axes": None}, "is no Definition"),
    ],
)
def test_a_definition_that_cannot_be_used_says_why(change: dict, said: str, tmp_path: Path) -> None:
    (tmp_path / "d.json").write_text(json.dumps({**DEFINITION, **change}))
    with pytest.raises(ProblemError, match=said):
        load_problem(tmp_path / "d.json")
