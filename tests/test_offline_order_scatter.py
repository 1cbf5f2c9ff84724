"""Sorts, scatters, places in sorted rows and images read at points, in both languages, compared with PyTorch.

Equal elements, NaN and infinities among what is sorted; places that several elements share; sizes other than those that
a kernel was written for.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support import generated_kernels as numbers
from support.both_languages import LANGUAGES, Made, call_into, compared, maker
from support.generated_kernels import Case, functional, worst_ratio

from rag_kernels.offline.compose import write
from rag_kernels.offline.cuda.region import CudaParameters

# One kernel has many operators, since it is built once for all of them.
CASES = {
    "orders": Case(
        "s = torch.sort(x + 0, dim=1, stable=True); d = torch.sort(x, 0, True); t = (x * 2).topk(3);"
        "k = x.kthvalue(5, 1); return *s, *d, *t, *k, x.argsort(dim=1, stable=True), *x.median(1), x.quantile(0.3, 1),"
        "torch.sort(y, -1)[0], *y.cummax(0), *x.cummin(1), x.view(-1).argsort(stable=True), y.view(-1).topk(9)[0]",
        "torch.randn(9, 133)",
        "torch.randint(-3, 3, (7, 20))",
    ),
    "long orders": Case(  # more than a block sorts at once, of which some bytes are alike
        "return *torch.sort(x + 0, dim=1, stable=True), torch.sort(y, 0, True)[0]",
        "(torch.randn(2, 4200) * 9).round()",
        "torch.randint(-3000, 3000, (2060,)) * (1 << 20)",
    ),
    "few of many": Case(  # by many blocks, of which each keeps some of its part
        "return *(x * 2).topk(9, 1), *y.topk(5, 0, largest=False)",
        "torch.randn(2, 17000)",
        "torch.randperm(16400)",
    ),
    "scatters": Case(
        "z = x.new_zeros(9, 11); r = y[:, 0]; w = x + 0; b = (x * 2 + 1) * x - 3;"  # b begins a sum and is read again
        "return z.scatter_add(1, y, x), z.scatter(1, y[:, :1], x[:, :1] * 2), (x * 2).scatter(0, y[:3], 1.5),"
        "z.scatter_add(1, y[:, :1], x[:, 1:2]) * 2,"
        "z.scatter_reduce(1, y, x, 'amax', include_self=False), z.scatter_reduce(1, y, x, 'mean'),"
        "(z + 1).scatter_reduce(1, y, x, 'prod'), x.new_zeros(11, 40).index_add(0, r, x, alpha=2),"
        "w.index_put((r[:2] % 9,), x[:2], accumulate=True), torch.histc(x, 7, -2, 2), w.index_fill(1, r[:2], 3.0),"
        "torch.ops.aten.embedding_dense_backward(x, r, 11, -1, False), z.long().scatter_add(1, y, y),"
        "torch.bincount(r, minlength=11), torch.bincount(r, x[:, 0].exp(), minlength=9),"
        "b.index_add(0, r[:4], x[:4]), b[:, :, None] * x[0]",
        "torch.randn(9, 40)",
        "torch.randint(0, 9, (9, 40))",
    ),
    "bags": Case(
        "i = y[0]; c = torch.arange(4) * 3; t = x.t(); p = x.argsort(1); w = x[0];"
        "return F.embedding_bag(i, t, c), F.embedding_bag(i, t, c, mode='max'),"
        "F.embedding_bag(i, t, c, mode='sum', per_sample_weights=w, padding_idx=2),"
        "F.embedding_bag(i, t, c * 2, include_last_offset=True, padding_idx=3),"
        "F.embedding_bag(y, t, mode='sum', per_sample_weights=x),"
        "torch.segment_reduce(t[:9], 'mean', offsets=c), torch.segment_reduce(t, 'mean', lengths=c[1:]),"
        "torch.searchsorted(x, x * 2, sorter=p), torch.searchsorted(x[1], x, sorter=p[1], right=True)",
        "torch.randn(2, 18)",
        "torch.randint(0, 18, (2, 18))",
    ),
    "places": Case(
        "q = x.flatten(); c = torch.arange(4) * 3; n = q[:18].view(9, 2);"
        "return torch.searchsorted(y, x), torch.searchsorted(y[0], q, right=True), torch.bucketize(q, y[1]),"
        "torch.segment_reduce(n, 'sum', offsets=c), F.grid_sample(x.view(1, 1, 4, 5), x.view(1, 5, 2, 2)),"
        "F.grid_sample(x.view(1, 1, 4, 5).expand(2, 1, 4, 5), x.view(2, 5, 1, 2)),"
        "F.fold(F.unfold(x.view(1, 1, 4, 5), 3, padding=1, stride=2), (4, 5), 3, padding=1, stride=2),"
        "F.fold(F.unfold(x.view(1, 1, 4, 5), 2, dilation=2), (4, 5), 2, dilation=2), F.fold(x[None], (3, 5), (2, 1)),"
        "x.logcumsumexp(1), torch.cdist(n, n[:4])",
        "torch.randn(2, 10)",
        "torch.randn(2, 30).sort(-1)[0]",
    ),
}

CASES |= {
    "rows": Case(  # vectors of a row join together; of an index that is computed, each row stores it once
        "z = x.new_zeros(5, 3, 24); i = torch.bucketize(x[:, 0], x[:, 1].sort()[0])[:, None].expand(-1, 24) % 5;"
        "return x.new_zeros(5, 24).scatter_add(0, i, x * 2), x.new_ones(5, 24).scatter_reduce(0, i, x, 'amax'),"
        "x.new_zeros(5, 24).scatter_reduce(0, i, x, 'amin', include_self=False),"
        "x[:5].scatter_reduce(0, i, -x, 'amin'), x[:5].scatter_reduce(0, i, -x, 'amax'),"
        "x.new_zeros(5, 24).index_add(0, y % 5, x), x.new_zeros(40, 24).index_put((torch.argsort(y, stable=True),), x),"
        "z.index_put((y % 5, y % 3), x, accumulate=True), x.new_zeros(5, 24).long().index_add(0, y % 5, x.long())",
        "torch.randn(40, 24)",
        "torch.randint(0, 60, (40,))",
    ),
    "corners": Case(  # one behind another into one tensor: one nest where their loops are alike, else without copies
        "i = (y[:, 0] * 61 + y[:, 1]) % 3000; w = x[:, 0] * x[:, 1]; z = x.new_zeros(3000); e = x.new_zeros(3000, 2);"
        "a = z.index_add(0, i, w).index_add(0, (i + 1) % 3000, w * 2).index_add(0, (i + 61) % 3000, x[:, 2]);"
        "b = e.index_add(0, i, x[:, :2]).index_add(0, (i + 5) % 3000, x[:, 1:3] * w[:, None]);"
        "c = x.new_zeros(3000, 8).index_add(0, i, x).index_add(0, i // 2, x * 2); d = z.index_add(0, i // 3, w);"
        "h = x.new_zeros(60, 4).index_add(0, y.flatten(), (x * 2).view(-1, 4));"  # which stands in its own two loops
        "return a * 2, b, c, d, d.index_add(0, i // 5, w * 3), torch.bincount(y[:, 0], minlength=61), h",
        "torch.randn(400, 8)",
        "torch.randint(0, 60, (400, 2))",
    ),
    "what was before": Case(  # a scatter's base is read again as it was, and its elements where they are stored
        "w = self.w; b = x * w; z = b.index_add(0, y, x); q = x.new_zeros(9, 8).index_add(0, y, b);"
        "e = x.sigmoid() * w[y] + b; r = x.new_zeros(9, 8).index_add(0, y, e);"
        "return z, q, r, b * z.sum(), e, b.index_add(0, y, x * 2), e.sum(0)",
        "torch.randn(40, 8)",
        "torch.randint(0, 9, (40,))",
        init="self.w = nn.Parameter(torch.randn(40, 8))",
    ),
    "histograms": Case(  # of each image apart, in shared memory
        "f = y.flatten(1).long() * 4; h = x.new_zeros(30, 70).scatter_add(1, f, torch.ones_like(f, dtype=x.dtype));"
        "m = x.new_zeros(30, 70).scatter_reduce(1, f[:20], x[:20], 'amax'); a = f.flatten();"
        "return h / 2500, x.new_zeros(30, 70).scatter_add(1, f, x), m, x.new_zeros(70).scatter_add(0, a, x.flatten())",
        "torch.randn(30, 2500)",
        "torch.randint(0, 17, (30, 50, 50), dtype=torch.uint8)",
    ),
    "overlaps": Case(  # boxes in order are looked up once, and the matrix that a reduction stores is read again
        "b, c = x[y], y[y.flip(0)]; low = torch.maximum(b[:, None, :2], b[None, :, :2]);"
        "high = torch.minimum(b[:, None, 2:], b[None, :, 2:]); s = (high - low).clamp(min=0).prod(2);"
        "a = (b[:, 2:] - b[:, :2]).prod(1); i = s / (a[:, None] + a[None] - s + 1e-6);"
        "i = torch.triu(i * (c[:, None] == c[None]), diagonal=1); w = i.amax(0);"
        "return torch.exp((w[:, None].pow(2) - i.pow(2)) * 2).amin(0), w",
        "torch.cat([torch.rand(40, 2), torch.rand(40, 2) + 1], 1)",
        "torch.randint(0, 40, (40,)) // 2",
    ),
    "columns that run": Case(
        "w = x.view(2, 350, 9); return x.cumsum(0), w.cumprod(1) + w, (w * 2).cumsum(1) * y, x.logcumsumexp(0)",
        "torch.rand(700, 9) + 0.5",
        "torch.randn(9)",
    ),
}


@pytest.fixture(params=LANGUAGES)
def made(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Made:
    return maker(request.param, tmp_path, monkeypatch)


@pytest.mark.parametrize("name", CASES)
def test_in_both_languages(name: str, made: Made) -> None:
    fp, call = made(name, CASES[name])
    assert worst_ratio(fp, call) <= numbers.RATIO
    if name == "orders":
        for x, y in special_orders():
            compared(fp, call, x, y)
    if name == "scatters":
        x = torch.randn(9, 40)
        x[0, :3] = torch.tensor([float("nan"), float("inf"), -0.0])
        compared(fp, call, x, torch.randint(0, 9, (9, 40)))
    if name == "rows":  # NaN of either sign among what joins and where it joins, and zeros of both
        x, nan = torch.randn(40, 24), torch.tensor(float("nan"))
        x[:9:2, 3], x[1:9:2, 4], x[:20, 5], x[::3, 6], x[:, 7] = nan, -nan, 0.0, -0.0, -float("inf")
        compared(fp, call, x, torch.randint(0, 60, (40,)))


@pytest.mark.parametrize("language", LANGUAGES)
def test_scatters_one_behind_another_are_one_nest(language: str) -> None:
    body = (
        "i = y % 3000; z = x.new_zeros(3000); return z.index_add(0, i, x).index_add(0, (i + 1) % 3000, x * 2)"
        ".index_add(0, (i + 61) % 3000, x + 1)"
    )
    plan = write(
        functional("corners", Case(body, "torch.randn(400)", "torch.randint(0, 60, (400,))")), LANGUAGES[language]
    )
    assert plan is not None and plan.regions == 2


def test_few_of_many_are_the_first_ones_whatever_stands_where(made: Made) -> None:
    """Few, more than few and a large part of a lane; in random and in both sorted orders, with equal elements and NaN.

    Of equal elements those come first that stand first, as a stable sort has them.
    """
    counts = (1, 3, 16, 17, 60)
    body = "return " + ", ".join(f"*x.topk({k})" for k in counts) + ", *x.topk(5, 1, False), *y.topk(20)"
    fp, call = made("few_of_many", Case(body, "torch.randn(6, 400)", "torch.randint(-9, 9, (6, 400))"))
    for length in (61, 64, 65, 255, 321, 4099):
        drawn = torch.randn(6, length)
        drawn[1], drawn[2] = torch.arange(length), -torch.arange(length)
        drawn[3], drawn[4] = drawn[3].round(), drawn[4] * 0
        drawn[5, ::7], drawn[5, ::5], drawn[5, 1::9] = float("nan"), -0.0, float("-inf")
        y = drawn.nan_to_num(0, 9, -9).long() * (1 << 35)
        asked = [*((drawn, k, True) for k in counts), (drawn, 5, False), (y, 20, True)]
        outputs = [t for v, k, _ in asked for t in (v.new_empty(6, k), torch.empty(6, k, dtype=torch.int64))]
        call_into(call, (drawn, y), outputs, fp)
        for (v, k, down), (elements, places) in zip(asked, zip(outputs[::2], outputs[1::2], strict=True), strict=True):
            order = torch.sort(v, dim=1, descending=down, stable=True)[1][:, :k]
            assert torch.equal(places, order), (length, k, down)
            torch.testing.assert_close(elements, v.gather(1, order), rtol=0, atol=0, equal_nan=True)


def special_orders() -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return what is hard to sort: every element distinct, so that indices are comparable, but for what is stable."""
    nan, inf = float("nan"), float("inf")
    long = torch.randperm(9 * 1500).float().view(9, 1500) - 2000  # more than is sorted by insertion
    special = torch.randperm(9 * 40).float().view(9, 40)
    special[:, 3], special[:, 20] = inf, -inf
    with_nan = special.clone()
    with_nan[4, 7] = nan
    y = torch.randint(-3, 3, (7, 20))
    return [(long, y), (special, y * (1 << 40)), (with_nan, y)]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("rows", ["join_sums(", "join_extremes<true>("]),
        ("histograms", ["_near<<<", "of_batch = i0 * "]),
        ("columns that run", ["column_before("]),
        ("overlaps", ["part4_arg_p"]),
    ],
)
def test_scatters_and_scans_have_schedules_of_their_own(name: str, words: list[str]) -> None:
    plan = write(functional(name.replace(" ", "_"), CASES[name]), LANGUAGES["cuda"])
    assert plan is not None
    assert [word for word in words if word not in plan.candidate.source] == []


def test_what_a_row_comes_to_is_computed_once_for_sums_over_columns(made: Made) -> None:
    """The gradient of a norm: mean and root are stored by the kernel that has the rows, and not taken by element."""
    body = (
        "m = x.mean(-1, keepdim=True); r = torch.rsqrt(x.var(-1, unbiased=False, keepdim=True) + 1e-5);"
        "h = (x - m) * r; g = h * y; return r * (g - g.mean(-1, keepdim=True)), (x * h).sum(0), x.sum(0)"
    )
    fp, call = made("norm_gradient", Case(body, "torch.randn(4096, 40)", "torch.randn(40)"))
    assert worst_ratio(fp, call) < numbers.RATIO
    plan = write(fp, LANGUAGES["cuda"])
    assert plan is not None
    kernels = plan.candidate.source.split("__global__")[1:]
    over_columns = [text for text in kernels if "column_reduce" in text]
    assert over_columns and not any("rk_sqrt" in text for text in over_columns)


def test_what_groups_of_a_product_come_to_is_computed_once() -> None:
    """A group norm behind a convolution: mean and root are one a group, and nothing of it is divided by element."""
    case = Case(
        "return torch.logsumexp(torch.tanh(self.n(self.c(x))), 1, keepdim=True)",
        "torch.randn(4, 8, 132, 132)",
        "torch.randn(1)",
        init="self.c = nn.Conv2d(8, 32, 3); self.n = nn.GroupNorm(8, 32)",
    )
    plan = write(functional("groups", case), CudaParameters(products=2))
    assert plan is not None and plan.candidate.tier == "kernel"
    of_elements = [text for text in plan.candidate.source.split("__global__")[1:] if "rk_tanh" in text]
    assert of_elements and not any("rk_sqrt" in text or "double(" in text for text in of_elements)


def test_what_is_stored_anyway_is_not_computed_again_for_each_column(made: Made) -> None:
    """Forces in a space of five: what a pair has in common is stored beside a sum over it, and read by direction."""
    body = (
        "d = x[:, None] - x; e = torch.exp(-(d * d).sum(-1) - 1) / (y + 1); "
        "return e.sum(1), (e[..., None] * d).sum(1), e"
    )
    fp, call = made("pairs", Case(body, "torch.randn(40, 5)", "torch.rand(40)"))
    assert worst_ratio(fp, call) < numbers.RATIO
    plan = write(fp, LANGUAGES["cuda"])
    assert plan is not None
    over_columns = [text for text in plan.candidate.source.split("__global__")[1:] if "column_reduce" in text]
    assert over_columns and not any("rk_exp" in text for text in over_columns)


def test_running_logarithms_of_sums_are_as_exact_as_pytorchs(made: Made) -> None:
    """Each step rounds what all before it came to, which in float32 added up to 26 times PyTorch's error."""
    case = Case("return x.logcumsumexp(1), y.logcumsumexp(0)", "torch.randn(3, 1999) * 3", "torch.randn(1999, 3)")
    fp, call = made("running", case)
    assert worst_ratio(fp, call) < numbers.RATIO
