"""A kernel as a torch operator: torch's own tests, gradients, compilers of graphs, copies and threads."""

from __future__ import annotations

import copy
import gc
import io
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from support.scaled_pair import drawn, expected, scaled_pair
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from rag_kernels.archive.records import Attempt
from rag_kernels.eval.problem import load_module
from rag_kernels.export.forms.module_file import module_text
from rag_kernels.export.plain.carried import Call, NotVerified
from rag_kernels.export.runtime import CompiledForward
from rag_kernels.export.serving import torch_operator
from rag_kernels.export.serving.launch import KernelRefused


@pytest.fixture(scope="module")
def forward_and_backward() -> tuple[Attempt, Attempt]:
    return scaled_pair()


@pytest.fixture(scope="module")
def best(forward_and_backward: tuple[Attempt, Attempt]) -> ModuleType:
    return load_module("scaled", module_text(forward_and_backward[0]))


@pytest.fixture(autouse=True)
def forgotten() -> None:
    """What torch.compile learnt of sizes in other tests decides when it makes one free."""
    torch._dynamo.reset()


@pytest.mark.parametrize("graded", [False, True])
def test_torchs_own_tests_of_operators_and_of_gradients(best: ModuleType, graded: bool) -> None:
    op = best.COMPILED.op
    torch.testing.assert_close(op(*drawn(graded=graded)), op(*drawn(graded=graded)), rtol=9, atol=9)
    assert torch.library.opcheck(op, drawn(graded=graded)).keys() == {
        "test_schema",
        "test_autograd_registration",
        "test_faketensor",
        "test_aot_dispatch_dynamic",
    }
    if graded:
        assert torch.autograd.gradcheck(op, drawn(graded=True))
        x, weight = drawn(graded=True)
        assert torch.autograd.gradcheck(lambda weight: op(x.detach(), weight), (weight,)), "of one argument alone"


def test_it_has_a_typed_schema_and_refuses_what_was_not_verified(best: ModuleType) -> None:
    op = best.COMPILED.op
    assert str(op._opoverload._schema).endswith("(Tensor a0, Tensor a1) -> (Tensor, Tensor)")
    x, weight = drawn()
    assert getattr(torch.ops.rag_kernels, best.COMPILED.name)(x, weight)[0].shape == (8, 6)
    for wrong in [x.float(), x[0], torch.empty(0, 6, dtype=torch.float64)]:
        with pytest.raises(ValueError, match="input 0 is float"):
            op(wrong, weight)
    with pytest.raises(NotImplementedError, match="SparseCPU"):
        op(x.to_sparse(), weight)


class Seen(TorchDispatchMode):
    """Notes the operators that are called below autograd."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.name())
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("direct", [True, False])
def test_modes_of_torch_see_it_whichever_way_it_was_registered(
    best: ModuleType, direct: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a torch keeps the parts elsewhere, by which it is registered without `custom_op`'s wrappers."""
    if not direct:
        monkeypatch.delattr(torch._C, "_after_autograd_keyset")
    kernel = replace(best.COMPILED, name=f"scaled_{'directly' if direct else 'by_torch'}")
    op, (x, weight) = kernel.op, drawn()
    monkeypatch.undo()
    for context in (torch.no_grad(), torch.inference_mode(), torch.enable_grad()):
        with context, Seen() as seen:
            torch.testing.assert_close(op(x, weight), expected(x, weight))
        assert f"rag_kernels::{kernel.name}" in seen.names
    imaginary = torch.complex(x, x).conj().imag
    assert imaginary.is_neg()
    torch.testing.assert_close(op(imaginary, weight), expected(-x, weight))
    with FakeTensorMode() as mode:
        assert op(mode.from_tensor(x), mode.from_tensor(weight))[0].shape == x.shape
    assert torch.library.opcheck(op, drawn(graded=True)) and torch.autograd.gradcheck(op, drawn(graded=True))


def test_an_operator_is_registered_once_and_the_last_kernel_of_its_name_answers(best: ModuleType) -> None:
    """Also in graphs that were recorded before; torch would free an operator of which another has the name."""
    kernel = replace(best.COMPILED, name="scaled_twice")
    op, (x, weight) = kernel.op, drawn()
    whole = torch.compile(lambda x, weight: op(x, weight), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close((op(x, weight), whole(x, weight)), (expected(x, weight), expected(x, weight)))
    again = replace(best.COMPILED, name="scaled_twice", constants={"rate": 3.0})
    wanted = expected(x, weight, 3.0)
    assert again.op is op and torch.ops.rag_kernels.scaled_twice.default is not None
    gc.collect()
    for call in (op, whole, torch.ops.rag_kernels.scaled_twice, kernel.op):
        torch.testing.assert_close(call(x, weight), wanted)
    assert torch.library.opcheck(op, drawn(graded=True))
    other = replace(kernel, arguments=kernel.arguments[:1], outputs=kernel.outputs[:1]).op
    assert other is not op and torch.ops.rag_kernels.scaled_twice_.default is not None, "another schema, another name"
    torch.testing.assert_close(op(x, weight), wanted)


def test_copies_of_the_file_share_what_is_registered(best: ModuleType) -> None:
    """As exported packages have it, also where one is imported twice."""
    copied = ModuleType("copied_operator")
    sys.modules["copied_operator"] = copied  # as dataclasses ask
    exec(compile(Path(str(torch_operator.__file__)).read_text(), "<copied>", "exec"), vars(copied))
    kernel = replace(best.COMPILED, name="scaled_copied")
    x, weight = drawn()
    first, second = kernel.op, copied.operator_of(kernel)
    del sys.modules["copied_operator"]
    assert first is second
    torch.testing.assert_close(first(x, weight), expected(x, weight))


class Counted:
    """A backend for torch.compile that keeps the graphs."""

    def __init__(self) -> None:
        self.graphs: list[str] = []

    def __call__(self, module: torch.fx.GraphModule, inputs: Any) -> Any:
        self.graphs.append(str(module.graph))
        return module.forward


def test_fullgraph_compile_records_it_at_several_sizes(best: ModuleType) -> None:
    module, seen = best.ModelNew(6), Counted()
    whole = torch.compile(module, fullgraph=True, backend=seen)
    with torch.no_grad():
        for rows in (8, 3, 5):
            x, _ = drawn(rows)
            torch.testing.assert_close(whole(x), expected(x, module.weight))
        assert len(seen.graphs) == 2 and all(best.COMPILED.name in graph for graph in seen.graphs), "fixed, then free"
        module.rate = 3.0
        torch.testing.assert_close(whole(x), expected(x, module.weight, 3.0))
        assert best.COMPILED.name not in seen.graphs[-1]


def test_compiled_gradients_are_the_modules(best: ModuleType) -> None:
    module = best.ModelNew(6)
    whole = torch.compile(module, fullgraph=True, backend="aot_eager")
    for rows in (8, 3):  # at other sizes than the verified ones the module itself is compiled
        x, _ = drawn(rows, graded=True)
        module.weight.grad = None
        sum(map(torch.sum, whole(x))).backward()  # type: ignore[arg-type, union-attr, no-untyped-call]
        twin, weight = x.detach().clone().requires_grad_(), module.weight.detach().clone().requires_grad_()
        sum(map(torch.sum, expected(twin, weight))).backward()  # type: ignore[arg-type, union-attr, no-untyped-call]
        torch.testing.assert_close((x.grad, module.weight.grad), (twin.grad, weight.grad))


def test_inductor_runs_it(best: ModuleType) -> None:
    module = best.ModelNew(6).requires_grad_(False)
    whole = torch.compile(torch.nn.Sequential(module), fullgraph=True, dynamic=True)
    for rows in (8, 3):
        x, _ = drawn(rows)
        torch.testing.assert_close(whole(x), expected(x, module.weight))


def test_export_of_fixed_and_free_sizes_saved_and_loaded(best: ModuleType) -> None:
    module = best.ModelNew(6)
    for dynamic in (None, {"x": {0: torch.export.Dim("rows", min=2, max=1000)}}):
        with torch.no_grad():
            program = torch.export.export(module, drawn()[:1], dynamic_shapes=dynamic)
        assert best.COMPILED.name in str(program.graph)
        file = io.BytesIO()
        torch.export.save(program, file)
        file.seek(0)
        loaded = torch.export.load(file).module()
        x, _ = drawn(8 if dynamic is None else 13)
        torch.testing.assert_close(tuple(loaded(x)), expected(x, module.weight))


def test_copies_and_threads(best: ModuleType) -> None:
    op, calls = best.COMPILED.op, [drawn(rows) for rows in range(1, 33)]
    twin = copy.deepcopy(best.COMPILED)
    assert "served" not in vars(twin) and twin == best.COMPILED
    with ThreadPoolExecutor(4) as pool:
        for given, made in zip(calls, pool.map(lambda given: op(*given), calls), strict=True):
            torch.testing.assert_close(made, expected(*given))


def test_sizes_that_hang_together_are_served_as_verified_alone() -> None:
    """`y` must be two shorter than `x`, which free sizes do not say: another pair would be read out of bounds."""
    kernel = CompiledForward(
        "", "kernel", "cpu", [("input", "0", (8,), "float32", ("N",)), ("input", "1", (6,), "float32", ("M",))],
        {}, [((6,), "float32", ("M",))], name="trimmed", functional="def module_fn(x, y):\n    return x[1:-1] + y\n",
    )  # fmt: skip
    with pytest.raises(ValueError, match="hang together"):
        kernel.op(torch.ones(9), torch.ones(4))
    assert kernel.served.related


def test_what_is_empty_is_not_served_nor_what_makes_something_empty() -> None:
    """Sizes of a contract begin at one; one element of `x` makes an output of none."""
    kernel = CompiledForward(
        "", "kernel", "cpu", [("input", "0", (8,), "float32", ("N",))], {}, [((7,), "float32", ("N-1",))],
        name="apart", functional="def module_fn(x):\n    return x[1:] - x[:-1]\n",
    )  # fmt: skip
    for size in (0, 1):
        with pytest.raises(ValueError, match="of no"):
            kernel.op(torch.ones(size))
        assert kernel.served.other_traced([torch.ones(size)])
    assert not kernel.served.other_traced([torch.ones(2)])
    plain = Call(lambda *given: None, [("x", torch.float32, ("N",))], [(torch.float32, ("N-1",))], (), "cpu", True)
    for size in (0, 1):
        with pytest.raises(NotVerified, match="elements"):
            plain([torch.ones(size)])
    assert plain([torch.ones(2)]).shape == (1,)


def test_parts_of_sizes_are_rounded_down_and_never_empty() -> None:
    kernel = CompiledForward(
        "", "kernel", "cpu", [("input", "0", (8,), "float32", ("N",))], {}, [((3,), "float32", ("(N-1)//2",))],
        name="strided", functional="def module_fn(x):\n    return x[2::2]\n",
    )  # fmt: skip
    plain = Call(lambda *given: None, [("x", torch.float32, ("N",))], [(torch.float32, ("(N-1)//2",))], (), "cpu", True)
    for size, made in ((8, 3), (9, 4), (3, 1)):
        assert kernel.served.sizes_made([torch.ones(size)]) == ((made,),)
        assert plain([torch.ones(size)]).shape == (made,)
    with pytest.raises(ValueError, match="of no"):
        kernel.op(torch.ones(2))
    with pytest.raises(NotVerified, match="elements"):
        plain([torch.ones(2)])


@pytest.mark.parametrize("tier", ["kernel", "composed"])
@pytest.mark.parametrize(
    ("backend", "raised", "falls_back"),
    [
        ("cuda", ValueError("too odd"), True),
        ("cuda", TypeError("a number was expected here"), True),
        ("cuda", RuntimeError("shape '[2, 3]' is invalid for input of size 7"), True),
        ("cuda", RuntimeError("CUDA error: an illegal memory access was encountered"), False),
        ("cuda", torch.OutOfMemoryError("CUDA out of memory"), False),
        ("cpu", RuntimeError("the kernel threw an exception of its own"), True),
        ("cpu", MemoryError(), False),
    ],
)
def test_only_a_kernels_own_checks_are_refusals(
    tier: Any, backend: Any, raised: Exception, falls_back: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault of the GPU is told, and nothing runs after it."""

    def forward(*given: Any) -> None:
        raise raised

    kernel = CompiledForward("", tier, backend, [("input", "0", (8,), "float32")], {}, [((8,), "float32")])
    monkeypatch.setattr(CompiledForward, "_arch", lambda self: "sm_90")
    monkeypatch.setitem(kernel._forwards, "sm_90", forward)
    with pytest.raises(KernelRefused if falls_back else type(raised)) as seen:
        kernel.run([torch.ones(8)], [(8,)])
    assert falls_back == isinstance(seen.value, KernelRefused) and str(raised) in str(seen.value)


def test_a_composed_kernel_that_makes_other_sizes_than_the_module_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = CompiledForward(
        "", "composed", "cpu", [("input", "0", (8, 4), "float32", ("N", 4))], {}, [((15, 4), "float32", ("2*N-1", 4))]
    )  # fmt: skip
    monkeypatch.setitem(kernel._forwards, kernel._arch(), lambda x: x.new_ones(15, 4))
    for rows, refused in ((8, False), (9, True)):
        x = torch.ones(rows, 4)
        sizes = kernel.served.sizes_made([x])
        assert sizes == ((2 * rows - 1, 4),)
        with pytest.raises(KernelRefused, match="makes outputs of") if refused else nullcontext():
            assert kernel.run([x], sizes).shape == sizes[0]
