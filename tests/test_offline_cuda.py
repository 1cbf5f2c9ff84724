"""Rows, columns and scans of generated CUDA, to the end: emulated on the CPU and compared with PyTorch."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
import torch
from emulated_cuda import build_emulated
from support import generated_kernels as numbers
from support.generated_kernels import SMALL, Case, functional, worst_ratio

from rag_kernels.offline.compose import first_plans, write
from rag_kernels.offline.cuda import region
from rag_kernels.offline.cuda.elements import multi_block_rows
from rag_kernels.offline.cuda.function import CudaParameters
from rag_kernels.offline.cuda.scans import tiled_scans
from rag_kernels.offline.graph.rewrites import simplified

# What a case is about must stand in the text, so that it cannot come to test something else.
CASES = {
    "kept rows": (
        "_wide<2>",
        Case(
            "return x.softmax(-1) * y, (x - x.mean(-1, True)) / (1 + x.std(-1, keepdim=True))",
            "torch.randn(5, 200)",
            "torch.randn(200)",
        ),
    ),
    "rows of no multiple of four": (
        "row_block(small(n",
        Case(
            "return x.softmax(-1) + y, x.view(-1)[:960].view(64, 5, 3).softmax(-1), x.view(-1)[:45].view(9, 5).sum(1)",
            "torch.randn(5, 201)",
            "torch.randn(201)",
        ),
    ),
    "long rows": (
        "MaxSum",
        Case(
            "v, m = torch.var_mean(x, -1, unbiased=False); z = (x - m[:, None]) * (v[:, None] + 1e-5).rsqrt();"
            "return x.softmax(-1) * y, F.layer_norm(x + 3, (8400,)), torch.logsumexp(x, -1), z, m * v",
            "torch.randn(3, 8400)",
            "torch.randn(8400)",
        ),
    ),
    "split rows": (
        "scratch<MaxSum>",
        Case(
            "return x.log_softmax(0) + y, x.var(), F.group_norm(x.view(1, 2, -1), 2)",
            "torch.randn(32768)",
            "torch.randn(1)",
        ),
    ),
    "points": (
        "Pack<float, 4>",
        Case("return F.gelu(x) * y + x[:, :1], x[1:] - x[:-1]", "torch.randn(9, 64)", "torch.randn(64)"),
    ),
    "pairs": (
        "x_v1.x[2 * u + 1]",
        Case(
            "a, b = x[..., 0], x[..., 1]; return torch.stack([a * y - b * y.sin(), a + b * y], -1)",
            "torch.randn(2, 5, 16, 2)",
            "torch.randn(5, 16)",
        ),
    ),
    "places": (
        "MaxPlace",
        Case("return x.argmax(-1), x.argmin(0), x.max(0)[0], y.max(1)[1]", "torch.randn(7, 96)", "torch.ones(5, 40)"),
    ),
    "largest weights": (
        "? place_of(",
        Case(
            "p = x.softmax(-1); v, i = p.max(-1); n = torch.where(y > 0, x * torch.nan, x).softmax(-1).max(-1); "
            "return v, i, p.argmax(-1), n[0], n[1], (x - torch.inf).softmax(-1).argmax(-1)",
            "torch.randn(7, 96)",
            "torch.eye(7)[:, :1]",
        ),
    ),
    "places of nothing finite": (
        "take<false>",
        Case(
            "return (y * -torch.inf).argmax(0), (y * torch.inf).min(1)[1], torch.where(x > 1, torch.nan, x).argmin(-1)",
            "torch.randn(7, 96)",
            "torch.ones(5, 40)",
        ),
    ),
    "scans of odd rows": (
        "of_earlier<0>",
        Case("return x.cumsum(-1) + y, x.flip(1).cumsum(1) * 2", "torch.randn(3, 4501)", "torch.randn(4501)"),
    ),
    "several scans": (
        "of_earlier<2>",
        Case(
            "return x.cumsum(1), (x * y).cumsum(1) + x, x.cumsum(1).cumsum(1)",
            "torch.randn(2, 1501)",
            "torch.randn(1501)",
        ),
    ),
    "scans in reductions": (
        "_q[u]",
        Case(
            "return x.cumsum(-1).softmax(-1) + y, (x > 0).cumsum(-1).amax(-1), x[:, :101].cumsum(-1).softmax(-1)",
            "torch.randn(2, 4501)",
            "torch.randn(4501)",
        ),
    ),
    "scans of what is kept": (
        "_q[u]",
        Case(
            "return (x / x.abs().sum(1, True)).cumsum(1), x.cumsum(-1).softmax(-1) * y",
            "torch.randn(2, 640)",
            "torch.randn(640)",
        ),
    ),
    "scans": (
        "of_earlier<1>",
        Case("return x.cumsum(-1), x.cumprod(0), (x * y).cumsum(-1)", "torch.randn(4, 640)", "torch.randn(640)"),
    ),
    "kept columns": (
        "kept",
        Case(
            "return x / (x.square().mean(1, keepdim=True) + 1e-5).sqrt(), x.softmax(1) * y",
            "torch.randn(3, 40, 50)",
            "torch.randn(1)",
        ),
    ),
    "windows, a thread each": (
        "for (int64_t r0 = 0",
        Case("return F.avg_pool2d(x, 7) + y, F.max_pool2d(x, 7, 6)", "torch.randn(2, 3, 40, 44)", "torch.randn(1)"),
    ),
    "names like ours": (
        "own_arg",
        Case(
            "return (x * self.own + self.share).abs().sum(1), (x * self.own).amax(0) + y",
            "torch.randn(130, 41)",
            "torch.randn(41)",
            init="self.own, self.share = 0.37, 1.5",
        ),
    ),
    "common weights": (
        "i0 = rest_i1 % ",
        Case("return F.layer_norm(x, x.shape[1:], y)", "torch.randn(5, 3, 16000)", "torch.randn(3, 16000)"),
    ),
    "a row by its largest": (
        "row_reduce",
        Case(
            "return (x / x.amax(1, True) >= 1).float() + y, torch.floor(x.abs() / x.abs().amax(1, True) * 255) + y",
            "torch.randn(130, 400)",
            "torch.randn(1)",
        ),
    ),
    "turned": (
        "x_tile[threadIdx.x + u]",
        Case(
            "return (x * 0.5).t() + y, F.gelu(x.t() * x[:, :1].t()) - x.flip(1).t(), torch.cat([x.t(), y])",
            "torch.randn(70, 130)",
            "torch.randn(70)[None]",
        ),
    ),
    "turned in vectors": (
        "Pack<float, 4> x_tile_held",
        Case(
            "return (x * 0.5).t() + y, x.t() * x.flip(1).t().exp(), torch.cat([x.t(), y, y]), x[:, 8:].double().t()",
            "torch.randn(72, 136)",
            "torch.randn(72)[None]",
        ),
    ),
    "channels put last in vectors": (
        "Pack<__half, 4> ",
        Case(
            "p = lambda z: z.permute(0, 2, 3, 1).contiguous(); "
            "return p(x.half() + 1), p(x.half() * y[:, None, None].half()), p(x[:, :, 1:]) + y",
            "torch.randn(2, 36, 5, 24)",
            "torch.randn(36)",
        ),
    ),
    "channels put last": (
        "first_l",
        Case(
            "p = lambda z: z.permute(0, 2, 3, 1).contiguous(); "
            "return p(x.half() * 2), p(x.double() + y), p(F.pad(x, (1, 2, 1, 0))), p(x.char()), p(x > 0)",
            "torch.randn(2, 33, 5, 19)",
            "torch.randn(19)",
        ),
    ),
    "columns of chosen matrices": (
        "_wide",
        Case(
            "return self.w[y].sum(1) * 2 + x[0], (self.w[y].transpose(0, 1).float() * x[:48, None]).sum(0)",
            "torch.randn(50, 64)",
            "torch.randint(0, 6, (8,))",
            init="self.w = nn.Parameter(torch.randn(6, 48, 64).half())",
        ),
    ),
    "team columns": (
        "dim3(4, 32)",
        Case(
            "z = x[:, :3]; return x / x.sum(0), x.amax(0) + y, z / z.norm(dim=0), z.argmax(0), z[:, :1].amin(0)",
            "torch.randn(130, 40)",
            "torch.randn(40)",
        ),
    ),
}


# Rows longer than a block has room for: what a case is about, threads of a block, and the case.
SHARED = {
    "softmax": (
        "take_below(",
        128,
        Case("return x.softmax(-1) * y, x.log_softmax(-1)", "torch.randn(5, 20000)", "torch.randn(20000)"),
    ),
    "masked": (
        "top",
        128,
        Case(
            "return torch.where(y > 0, x, -torch.inf).softmax(-1)",
            "torch.randn(2, 20000)",
            "torch.arange(20000.0) - 15000",
        ),
    ),
    "odd": (
        "ring.copy_apart(0",
        128,
        Case(
            "return F.layer_norm(x, (20001,)) + y, x / x.abs().sum(1, keepdim=True)",
            "torch.randn(4, 20001)",
            "torch.randn(20001)",
        ),
    ),
    "odd softmax": (
        "take_below(",
        128,
        Case("return x.softmax(-1) * y", "torch.randn(5, 20003)", "torch.randn(20003)"),
    ),
    "two to keep": (
        "ring.at(1, j)",
        128,
        Case(
            "return F.group_norm(x + y, 2), (x * y).sum((1, 2))", "torch.randn(2, 4, 5000)", "torch.randn(2, 4, 5000)"
        ),
    ),
    "two levels": (
        "team.look<1, 2>(",
        128,
        Case(
            "x = x - x.mean(-1, True); return x / x.abs().max(-1)[0][:, None] + y",
            "torch.randn(9, 9000)",
            "torch.randn(1)",
        ),
    ),
    "one long row": (
        "_spread",
        128,
        Case("return x.log_softmax(0) * y, x / x.norm()", "torch.randn(40000)", "torch.randn(40000)"),
    ),
    "two blocks at once": (
        "__launch_bounds__(256, ",
        512,
        Case("return x.softmax(-1) + y", "torch.randn(19, 9000)", "torch.randn(9000)"),
    ),
}


def assert_shared(name: str, about: str, threads: int, case: Case, meets: str, folder: Path) -> None:
    """The kernel of rows that blocks share is written, alone, and as exact as PyTorch."""
    fp = functional(name.replace(" ", "_"), case)
    plan = write(fp, CudaParameters(sharing=threads))
    assert plan is not None and plan.candidate.tier == "kernel"
    assert about in plan.candidate.source and f"({meets} team" in plan.candidate.source
    texts, begin, launches = plan.candidate.source.partition("void forward_kernel(")
    source = texts + begin + launches.replace("} else {", '} else { RK_CHECK(false, "the rows are not shared");')
    shared = dataclasses.replace(plan, candidate=dataclasses.replace(plan.candidate, source=source))
    assert worst_ratio(fp, numbers.caller(shared, fp, folder)) < numbers.RATIO


@pytest.mark.parametrize("meets", ["Cluster", "Team"])
@pytest.mark.parametrize("name", SHARED)
def test_rows_shared_by_blocks_are_as_exact_as_pytorch(
    name: str, meets: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numbers, "build", build_emulated)
    for most, blocks in (("MAX_CLUSTER_BLOCKS", 8), ("MOST_CLUSTER_BLOCKS", 16)):
        monkeypatch.setattr(multi_block_rows, most, blocks if meets == "Cluster" else 0)
    assert_shared(name, *SHARED[name], meets, tmp_path)


def test_rows_are_taken_by_vectors_where_a_device_has_no_room_for_sixteen_blocks_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numbers, "build", build_emulated)
    case = Case("return x.softmax(-1) * y", "torch.randn(3, 20000)", "torch.randn(20000)")
    fp = functional("no_room", case)
    plan = write(fp, CudaParameters(sharing=128))
    assert plan is not None
    source = plan.candidate.source
    for here, instead in (
        ("const bool fit = Shared(", "const bool fit = parts <= 8 && Shared("),
        ("if (!rows) return;", 'RK_CHECK(false, "blocks share a row");'),
        (
            "const dim3 block = fitted<forward_0>",
            'RK_CHECK(false, "one element at a time"); const dim3 block = fitted<forward_0>',
        ),
    ):
        assert source.count(here) == 1
        source = source.replace(here, instead)
    left = dataclasses.replace(plan, candidate=dataclasses.replace(plan.candidate, source=source))
    assert worst_ratio(fp, numbers.caller(left, fp, tmp_path)) < numbers.RATIO


def test_blocks_show_each_other_more_sums_than_they_have_warps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numbers, "build", build_emulated)
    sums = ", ".join(f"(x + {i}.0).abs().sum(1)" for i in range(1, 10))
    case = Case(f"return x / x.abs().sum(1, True) + y, {sums}", "torch.randn(3, 9000)", "torch.randn(1)")
    assert_shared("many sums", "team.look<9, 2>(", 512, case, "Team", tmp_path)


def test_a_block_takes_a_whole_row_of_many_by_as_many_threads_as_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numbers, "build", build_emulated)
    monkeypatch.setattr(tiled_scans, "MANY_ROWS", 4)
    fp = functional("whole_rows", Case("return x.cumsum(-1) * y", "torch.randn(4, 20484)", "torch.randn(20484)"))
    plan = write(fp, CudaParameters())
    assert plan is not None and "__launch_bounds__(1024, 1) forward_0_wide" in plan.candidate.source
    assert worst_ratio(fp, numbers.caller(plan, fp, tmp_path)) < numbers.RATIO


@pytest.mark.parametrize("name", CASES)
def test_generated_cuda_is_as_exact_as_pytorch(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numbers, "build", build_emulated)
    monkeypatch.setattr(region, "MANY_COLUMNS", 1)
    about, case = CASES[name]
    fp = functional(name.replace(" ", "_"), case)
    plan = write(fp, SMALL)
    assert plan is not None and plan.candidate.tier == "kernel" and about in plan.candidate.source
    assert worst_ratio(fp, numbers.caller(plan, fp, tmp_path)) < numbers.RATIO


def test_quotients_by_a_rows_total_and_integers_are_pytorchs_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever the operands lie, and where the quotient is rounded; integers come of no division. By the number 127 a
    GPU's PyTorch multiplies with the reciprocal.
    """
    monkeypatch.setattr(numbers, "build", build_emulated)
    case = Case(
        "s = x.abs().amax(-1, True); q = (x / (s / 127)).round(); "
        "return x / s, q.to(torch.int8), (x / x.sum(-1, True)) * y, (q + 128).clamp(0, 255).to(torch.uint8)",
        "torch.randn(64, 4096)",
        "torch.ones(1)",
    )
    fp = functional("quotients", case)
    plan = write(fp, SMALL)
    assert plan is not None and "rk_nearbyint(rk_ratio(" in plan.candidate.source
    torch.manual_seed(3)
    x = torch.randn(64, 4096) * torch.logspace(-38, 34, 64)[:, None] * 2.0 ** torch.randint(-20, 20, (64, 4096))
    x[:, ::7] = 0.0
    x[5, 1], x[6, 3], x[7] = torch.inf, torch.nan, 0.0
    halves = (torch.randint(-127, 127, (64, 512)) + 0.5) * (x.abs().amax(-1, True) / 127)
    near = torch.nextafter(halves, halves * torch.randint(0, 3, halves.shape))
    x[:, 4::8] = torch.where(near.isfinite(), near, x[:, 4::8])
    s = x.abs().amax(-1, True)
    ours = numbers.caller(plan, fp, tmp_path)(x, torch.ones(1))
    assert torch.equal(ours[0].nan_to_num(7), (x / s).nan_to_num(7))
    whole = (x / (s * (torch.ones(1) / 127))).round()
    finite = whole.isfinite()
    assert torch.equal(ours[1][finite], whole.to(torch.int8)[finite])
    assert torch.equal(ours[3][finite], (whole + 128).clamp(0, 255).to(torch.uint8)[finite])


BATCH_NORMS = (
    "self.c, self.d = nn.Conv2d(3, 64, 3, padding=1), nn.Conv2d(3, 64, 1); "
    "self.n, self.m = nn.BatchNorm2d(64), nn.BatchNorm2d(64)"
)


@pytest.mark.parametrize(
    ("case", "about", "without"),
    [
        (
            Case(
                "z = self.n(self.c(x)); z += self.m(self.d(x)); return F.relu(z), y",
                "torch.rand(10, 3, 64, 64)",
                "torch.ones(1)",
                init=BATCH_NORMS,
            ),
            "double(",
            "scratch<double>",
        ),
        (Case("return x.cumsum(1) * y", "torch.randn(300, 41)", "torch.ones(1)"), "row_scan(", "of_earlier"),
        (
            Case(
                "return torch.einsum('td,tdh->th', x, self.w[y])",
                "torch.randn(8, 48).half()",
                "torch.randint(0, 6, (8,))",
                init="self.w = nn.Parameter(torch.randn(6, 48, 64).half())",
            ),
            "column_reduce",
            "scratch<__half>",
        ),
        (
            Case("return (x / x.sum(1, True)).cumsum(1) * y", "torch.randn(300, 129)", "torch.ones(1)"),
            "<<<blocks(n0), 64, ",
            "LONG_THREADS, 0",
        ),
        (
            Case(
                "p = (x / y).softmax(-1); k = p.topk(9)[0][:, -1:];"
                "p = torch.where(p < k, 0.0, p); return p / p.sum(-1, True)",
                "torch.randn(4, 70000)",
                "torch.ones(4, 1)",
            ),
            "= merge(acc",
            "_p[i0] = float(acc",
        ),
        (
            Case("return F.conv2d(x, y, groups=8)", "torch.randn(2, 8, 64, 64)", "torch.randn(8, 1, 3, 1)"),
            "i2_group",
            "(n3 * n4)",
        ),
        (
            Case("return x[:, 1:, :-1] - y, x[:, :-1, 1:] * y, x", "torch.randn(9, 48, 50)", "torch.ones(1)"),
            "sub, mul: ",
            "forward_1",
        ),
        (
            Case(
                "return torch.softmax(x @ y, -1)",
                "torch.randn(64, 96).bfloat16()",
                "torch.randn(96, 80).bfloat16()",
            ),
            "scratch<__nv_bfloat16>(",
            "scratch<float>(n0",
        ),
        (Case("return x @ y", "torch.randn(512, 64)", "torch.randn(64, 40)"), "COLUMNS = 64,", "COLUMNS = 128"),
        (
            Case(
                "d = torch.where(x > 0, x, 0.5 * y); return d @ x.t(), d.t() @ x, d.sum(0)",
                *["torch.randn(64, 500)"] * 2,
            ),
            "where_data = scratch<float>(",
            "y_arg_p, const",
        ),
        (
            Case(
                "o = torch.zeros_like(x).scatter(1, y.long()[:, None], -1.0); return o - x.softmax(1)",
                "torch.randn(64, 512)",
                "torch.randint(0, 512, (64,))",
            ),
            "? float(value) : 0.0f",
            "scattered",
        ),
    ],
    ids=[
        *("stores that nobody reads", "many rows of an odd length", "copies of what is chosen and used once"),
        "threads beside a short row",
        "a softmax by one way for a sort and by another one behind it",
        *("windows along columns alone", "slices that are as long", "products of sixteen bits that rows read"),
        *("products of few columns", "factors of two products", "a one in each row"),
    ],
)
def test_what_made_kernels_slower_than_before_stays_out(case: Case, about: str, without: str) -> None:
    """Copies in double beside a residual block, 0.83 of the speed; running sums 0.42; depthwise convolutions 0.59.

    Differences of an image along both sides, each read for itself; products in float32 before a softmax of theirs in
    sixteen bits; tiles of 128 columns for 40; a gradient that both gradients of a layer computed again, 0.59; a
    loss's gradient from a tensor of zeros with ones.
    """
    fp = functional("slower", case)
    plan = next(first_plans(simplified(fp)[0], CudaParameters()))
    assert about in plan.candidate.source and without not in plan.candidate.source


def test_a_product_of_sixteen_bits_is_not_rounded_before_its_bias(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two large numbers little may be left: that was 100 times the error of PyTorch. It is stored with its bias."""
    monkeypatch.setattr(numbers, "build", build_emulated)
    init = "self.w = nn.Parameter((1 + torch.randn(80, 96) / 99).bfloat16())"
    given = "(1 + torch.randn(64, 96) / 99).bfloat16()", "torch.full((80,), -96.0).bfloat16()"
    fp = functional("bias", Case("return torch.softmax(F.linear(x, self.w, y), -1)", *given, init=init))
    plan = write(fp, CudaParameters(products=2))
    assert plan is not None and "scratch<__nv_bfloat16>(" in plan.candidate.source
    assert worst_ratio(fp, numbers.caller(plan, fp, tmp_path)) < 2


def test_quads_are_taken_only_where_every_row_begins_at_sixteen_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slice's rows lie as far apart as the whole tensor's: their length decides, not the slice's."""
    monkeypatch.setattr(numbers, "build", build_emulated)
    even = functional("even", Case("return torch.exp(x[:, :32]) + y", "torch.randn(6, 48)", "torch.randn(1)"))
    odd = functional("odd", Case("return torch.exp(x[:, :32]) + y", "torch.randn(6, 47)", "torch.randn(1)"))
    assert even.graph_key == odd.graph_key
    plan = write(even, SMALL)
    assert plan is not None
    source, address = plan.candidate.source, "reinterpret_cast<const Pack<float, 4>*>("
    assert address in source
    checked = source.replace(f"*{address}", "checked(")  # NaN from where no sixteen bytes may be loaded at once
    load = (
        "using Four = Pack<float, 4>;\n"
        "inline Four checked(const float* p) {\n"
        "  return uintptr_t(p) % 16 ? Four{{NAN, NAN, NAN, NAN}} : *(const Four*)p;\n}\n"
    )
    checked = checked.replace("Pack { T x[N]; };\n", f"Pack {{ T x[N]; }};\n{load}", 1)
    guarded = dataclasses.replace(plan, candidate=dataclasses.replace(plan.candidate, source=checked))
    assert worst_ratio(odd, numbers.caller(guarded, odd, tmp_path)) < numbers.RATIO


@pytest.mark.parametrize("tensors", [1, 2])
def test_a_thread_keeps_no_more_of_columns_than_it_has_registers_for(tensors: int) -> None:
    """Of two tensors a few threads share columns of 64 elements; of one a thread keeps them."""
    body = f"z = {'x * y' if tensors == 2 else 'x'}; return z / z.pow(2).sum(1, keepdim=True).sqrt()"
    fp = functional("columns", Case(body, "torch.randn(2, 64, 256, 272)", "torch.rand(2, 64, 256, 272)"))
    plan = write(fp, CudaParameters())
    assert plan is not None and bool(re.search(r"float kept\d+\[64\]", plan.candidate.source)) is (tensors == 1)
