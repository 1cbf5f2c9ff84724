"""Networks of blocks that are alike: what is stored is read, what is alike is written once, what is launched can be."""

from __future__ import annotations

import cProfile
import functools
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from emulated_cuda import build_emulated
from support import generated_kernels as numbers
from support.deep_cases import BOTTLENECKS, MANY_SUMS, RESIDUAL
from support.generated_kernels import Case, functional, worst_ratio

from rag_kernels.offline.compose import stopped_at, write
from rag_kernels.offline.cpp.region import CpuParameters
from rag_kernels.offline.cuda.function import CudaParameters
from rag_kernels.offline.cuda.kernel_text import KernelText, Parameter

# A value whose dimensions are several loops each is stored for a product, and read again beside what was made of it.
GROUPED = Case(
    "x = F.layer_norm(self.c(x).flatten(2).transpose(1, 2), (20,)); z = torch.roll(self.l(x), 1, 1); "
    "return x + z, (x * 2 + z).sum(-1) + y",
    "torch.randn(2, 3, 8, 12)",
    "torch.randn(24)",
    init="self.c, self.l = nn.Conv2d(3, 20, 3, stride=2, padding=1), nn.Linear(20, 20)",
)
# A view of a value is stored for the library, and the value is used after that.
BLOCKS = "self.c = nn.ModuleList(nn.Conv2d(6, 6, 3, padding=1) for _ in range(2)); self.b = nn.BatchNorm2d(6)"
VIEWED = {
    "shuffled": Case(
        "a = F.relu(self.b(self.c[0](x))) + x * y; "
        "s = a.view(B, 2, 3, 8, 12).transpose(1, 2).reshape(B, 6, 8, 12); return self.c[1](s) + a",
        "torch.randn(B, 6, 8, 12)",
        "torch.randn(12)",
        init=BLOCKS,
    ),
    "flattened": Case(
        "s = x + y.relu(); return s * self.l(s.view(6 * B, 24)).view(B, 6, 24)",
        "torch.randn(B, 6, 24)",
        "torch.randn(B, 6, 24)",
        init="self.l = nn.Linear(24, 24)",
    ),
    "permuted": Case(
        "s = x.softmax(1) + y; return s + self.c[0](s.permute(2, 0, 1)[None]).amax((0, 1))[:, :, None]",
        "torch.randn(B, 12, 6)",
        "torch.randn(6)",
        init=BLOCKS,
    ),
    "expanded": Case(
        "s = (x * y).sum(1, keepdim=True); return s * self.l(s.expand(-1, 24))",
        "torch.randn(5 * B, 24)",
        "torch.randn(24)",
        init="self.l = nn.Linear(24, 24)",
    ),
}
DENSE = Case(
    "f = [x]; a = self.c[0](F.relu(self.b[0](x))); x = torch.cat([*f, a], 1); "
    "b = self.c[1](F.relu(self.b[1](x))){wrap}; z = torch.cat([*f, a, b], 1); d = self.c[2](F.relu(self.b[2](z))); "
    "return torch.cat([*f, a, b, d], 1) + y, x * 2, z",
    "torch.randn(2, 6, 9, 12)",
    "torch.randn(1)",
    init="self.b = nn.ModuleList(nn.BatchNorm2d(6 + 4 * i) for i in range(3)); "
    "self.c = nn.ModuleList(nn.Conv2d(6 + 4 * i, 4, 3, padding=1) for i in range(3))",
)
HEAD_OF_KERNEL = r"^(?:template <[^>]*> )?__global__ void (__launch_bounds__\([^)]*\) )?(\w+)\((.*)\) \{$"


def kernels(source: str) -> dict[str, tuple[str, str]]:
    """Launch bounds and parameters by name."""
    return {
        name: (bounds or "", arguments)
        for bounds, name, arguments in re.findall(HEAD_OF_KERNEL, source, flags=re.MULTILINE)
    }


@pytest.mark.parametrize("backend", ["cpu", "cuda"])
def test_a_residual_sum_is_read_and_not_computed_again(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fp = functional("residual", RESIDUAL)
    on_gpu = backend == "cuda"
    plan = write(fp, CudaParameters(products=2, sharing=0) if on_gpu else CpuParameters(products=2))
    assert plan is not None and plan.candidate.tier == "kernel"
    if on_gpu:
        monkeypatch.setattr(numbers, "build", build_emulated)
        most = max(
            len(re.findall(r"const float\* __restrict__ (?!b_|y_|c_)", parameters))
            for _, parameters in kernels(plan.candidate.source).values()
        )
        assert most == 2  # the convolution's and the sum before it
    assert worst_ratio(fp, numbers.caller(plan, fp, tmp_path)) < numbers.RATIO


def test_what_is_read_again_has_the_dimensions_of_its_tensor(tmp_path: Path) -> None:
    fp = functional("grouped", GROUPED)
    plan = write(fp, CpuParameters(products=2))
    assert plan is not None
    assert worst_ratio(fp, numbers.caller(plan, fp, tmp_path)) < numbers.RATIO


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("name", VIEWED)
def test_what_was_stored_by_a_view_of_it_is_right(name: str, batch: int, tmp_path: Path) -> None:
    case = VIEWED[name]
    body, x, y = (re.sub(r"\bB\b", str(batch), text) for text in (case.body, case.x, case.y))
    fp = functional(name, replace(case, body=body, x=x, y=y))
    plan = write(fp, CpuParameters(products=0))
    assert plan is not None and plan.candidate.tier == "composed"
    assert worst_ratio(fp, numbers.caller(plan, fp, tmp_path)) < numbers.RATIO
    loops = [note.count(" x ") + 1 for note in re.findall(r"// mul_1: (.*) elements", plan.candidate.source)]
    assert name != "expanded" or loops == [2]  # and not one over what is expanded


def test_a_reduction_of_what_is_read_again_runs_once() -> None:
    body = (
        "s = x + y.relu(); h = self.l(s.view(30, 24)).view(5, 6, 24); u = s * h; m = u.mean(-1, keepdim=True); "
        "k = u.mean((0, 1), keepdim=True); a = (u - m) * k; b = (u + m).exp() / (1 + k * k); "
        "return a, b, torch.linalg.norm(a, dim=0)"
    )
    case = Case(body, "torch.randn(5, 6, 24)", "torch.randn(5, 6, 24)", init="self.l = nn.Linear(24, 24)")
    plan = write(functional("shared", case), CpuParameters(products=0))
    assert plan is not None
    assert len(re.findall(r"// .* rows of n\d$", plan.candidate.source, flags=re.MULTILINE)) == 1


@pytest.mark.parametrize("backend", ["cpu", "cuda"])
@pytest.mark.parametrize("tier", ["kernel", "composed"])
def test_a_concatenation_that_grows_is_one_tensor(
    tier: str, backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrap = "" if tier == "kernel" else ".sin().add(2.0).digamma()"
    fp = functional("dense", replace(DENSE, body=DENSE.body.replace("{wrap}", wrap)))
    on_gpu = backend == "cuda"
    if on_gpu:
        monkeypatch.setattr(numbers, "build", build_emulated)
    plan = write(fp, CudaParameters(products=2, sharing=0) if on_gpu else CpuParameters(products=2))
    assert plan is not None and plan.candidate.tier == tier
    joined = [node.name for node in fp.nodes if node.op == "aten.cat.default"]
    own = rf"\b{joined[0]}(_p|_data)?(\[| =|\))"  # the first one as a buffer or a tensor
    assert len(joined) == 3 and not re.search(own, plan.candidate.source)
    assert worst_ratio(fp, numbers.caller(plan, fp, tmp_path)) < numbers.RATIO


def test_kernels_that_are_alike_are_written_once() -> None:
    plan = write(functional("residual", RESIDUAL), CudaParameters(products=2, sharing=0))
    assert plan is not None
    found = kernels(plan.candidate.source)
    launched = re.findall(r"(\w+)(?:<\d+>)?<<<", plan.candidate.source)
    assert set(launched) == set(found)
    products = [name for name in launched if "wide_out" in found[name][1]]
    assert len(products) == 4 and len(set(products)) == 2  # of the first the bias is added at once


def test_layers_of_a_growing_concatenation_share_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a layer's channels begin, and how many channels are normalised, are arguments."""
    fp = functional("bottlenecks", BOTTLENECKS)
    plan = write(fp, CudaParameters(products=2, sharing=0, tensor=0))
    assert plan is not None and plan.candidate.tier == "kernel"
    found = kernels(plan.candidate.source)
    launched = re.findall(r"(\w+)(?:<\d+>)?<<<", plan.candidate.source)
    slots = [name for name in launched if "_start" in found[name][1]]
    rows = [name for name in launched if re.search(rf" rows of .*\n.* {name}\(", plan.candidate.source)]
    assert (len(slots), len(set(slots))) == (3, 1)
    assert len(rows) == 6 and len(set(rows)) < 6, rows
    monkeypatch.setattr(numbers, "build", build_emulated)
    assert worst_ratio(fp, numbers.caller(plan, fp, tmp_path)) < numbers.RATIO


def test_names_alone_make_no_other_kernel() -> None:
    body = ["const float4 x_v1 = x_p[n7 + n3];", "n_p[0] = x_v1.x;"]
    pointers = Parameter("const float*", "x_p"), Parameter("float*", "n_p")
    one = KernelText(("// a note",), "__global__ void ", "f_1", [*pointers, Parameter("int64_t", "n7")], body, ["n3"])
    renamed = {"x_": "part3_", "n_p": "out_p", "n7": "n12", "n3": "n4"}

    def other(text: str) -> str:
        return functools.reduce(lambda text, names: text.replace(*names), renamed.items(), text)

    given = [replace(p, name=other(p.name)) for p in one.parameters]
    again = KernelText((), one.head, "f_22", given, [*map(other, body)], ["n4"])
    assert again.unnamed() == one.unnamed()
    swapped = replace(again, body=[line.replace("part3_p[n12", "out_p[n12") for line in again.body])
    assert swapped.unnamed() != again.unnamed()
    assert replace(again, parameters=given[::-1]).unnamed() != again.unnamed()


def test_pieces_of_many_loads_are_stored_and_not_all_computed_for_each_element(tmp_path: Path) -> None:
    """Two levels of a wavelet and back: an element would take all that its neighbours take."""
    down = "; ".join(
        f"a, b = x{n}[:, ::2], x{n}[:, 1::2]; x{n + 1}, d{n + 1} = a + b, (a - b).abs() * (a - b).sign()"
        for n in range(3)
    )
    up = "; ".join(
        f"x{n} = torch.stack([x{n} + d{n}, x{n} - d{n}], -1).flatten(1) / 2; x{n - 1} = x{n}" for n in (3, 2, 1)
    )
    fp = functional("wavelet", Case(f"x0 = x; {down}; {up}; return x0 + y", "torch.randn(5, 64)", "torch.randn(64)"))
    plan = write(fp, CpuParameters())
    assert plan is not None and plan.regions == 2 and " in 2 pieces: " in plan.candidate.source
    assert max(len(re.findall(r"x\.data\[", nest)) for nest in plan.candidate.source.split("pragma omp parallel")) <= 24
    assert worst_ratio(fp, numbers.caller(plan, fp, tmp_path)) < numbers.RATIO


def test_a_long_chain_of_steps_is_stored_now_and_then(tmp_path: Path) -> None:
    """A loop that a module unrolls would be one value, deeper than Python's functions may call each other."""
    step = "lambda s, t: (x[:, t] - 0.6 * s[0] + 0.3 * s[1] * y, s[0])"
    body = f"import functools; return functools.reduce({step}, range(130), (y, y))"
    fp = functional("steps", Case(body, "torch.randn(9, 130)", "torch.rand(9)"))
    plan = write(fp, CpuParameters())
    assert plan is not None and plan.candidate.tier == "kernel"
    assert worst_ratio(fp, numbers.caller(plan, fp, tmp_path)) < numbers.RATIO


def test_what_is_costly_and_the_same_for_all_lanes_is_computed_around_them(tmp_path: Path) -> None:
    """g++ leaves functions inside of a vectorised loop: in sums of columns, and in points of an outer product."""
    body = "return (x * y.exp()[:, None] * y.sin()[:, None]).sum(0), y.tanh()[:, None] * y.sigmoid()"
    fp = functional("lanes", Case(body, "torch.randn(40, 50)", "torch.randn(40)"))
    plan = write(fp, CpuParameters())
    assert plan is not None and {"column", "point"} <= {*plan.schedules}
    loops = re.findall(r"for \(int64_t l = lo; l < hi; \+\+l\) \{\n(.*?)\n +\}", plan.candidate.source, flags=re.DOTALL)
    assert [name for body in loops for name in re.findall(r"rk_(?:exp|sin|tanh)(?=\()", body)] == [
        "rk_exp"
    ]  # of x alone
    assert worst_ratio(fp, numbers.caller(plan, fp, tmp_path)) < numbers.RATIO


def test_an_argument_that_a_rule_does_not_know_leaves_the_operator_to_the_library() -> None:
    """Numbers were rounded to whole ones, whatever the decimals."""
    case = Case("return torch.round(x, decimals=2) + y", "torch.randn(4, 5)", "torch.randn(5)")
    assert stopped_at(functional("decimals", case), CpuParameters()) == ("round (another form)",)


def test_columns_of_many_tensors_leave_registers_for_their_block() -> None:
    init = "self.b = nn.ParameterList(nn.Parameter(torch.rand(64, 80)) for _ in range(14))"
    body = "import math; t = math.prod([*self.b], start=x); return t.sum(0) + y"
    case = Case(body, "torch.randn(64, 80)", "torch.randn(80)", init=init)
    plan = write(functional("columns", case), CudaParameters(team=16))
    assert plan is not None and "column" in plan.schedules
    source = plan.candidate.source
    (launched,) = re.findall(r"(\w+)<<<[^;]*, dim3\(32, TEAM\), ", source)
    assert " TEAM = 16, " in source and kernels(source)[launched][0] == "__launch_bounds__(512, 1) "


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
def test_a_row_of_many_sums_leaves_registers_for_its_block(tmp_path: Path) -> None:
    """A kernel of 1024 threads with more than 64 registers each cannot be launched."""
    plan = write(functional("sums", MANY_SUMS), CudaParameters())
    assert plan is not None
    found = kernels(plan.candidate.source)
    rows = re.findall(r"(\w+)(?:<\d+>)?<<<[^;]*, block, ", plan.candidate.source)
    assert rows and all(found[name][0] for name in rows)
    (tmp_path / "k.cu").write_text(plan.candidate.source)
    flags = f"-std=c++20 -arch=sm_90a -cubin -I{numbers.ROOT}/eval/include -I{numbers.FFI}/include"
    command = ["nvcc", "-Xptxas", "-v", *flags.split(), "-o", tmp_path / "k.o", tmp_path / "k.cu"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    registers = re.findall(r"Compiling entry function '(\w+)'.*?Used (\d+) registers", said, flags=re.DOTALL)
    assert registers and all(int(n) <= 64 for name, n in registers if any(row in name for row in rows))


def test_a_chain_of_which_every_step_is_stored_is_not_visited_from_its_beginning_for_each() -> None:
    length = 120
    steps = "".join(f"h = torch.tanh(h * y + x[:, {t}]); s.append(h); " for t in range(length))
    body = f"h, s = y * 0, []; {steps}return self.l(torch.stack(s, 1))"
    sizes = f"torch.randn(4, {length}, 16)", "torch.randn(16)"
    fp = functional("chain", Case(body, *sizes, init="self.l = nn.Linear(16, 16)"))
    counted = cProfile.Profile()
    plan = counted.runcall(write, fp, CpuParameters(products=0))
    assert plan is not None and plan.library == ("linear",)
    calls = sum(entry.callcount for entry in counted.getstats())
    assert calls < 25_000 * length  # 13,000 for each step; 48,000 when each was visited from the first on
