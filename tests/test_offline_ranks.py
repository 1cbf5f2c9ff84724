"""Elements of a rank, the first few of long lanes, and short sorts, in both languages: ties, NaN, one element.

Of equal elements those come first that stand first, so that every index is known.
"""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from support.both_languages import LANGUAGES, Made, call_into, compared, maker
from support.generated_kernels import Case, functional

from rag_kernels.offline.compose import write


@pytest.fixture(params=LANGUAGES)
def made(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Made:
    return maker(request.param, tmp_path, monkeypatch)


def lanes(length: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return lanes that are hard to choose from: in order, of few numbers, of one, of a narrow range, with NaN."""
    x = torch.randn(8, length)
    x[1], x[2] = torch.arange(length), -torch.arange(length)
    x[3], x[4], x[5] = (x[3] * 2).round(), 0.5, 1 + torch.rand(length) / 1000
    x[6, ::7], x[6, ::5], x[6, 1::9] = math.inf, -0.0, -math.inf
    x[7, ::3], x[7, 1::4] = math.nan, math.inf
    if not dtype.is_floating_point:
        x = x.nan_to_num(0, 99, -99) * (1000 if dtype is torch.int64 else 1)
    return x.to(dtype) * (1 << 40) if dtype is torch.int64 else x.to(dtype)


def of_rank(x: torch.Tensor, rank: int, *, nans: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what is at a rank of each lane, and where; with `nans` the first NaN if there is any."""
    values, places = torch.sort(x, dim=-1, stable=True)
    found = torch.full((x.shape[0],), rank)
    if nans and x.is_floating_point():
        many = x.isnan().sum(-1)
        found = torch.where(many > 0, x.shape[-1] - many, found)
    return values.gather(1, found[:, None])[:, 0], places.gather(1, found[:, None])[:, 0]


def same(ours: torch.Tensor, theirs: torch.Tensor, told: object) -> None:
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True, msg=lambda m: f"{told}: {m}")


@pytest.mark.parametrize("written_for", [40, 1500])
def test_elements_of_a_rank(written_for: int, made: Made) -> None:
    """In the registers of a warp, by a block that counts digits, and by many blocks where lanes are few and long."""
    body = (
        "return *x.median(1), *x.kthvalue(1, 1), *y.kthvalue(x.shape[1] * 0 + 2, 1), *y.median(1), x.quantile(0.3, 1)"
    )
    case = Case(body, f"torch.randn(8, {written_for})", f"torch.randint(-9, 9, (8, {written_for}))")
    fp, call = made("ranks", case)
    for length in (2, 31, 64, 1023, 1025, 3000):
        x, y = lanes(length), lanes(length, torch.int64)
        shapes = [(torch.empty(8), torch.empty(8, dtype=torch.int64))] * 2
        shapes += [(torch.empty(8, dtype=torch.int64), torch.empty(8, dtype=torch.int64))] * 2
        outputs = [*(torch.full_like(t, 99) for pair in shapes for t in pair), torch.empty(8)]
        call_into(call, (x, y), outputs, fp)
        asked = [(x, (length - 1) // 2, True), (x, 0, False), (y, 1, False), (y, (length - 1) // 2, False)]
        for (v, rank, nans), ours in zip(asked, zip(outputs[:-1:2], outputs[1::2], strict=True), strict=True):
            for mine, wanted in zip(ours, of_rank(v, rank, nans=nans), strict=True):
                same(mine, wanted, (length, rank, v.dtype))
        clean = ~x.isinf().any(1)
        torch.testing.assert_close(outputs[-1][clean], x.quantile(0.3, 1)[clean], rtol=1e-6, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64"])
def test_ranks_of_few_long_lanes(dtype: str, made: Made) -> None:
    """Blocks share the first digits; what those leave is gathered, or counted further where it is too much."""
    kind = getattr(torch, dtype)
    text = f"torch.arange(8 * 33000).reshape(8, 33000).to(torch.{dtype})"
    fp, call = made(
        "long_ranks", Case("return *x.median(1), *x.topk(40, 1), *x.topk(3, 1, False)", text, "torch.randn(1)")
    )
    for length in (16500, 33001):
        x = lanes(length, kind)
        outputs = [torch.full(size, 99).to(d) for size in ((8,), (8, 40), (8, 3)) for d in (kind, torch.int64)]
        call_into(call, (x, torch.randn(1)), outputs, fp)
        for mine, wanted in zip(outputs, of_rank(x, (length - 1) // 2, nans=True), strict=False):
            same(mine, wanted, (length, "median"))
        for many, down, found in ((40, True, outputs[2:4]), (3, False, outputs[4:])):
            order = torch.sort(x, dim=1, descending=down, stable=True)[1][:, :many]
            same(found[1], order, (length, many))
            same(found[0], x.gather(1, order), (length, many))


def test_short_lanes_of_any_length_are_sorted(made: Made) -> None:
    """A part of a warp has a lane, or several warps: whole lanes and the first few, of four bytes and of eight."""
    body = "return *torch.sort(x + 0, dim=1, stable=True), *torch.sort(y, 1, True), *x.topk(2)"
    fp, call = made("short", Case(body, "torch.randn(8, 40)", "torch.randint(-9, 9, (8, 40))"))
    for length in (2, 3, 8, 9, 31, 64, 100, 257, 1000, 1024, 2048):
        x, y = lanes(length), lanes(length, torch.int64)
        places = torch.empty(8, length, dtype=torch.int64)
        outputs = [torch.empty_like(x), places, torch.empty_like(y), places.clone(), x.new_empty(8, 2)]
        outputs.append(torch.empty(8, 2, dtype=torch.int64))
        call_into(call, (x, y), outputs, fp)
        wanted = [*torch.sort(x, dim=1, stable=True), *torch.sort(y, dim=1, descending=True, stable=True)]
        first = torch.sort(x, dim=1, descending=True, stable=True)
        for number, (mine, theirs) in enumerate(zip(outputs, [*wanted, *(t[:, :2] for t in first)], strict=True)):
            same(mine, theirs, (length, number))


def test_one_element_and_none(made: Made) -> None:
    fp, call = made(
        "one",
        Case("return *x.median(1), *x.kthvalue(1, 1), *x.topk(1), y.median()", "torch.randn(3, 1)", "torch.randn(1)"),
    )
    outputs = [torch.full((3, *rest), 99).to(d) for rest in ((), (), (1,)) for d in (torch.float32, torch.int64)]
    x, y = torch.randn(3, 1), torch.tensor([math.nan])
    call_into(call, (x, y), [*outputs, one := torch.empty(())], fp)
    assert all(torch.equal(found.view(3), x[:, 0]) for found in outputs[::2]) and one.isnan()
    assert not any(found.any() for found in outputs[1::2])


def test_no_lane_is_sorted_for_one_element() -> None:
    case = Case("return *x.median(1), *x.kthvalue(3, 1), x.quantile(0.5, 1)", "torch.randn(8, 500)", "torch.randn(1)")
    for parameters in LANGUAGES.values():
        plan = write(functional("no_sort", case), parameters)
        assert plan is not None and "order::pick" in plan.candidate.source
        assert "sort_lanes" not in plan.candidate.source and "order::run<" not in plan.candidate.source
        host = plan.candidate.source.partition("void forward_kernel(")[2]
        assert host and (parameters is LANGUAGES["cpp"] or "rk_" not in host)  # functions of the device


def test_what_nobody_reads_of_a_sort_is_not_stored(made: Made) -> None:
    """Elements without their places, and places without elements; a thread finds the median of a window alone."""
    windows = "x.unfold(1, 5, 1).median(-1).values"
    body = (
        f"return torch.sort(x, 1)[0].cumsum(1), torch.argsort(x, dim=1, stable=True)[:, 1:].sum(1) + y, {windows} + y"
    )
    fp, call = made("unread", Case(body, "torch.randn(8, 20)", "torch.randn(1)"))
    compared(fp, call, lanes(20), torch.randn(1))
    for language, parameters in LANGUAGES.items():
        plan = write(fp, parameters)
        assert plan is not None
        lines = plan.candidate.source.splitlines()
        stores = {
            line.strip() for line in lines if line.strip().endswith(("[at] = from;", "[at] = element(lane, from);"))
        }
        assert len(stores) == 3, stores
        assert (language == "cuda") == ("order::pick_alone(" in plan.candidate.source)
