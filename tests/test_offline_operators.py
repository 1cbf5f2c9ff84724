"""The enum of operators: each has traits and a text, types go together as told, and texts nest as C reads them."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path

import pytest
import torch
from emulated_cuda import build_emulated
from support import generated_kernels as numbers
from support.generated_kernels import SMALL, Case, functional, worst_ratio

from rag_kernels.eval.records import TensorSpec
from rag_kernels.offline.codegen.operator_texts import C_OF_INTEGERS, CUDA_NEAR, C
from rag_kernels.offline.compose import write
from rag_kernels.offline.cpp.region import CpuParameters
from rag_kernels.offline.cuda.texts.linker import PIECES, linked
from rag_kernels.offline.fusion.regions import Region
from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.ir.dtypes import ITEMSIZE, promoted
from rag_kernels.offline.ir.expressions import Expr, apply, where
from rag_kernels.offline.ir.operators import Operator, Types, type_fault
from rag_kernels.offline.ir.reductions import Kind
from rag_kernels.offline.ir.wellformed import Checker, IllFormed


def test_every_operator_has_traits_and_a_text_with_its_operands() -> None:
    for operator in Operator:
        arity = operator.traits.arity
        if operator not in {Operator.SAME, Operator.ATTENTION, Operator.READ}:
            assert C[operator].form.format(*"abc"[:arity], T="t") != C[operator].form
    for texts in (C, C_OF_INTEGERS, CUDA_NEAR):
        for operator, text in texts.items():
            places = [f"{{{place}}}" in text.form for place in range(4)]
            assert places == [place < operator.traits.arity for place in range(4)], operator


def test_expressions_have_the_types_that_their_operators_want() -> None:
    others = (Types.OF_PAIR, Types.CAST, Types.ANY, Types.INTEGRAL)
    dtypes = [dtype for dtype in ITEMSIZE if dtype not in {"bfloat16", "float16"}]
    for operator in Operator:
        if operator.traits.types in others:
            continue
        for chosen in itertools.product(dtypes, repeat=operator.traits.arity):
            value = apply(operator, *(Expr(ir.Const((), dtype, 1)) for dtype in chosen)).value
            assert isinstance(value, ir.Op)
            assert not type_fault(operator, [a.dtype for a in value.args], value.dtype)
    assert "2 operands" in type_fault(Operator.ADD, ["float32"], "float32")
    assert "alike" in type_fault(Operator.ADD, ["float32", "int64"], "float32")
    assert "compared" in type_fault(Operator.LT, ["float32", "float32"], "float32")


def test_dtypes_meet_as_in_pytorch() -> None:
    dtypes = [d for d in ITEMSIZE if d not in {"bfloat16", "float16"} and not d.startswith("float8")]  # torch refuses
    for one, other in itertools.product(dtypes, repeat=2):
        theirs = torch.promote_types(getattr(torch, one), getattr(torch, other))
        assert str(theirs) == f"torch.{promoted([one, other])}"


def test_numbers_take_the_dtype_of_what_stands_beside_them() -> None:
    x = Expr(ir.Const((), "int64", 3, "n"))
    assert (x + 1).dtype == "int64" and (x + 0.5).dtype == "float32" and (x < 2).dtype == "bool"
    assert (Expr(ir.Const((), "bool", True, "b")) * 2).dtype == "int64"
    assert where(x, 1.5, x).dtype == "float32"


NESTED = {
    "arithmetic": "return x - (y - 1 - (x + 2)), x / (y * x / 2), -(x - y), x * -(y + x), (x - y) - x",
    "choices": "return torch.where((x > 0) & ((y < 0) | (x > 1)), torch.relu(x) + y, x - torch.maximum(x, y)), "
    "torch.where(x > y, torch.exp(x), torch.sigmoid(y)), 2 - torch.clamp(x, -0.5, 0.5)",
    "integers": "n = (x * 100).to(torch.int32); m = (y * 9).to(torch.int8); "
    "return (n - m).abs(), ~n, n & 12 | 3, n * 2.5, (m + m) - m, (n > 0) * 2 + m, n.to(torch.uint8) + m, -n + y, "
    "n.div(7, rounding_mode='floor'), n.div(-7, rounding_mode='trunc'), n.fmod(m.abs() + 5), n.remainder(-7), "
    "n.long().fmod(8), n.long().remainder(16), n.long().fmod(m.abs().long() % 5 + 1)",
    "few terms": "m = x.view(7, 2, 3, 4); f = y[:16].view(4, 4); n = m / m.norm(dim=-1, keepdim=True); "
    "return m @ m.mT, n, (m[..., :2] - y[:2]).clamp(min=0.1).prod(-1), m.pow(2).sum(1), m @ f @ f, m.mean(2)",
    "truth": "t = x > 0; return ~t, t + t, t * 3, t.logical_and(y), t == (y > 0), t.long().cumsum(-1), t | (y > 0)",
}


@pytest.mark.parametrize("language", ["cpp", "cuda"])
@pytest.mark.parametrize("name", NESTED)
def test_nested_operators_compute_what_pytorch_does(
    name: str, language: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if language == "cuda":
        monkeypatch.setattr(numbers, "build", build_emulated)
    fp = functional(name, Case(NESTED[name], "torch.randn(7, 24)", "torch.randn(24)"))
    plan = write(fp, CpuParameters() if language == "cpp" else SMALL)
    assert plan is not None and plan.candidate.tier == "kernel"
    assert worst_ratio(fp, numbers.caller(plan, fp, tmp_path)) < numbers.RATIO


def test_sums_of_a_few_cheap_terms_are_written_out() -> None:
    """So that matrices of 3 x 3, colours and places in space are pointwise, with what stands around them."""
    body = "d = x[:, None] - x[None]; r = torch.sqrt(d.square().sum(-1)); return torch.exp(-r) * (x @ x.t()), x.prod(1)"
    fp = functional("distances", Case(body, "torch.randn(50, 3)", "torch.randn(1)"))
    for parameters in (CpuParameters(), SMALL):
        plan = write(fp, parameters)
        assert plan is not None and plan.schedules == ("point",) and "n0 = 3;" in plan.candidate.source
    plan = write(fp, dataclasses.replace(SMALL, short=0))  # other sizes are to be served
    assert plan is not None and plan.schedules == ("row", "column")


def loops(*sizes: int) -> ir.Load:
    return ir.load("x", sizes, "float32")


def broken() -> dict[str, tuple[ir.Value, str]]:
    """Values that no stage may make, each with what the error says of it."""
    x, n = loops(4, 6), ir.load("n", (4, 6), "int64")
    over = ir.leaves(x.dims[1])
    return {
        "types": (ir.Op(x.dims, "float32", Operator.ADD, (x, n)), "ADD of float32, int64"),
        "operands": (ir.Op(x.dims, "float32", Operator.SQRT, (x, x)), "1 operands"),
        "a lost loop": (ir.Op(x.dims[:1], "float32", Operator.SAME, (x,)), "loops of 6"),
        "a loop twice": (ir.Op((x.dims[0], x.dims[0]), "float32", Operator.SAME, (x,)), "serves two dimensions"),
        "reduced and left": (ir.Reduce(x.dims, "float32", Kind.SUM, x, over), "or left"),
        "a reduction of truth": (ir.Reduce(x.dims[:1], "bool", Kind.ANY, x, over), "it reduces float32"),
        "widened": (ir.Load(x.dims, "float64", "x", x.stored, x.index, "float32"), "widened"),
        "another buffer": (ir.load("y", (4,), "float32"), "nothing stores"),
        "another size": (ir.load("x", (4, 7), "float32"), "28 elements"),
        "a running sum of integers": (ir.Scan(n.dims, "float32", Kind.SUM, n, n.dims[1][0]), "it scans int64"),
    }


@pytest.mark.parametrize("name", broken())
def test_a_value_that_is_not_well_formed_is_named(name: str) -> None:
    buffers = {"x": TensorSpec((4, 6), "float32"), "n": TensorSpec((4, 6), "int64")}
    Checker(buffers).check([loops(4, 6)], "A stage")
    value, said = broken()[name]
    with pytest.raises(IllFormed, match=f"A stage made a .*{said}"):
        Checker(buffers).check([value], "A stage")


def test_a_source_has_the_pieces_that_it_uses_and_what_they_use() -> None:
    def text(body: str) -> str:
        return "".join(piece.text for piece in linked(body))

    assert text("nothing of ours  // but row_scan in a comment") == ""
    assert "lane_xor" in text("v = row_reduce(v, Sum(), 0.0f);") and "MaxSum" not in text("row_reduce(v, Sum());")
    assert "MaxSum lane_xor" in text("MaxSum v = row_reduce(v, Merge(), v);")
    assert linked(" ".join(f"{piece.name} {piece.of}" for piece in PIECES)) == [*PIECES]


def test_a_nest_has_the_loops_of_what_it_stores() -> None:
    x = loops(4, 6)
    (row,), (column,) = x.dims
    total = ir.Reduce((), "float32", Kind.SUM, x, (row, column))
    buffers = {"x": TensorSpec((4, 6), "float32")}
    Region({"out": total}, (), (row, column)).check(Checker(buffers))
    Region({"out": x}, (row, column), ()).check(Checker(buffers))
    for wrong in (Region({"out": total}, (row,), (column,)), Region({"out": x}, (row,), ())):
        with pytest.raises(IllFormed, match="does not have its loops"):
            wrong.check(Checker(buffers))


def test_loops_of_a_value_are_found_once_and_stay_right_when_they_are_split() -> None:
    row = ir.load("x", (4, 12), "float32")
    total = ir.Reduce((row.dims[0],), "float32", Kind.SUM, row, row.dims[1])
    (outer,), (inner,) = row.dims
    assert ir.tree_atoms(row) == {outer, inner} and ir.tree_atoms(total) == {outer}
    outer.split(2)
    inner.split(3)
    assert ir.tree_atoms(row) == {*outer.leaves(), *inner.leaves()} and ir.tree_atoms(total) == {*outer.leaves()}


def test_the_outermost_reductions_of_a_value_are_those_inside_of_no_other_each_once() -> None:
    table = ir.load("x", (4, 12), "float32")
    (row,), (column,) = table.dims
    total = ir.Reduce(((row,),), "float32", Kind.SUM, table, (column,))
    centred = Expr(table) - Expr(total)
    spread = ir.Reduce(((row,),), "float32", Kind.SUM, (centred * centred).value, (column,))
    both = (Expr(spread) / Expr(total) + Expr(total)).value
    assert ir.outermost(table) == () and ir.outermost(centred.value) == (total,)
    assert ir.outermost(spread) == (spread,) and ir.outermost(both) == (spread, total)
