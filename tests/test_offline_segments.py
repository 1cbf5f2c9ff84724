"""Bags and segments in both languages: long, skewed and empty ones, columns of any number, offsets at the end."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
import torch
from support.both_languages import LANGUAGES, Made, compared, maker
from support.generated_kernels import Case, functional

from rag_kernels.offline.compose import write


@pytest.fixture(params=LANGUAGES)
def made(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Made:
    return maker(request.param, tmp_path, monkeypatch)


def offsets(*lengths: int) -> torch.Tensor:
    """Return where segments begin, and where the last one ends."""
    return torch.tensor([0, *lengths]).cumsum(0)


KINDS = ("sum", "mean", "max", "min")
SEGMENTS = "return " + ", ".join(f"torch.segment_reduce(x, '{how}', offsets=y)" for how in KINDS)
LENGTHS = [  # the last ones are more than a stretch that a block joins by itself
    (3, 0, 5, 1, 0),
    (0, 0, 70, 0, 1, 0),
    (2000, 1, 0, 513, 512, 7),
    (1, 1300),
    *((9, 9, 130, 9, 9, 9, 9, 9, 0, 9, 40) * n for n in (1, 3)),
]


@pytest.mark.parametrize("columns", ["8", "3", "3, 4", ""])
def test_segments_of_any_length(columns: str, made: Made) -> None:
    """Of vectors, of columns that are none, of several dimensions, and of single numbers."""
    shape = f"9, {columns}" if columns else "9"
    fp, call = made("segments", Case(SEGMENTS, f"torch.randn({shape})", "torch.tensor([0, 3, 3, 8, 9])"))
    for lengths in LENGTHS:
        bounds = offsets(*lengths)
        x = torch.randn(int(bounds[-1]), *(int(n) for n in columns.split(",") if n))
        x[0] = -torch.inf
        compared(fp, call, x, bounds, tolerance=3e-5)


def test_few_long_segments_of_many_columns(made: Made) -> None:
    fp, call = made("wide_segments", Case(SEGMENTS, "torch.randn(9, 160)", "torch.tensor([0, 3, 9])"))
    for lengths in ((1100,), (40, 700), (0, 0)):
        compared(fp, call, torch.randn(sum(lengths), 160), offsets(*lengths), tolerance=3e-5)


@pytest.mark.parametrize("how", ["sum", "mean", "max"])
def test_bags_leave_out_what_pads(how: str, made: Made) -> None:
    """Rows of a table, with a weight each where they are summed; a bag of nothing but padding is zero."""
    weights = ", per_sample_weights=x[:, 1]" if how == "sum" else ""
    body = (
        "i = (x[:, 0] * 97).long().abs() % 7; o = y[:-1];"
        f"return F.embedding_bag(i, x, o, mode='{how}', padding_idx=3{weights}),"
        f"F.embedding_bag(i, x, y, mode='{how}', include_last_offset=True),"
        f"F.embedding_bag(i, x[:, :3], o, mode='{how}')"
    )
    fp, call = made("bags", Case(body, "torch.randn(9, 4)", "torch.tensor([0, 3, 3, 8, 9])"))
    for lengths in LENGTHS:
        bounds = offsets(*lengths)
        x = torch.randn(int(bounds[-1]), 4)
        x[: lengths[0], 0] = 3 / 97 + 1e-4  # of the padding
        compared(fp, call, x, bounds, tolerance=2e-4)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_segments_of_other_floats(dtype: str, made: Made) -> None:
    """Sums run in float32 at least, and are rounded once."""
    case = Case("return torch.segment_reduce(x, 'sum', offsets=y)", f"torch.randn(9, 16).to(torch.{dtype})", "offsets")
    fp, call = made("sixteen", Case(case.body, case.x, "torch.tensor([0, 3, 3, 8, 9])"))
    x, bounds = torch.randn(640, 16).to(getattr(torch, dtype)), offsets(5, 600, 0, 35)
    wide = [x[a:b].double().sum(0) for a, b in pairwise(bounds)]
    ours = torch.full((4, 16), 99.0).to(x.dtype)
    module = next(c.cell_contents for c in call.__closure__ or () if hasattr(c.cell_contents, "forward"))
    module.forward(x, bounds, *(v for _, v in fp.abi_constants), ours)
    torch.testing.assert_close(ours.double(), torch.stack(wide), rtol=1e-2 if dtype != "float64" else 1e-12, atol=1e-2)


def test_segments_by_lengths(made: Made) -> None:
    fp, call = made(
        "lengths",
        Case("return torch.segment_reduce(x, 'max', lengths=y)", "torch.randn(9, 4)", "torch.tensor([4, 0, 5])"),
    )
    for lengths in ((1, 2, 3), (0, 7), (600, 3, 0, 900)):
        compared(fp, call, torch.randn(sum(lengths), 4), torch.tensor(lengths))


RISING = {
    "repeated": (
        "i = torch.repeat_interleave(torch.arange(y.shape[0], device=x.device), y, output_size=x.shape[0])",
        "torch.tensor([4, 0, 5])",
        lambda lengths: torch.tensor(lengths),
    ),
    "looked up": (
        "i = torch.searchsorted(y, torch.arange(x.shape[0], device=x.device), right=True) - 1",
        "torch.tensor([0, 4, 4])",
        lambda lengths: offsets(*lengths)[:-1],
    ),
    "by ends": (
        "i = torch.bucketize(torch.arange(x.shape[0], device=x.device), y, right=True)",
        "torch.tensor([4, 4, 9])",
        lambda lengths: offsets(*lengths)[1:],
    ),
}


@pytest.mark.parametrize("name", RISING)
def test_sums_by_an_index_that_rises_are_segments(name: str, made: Made) -> None:
    """Lengths of sequences, or bounds, say where rows go."""
    index, y, lengths_to = RISING[name]
    body = (
        f"{index}; z = x.new_zeros(3, x.shape[1]);"
        "return z.index_add(0, i, x, alpha=2), (z + 1).index_add(0, i, x),"
        "z.scatter_add(0, i[:, None].expand(-1, x.shape[1]), x), z[:, 0].index_add(0, i, x[:, 0])"
    )
    case = Case(body, "torch.randn(9, 4)", y)
    fp, call = made("rising", case)
    plan = write(fp, LANGUAGES["cuda"])
    assert plan is not None and "join_sum" not in plan.candidate.source
    for lengths in ((4, 0, 5), (0, 0, 9), (9, 0, 0)):
        compared(fp, call, torch.randn(sum(lengths), 4), lengths_to(lengths))


@pytest.mark.parametrize(("rows", "right", "found"), [("9", True, True), ("1, 10", True, False), ("9", False, False)])
def test_sums_by_an_index_of_another_form_are_scattered(rows: str, right: bool, found: bool) -> None:
    """One that counts from one, or that is asked from the left."""
    index = f"torch.bucketize(torch.arange({rows}), y, right={right})"
    case = Case(f"return x.new_zeros(3, 4).index_add(0, {index}, x)", "torch.randn(9, 4)", "torch.tensor([4, 4, 10])")
    plan = write(functional("other", case), LANGUAGES["cuda"])
    assert plan is not None and ("segments::" in plan.candidate.source) is found


def test_nothing_is_joined_atomically_and_no_place_is_looked_up() -> None:
    plan = write(functional("few", Case(SEGMENTS, "torch.randn(9, 8)", "torch.tensor([0, 3, 9])")), LANGUAGES["cuda"])
    assert (
        plan is not None
        and "atomicAdd(" not in plan.candidate.source
        and "segments::meet<Sum>" in plan.candidate.source
    )
    assert plan.regions == 4  # one for each result
