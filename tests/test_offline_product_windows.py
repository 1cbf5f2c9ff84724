"""Convolutions and odd factors as the copy engine reads them: windows, pieces of images, and copies."""

from __future__ import annotations

from pathlib import Path

import pytest
from emulated_cuda import build_emulated
from support import generated_kernels as numbers
from support.generated_kernels import Case, halved
from support.tensor_core_drafts import drafted, for_hopper, limit, ratio

from rag_kernels.offline.cuda.function import CudaParameters


@pytest.fixture(autouse=True)
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numbers, "build", build_emulated)


# Factors whose rows begin anywhere, and two of TF32 whose lanes lie side by side: the copy engine gets copies.
COPIED = {
    "odd": (
        halved(
            Case(
                "return F.relu(self.l(x))", "torch.randn(131, 67)", "torch.randn(1)", init="self.l = nn.Linear(67, 133)"
            ),
            "bfloat16",
        ),
        CudaParameters(products=2),
    ),
    "odd batches": (
        halved(Case("return x @ y", "torch.randn(2, 130, 35)", "torch.randn(2, 35, 129)"), "float16"),
        CudaParameters(products=2),
    ),
    "both by lanes, in batches": (
        Case("return x.transpose(1, 2) @ y", "torch.randn(3, 70, 130)", "torch.randn(3, 70, 137)"),
        CudaParameters(products=2, tensor=2),
    ),
}


@pytest.mark.parametrize("name", COPIED)
def test_what_the_copy_engine_cannot_read_is_copied_for_it(name: str, tmp_path: Path) -> None:
    case, parameters = COPIED[name]
    fp, plan = drafted(name, case, parameters, regions=1)
    assert ratio(for_hopper(plan), fp, tmp_path) < limit(parameters)


# Windows in one, two and three dimensions: strides, paddings and dilations that are not alike, tiles that span images,
# lines of 128, 64 and 32 bytes, pairs of blocks, a split depth, a filter that is turned around, fp32 as TF32.
WINDOWS = {
    "a tail": (
        halved(
            Case(
                "return F.gelu(self.c(x)) + y",
                "torch.randn(3, 72, 9, 7)",
                "torch.randn(3, 35, 4, 7)",
                init="self.c = nn.Conv2d(72, 35, (3, 5), (2, 1), (1, 2), (2, 1))",
            ),
            "float16",
        ),
        CudaParameters(products=2, shape=128128, clusters=2, turns=2),
    ),
    "eight places at once": (
        halved(
            Case(
                "return self.c(x).relu() * y",
                "torch.randn(2, 16, 6, 12)",
                "torch.randn(2, 72, 6, 12)",
                init="self.c = nn.ConvTranspose2d(16, 72, 3, padding=1)",
            ),
            "bfloat16",
        ),
        CudaParameters(products=2),
    ),
    "three dimensions": (
        halved(
            Case(
                "return self.c(x)",
                "torch.randn(2, 32, 5, 6, 7)",
                "torch.randn(1)",
                init="self.c = nn.Conv3d(32, 40, 3, (1, 2, 1), (0, 1, 2))",
            ),
            "bfloat16",
        ),
        CudaParameters(products=2),
    ),
    "one dimension": (
        halved(
            Case(
                "return self.c(x).sigmoid()",
                "torch.randn(2, 20, 70)",
                "torch.randn(1)",
                init="self.c = nn.Conv1d(20, 40, 5, 3, 2, 2)",
            ),
            "float16",
        ),
        CudaParameters(products=2, shape=128256, clusters=2, turns=1),
    ),
    "tf32": (
        Case(
            "return self.c(x)",
            "torch.randn(2, 24, 9, 11)",
            "torch.randn(1)",
            init="self.c = nn.Conv2d(24, 40, 3, padding=2)",
        ),
        CudaParameters(products=2, tensor=2),
    ),
    "phases": (
        Case(
            "return F.gelu(self.c(x) - y)",
            "torch.randn(3, 20, 5, 9)",
            "torch.randn(36, 1, 1)",
            init="self.c = nn.ConvTranspose2d(20, 36, (5, 3), (3, 2), (1, 2), (1, 1), dilation=(2, 1))",
        ),
        CudaParameters(products=2, tensor=2),
    ),
    "phases of one dimension of three": (
        halved(
            Case(
                "return self.c(x)",
                "torch.randn(2, 16, 3, 5, 4)",
                "torch.randn(1)",
                init="self.c = nn.ConvTranspose3d(16, 33, (2, 4, 3), (1, 2, 1), (0, 1, 1))",
            ),
            "bfloat16",
        ),
        CudaParameters(products=2, shape=128128, clusters=2),
    ),
    "groups": (
        halved(
            Case(
                "return self.c(x).relu()",
                "torch.randn(2, 48, 6, 7)",
                "torch.randn(1)",
                init="self.c = nn.Conv2d(48, 99, 3, padding=1, groups=3)",
            ),
            "bfloat16",
        ),
        CudaParameters(products=2),
    ),
    "groups of tf32": (
        Case(
            "return F.conv2d(x, y, padding=(0, 1), groups=5)",
            "torch.randn(1, 80, 9, 8)",
            "torch.randn(200, 16, 3, 3)",
        ),
        CudaParameters(products=2, tensor=2, shape=128128, clusters=2),
    ),
}


@pytest.mark.parametrize("name", WINDOWS)
def test_the_copy_engine_reads_windows(name: str, tmp_path: Path) -> None:
    case, parameters = WINDOWS[name]
    fp, plan = drafted(name, case, parameters, "tma_load_window", regions=1)
    beside = name in ("a tail", "eight places at once")  # a tensor as the result's, of which rows are loaded early
    assert ("const float* ahead" in plan.candidate.source) == beside
    assert ratio(for_hopper(plan), fp, tmp_path) < limit(parameters)


# The same over pieces of images, each loaded once for all places of the window: edges, dilation, phases of which a
# piece has both, slices of three dimensions with a stride, results stored one by one and several together.
PIECES = {
    "a piece and its surroundings": (
        Case(
            "return self.c(x)",
            "torch.randn(1, 12, 13, 35)",
            "torch.randn(1)",
            init="self.c = nn.Conv2d(12, 40, (5, 3), padding=(1, 2), dilation=(1, 2))",
        ),
        CudaParameters(products=2, tensor=2, turns=3),
    ),
    "both phases": (
        Case(
            "return F.gelu(self.c(x) - y)",
            "torch.randn(2, 20, 5, 19)",
            "torch.randn(70, 1, 1)",
            init="self.c = nn.ConvTranspose2d(20, 70, (5, 3), (3, 2), (1, 1), (1, 0), dilation=(2, 1))",
        ),
        CudaParameters(products=2, tensor=2, turns=3),
    ),
    "slices": (
        halved(
            Case(
                "return self.c(x).relu() * y",
                "torch.randn(2, 8, 5, 9, 16)",
                "torch.randn(2, 20, 2, 9, 16)",
                init="self.c = nn.Conv3d(8, 20, 3, (2, 1, 1), (0, 1, 1))",
            ),
            "bfloat16",
        ),
        CudaParameters(products=2, turns=3),
    ),
}


@pytest.mark.parametrize("name", PIECES)
def test_pieces_of_images_come_with_their_surroundings(name: str, tmp_path: Path) -> None:
    case, parameters = PIECES[name]
    fp, plan = drafted(name, case, parameters, "tma_chunks", regions=1)
    assert ("wide_tail" in plan.candidate.source) == (name == "slices")
    assert ratio(for_hopper(plan), fp, tmp_path) < limit(parameters)


TF32 = CudaParameters(products=2, tensor=2)

# The same with pixels that go through registers, from the images as they lie: rows of results that begin anywhere and
# at sixteen bytes, few channels and several steps of them, odd and even numbers of places, phases, slices.
PIXELS = {
    "rows that begin anywhere": (
        Case(
            "return self.c(x)",
            "torch.randn(2, 12, 13, 36)",
            "torch.randn(1)",
            init="self.c = nn.Conv2d(12, 40, (5, 3), padding=(1, 2), dilation=(1, 2))",
        ),
        False,
    ),
    "few channels": (
        Case(
            "return F.gelu(self.c(x)) + y",
            "torch.randn(2, 3, 9, 72)",
            "torch.randn(2, 70, 7, 70)",
            init="self.c = nn.Conv2d(3, 70, 3)",
        ),
        False,
    ),
    "steps of channels": (
        Case(
            "return self.c(x).relu() * y",
            "torch.randn(1, 72, 10, 72)",
            "torch.randn(64, 10, 72)",
            init="self.c = nn.Conv2d(72, 64, 3, padding=1)",
        ),
        True,
    ),
    "one place": (
        Case(
            "return self.c(x).relu() * y",
            "torch.randn(2, 40, 9, 36)",
            "torch.randn(100, 9, 36)",
            init="self.c = nn.Conv2d(40, 100, 1)",
        ),
        False,
    ),
    "both phases": (
        Case(
            "return F.gelu(self.c(x) - y)",
            "torch.randn(2, 20, 5, 20)",
            "torch.randn(70, 1, 1)",
            init="self.c = nn.ConvTranspose2d(20, 70, (5, 3), (3, 2), (1, 1), (1, 0), dilation=(2, 1))",
        ),
        False,
    ),
    "slices": (
        Case(
            "return self.c(x).relu() * y",
            "torch.randn(2, 8, 5, 9, 16)",
            "torch.randn(2, 20, 2, 9, 16)",
            init="self.c = nn.Conv3d(8, 20, 3, (2, 1, 1), (0, 1, 1))",
        ),
        True,
    ),
}


@pytest.mark.parametrize("name", PIXELS)
def test_pixels_go_through_registers_and_nothing_is_copied(name: str, tmp_path: Path) -> None:
    case, wide = PIXELS[name]
    parameters = CudaParameters(products=2, tensor=2, turns=4)
    fp, plan = drafted(name, case, parameters, "row_of_piece", regions=1)
    assert ("wide_tail" in plan.candidate.source) == wide
    assert ratio(for_hopper(plan), fp, tmp_path) < limit(parameters)


# What all pixels or filters come to: images of odd sizes and of several pieces, rows that begin anywhere, phases whose
# last pixels are beyond the end, slices, two reductions, and a factor for each pixel.
JOINED = {
    "a mean": Case(
        "return F.relu(self.c(x) + 1).mean((2, 3)) * 2",
        "torch.randn(30, 3, 9, 72)",
        "torch.randn(1)",
        init="self.c = nn.Conv2d(3, 35, 3)",
    ),
    "two of phases": Case(
        "h = self.c(x).abs() * y; return h.amax((2, 3), keepdim=True), h.sum((2, 3)).sum(1)",
        "torch.randn(15, 20, 5, 20)",
        "torch.randn(19, 39)",
        init="self.c = nn.ConvTranspose2d(20, 70, (5, 3), (3, 2), (1, 1), dilation=(2, 1))",
    ),
    "slices": Case(
        "return self.c(x).amin((2, 3, 4))",
        "torch.randn(64, 8, 4, 6, 16)",
        "torch.randn(1)",
        init="self.c = nn.Conv3d(8, 20, 3, (2, 1, 1), (0, 1, 1))",
    ),
    "filters": Case(
        "return F.relu6(self.c(x)).amin(1, keepdim=True).tanh()",
        "torch.randn(2, 12, 13, 36)",
        "torch.randn(1)",
        init="self.c = nn.Conv2d(12, 70, (5, 3), padding=(1, 2), dilation=(1, 2))",
    ),
    "filters of phases": Case(
        "h = self.c(x) * y; return h.sum(1), h.amax(1)",
        "torch.randn(2, 20, 5, 20)",
        "torch.randn(40, 19, 39)",
        init="self.c = nn.ConvTranspose2d(20, 40, (5, 3), (3, 2), (1, 1), dilation=(2, 1))",
    ),
}


@pytest.mark.parametrize("name", JOINED)
def test_what_all_pixels_or_filters_come_to_is_stored_in_their_place(name: str, tmp_path: Path) -> None:
    parameters = CudaParameters(products=2, tensor=2, turns=4)
    fp, plan = drafted(name, JOINED[name], parameters, "forward_0_joined")
    assert ("tma_join_pieces<<<" in plan.candidate.source) != ("filters" in name)
    assert ratio(for_hopper(plan), fp, tmp_path) < limit(parameters)
    assert ratio(plan, fp, tmp_path / "apart") < limit(parameters)


STORED = {
    "read again": Case(
        "h = self.c(x); return h, h.mean((2, 3))",
        "torch.randn(30, 3, 9, 72)",
        "torch.randn(1)",
        init="self.c = nn.Conv2d(3, 35, 3)",
    ),
    "few": Case(
        "return self.c(x).mean((2, 3))",
        "torch.randn(2, 3, 99, 72)",
        "torch.randn(1)",
        init="self.c = nn.Conv2d(3, 35, 3)",
    ),
    "a costly function of each": Case(
        "return F.gelu(self.c(x)).mean((2, 3))",
        "torch.randn(30, 3, 9, 72)",
        "torch.randn(1)",
        init="self.c = nn.Conv2d(3, 35, 3)",
    ),
    "some pixels": Case(
        "return self.c(x).sum(2)",
        "torch.randn(2, 8, 4, 6, 16)",
        "torch.randn(1)",
        init="self.c = nn.Conv3d(8, 20, 3, padding=(0, 1, 1))",
    ),
    "more filters than a tile has": Case(
        "return self.c(x).amax(1)", "torch.randn(2, 12, 9, 36)", "torch.randn(1)", init="self.c = nn.Conv2d(12, 150, 3)"
    ),
}


@pytest.mark.parametrize("name", STORED)
def test_pixels_are_stored_where_a_tile_has_not_all_that_is_read(name: str) -> None:
    source = drafted(name, STORED[name], CudaParameters(products=2, tensor=2, turns=4))[1].candidate.source
    assert "row_of_piece" in source and "_joined" not in source


def test_pixels_go_through_registers_where_there_are_tiles_for_all_processors() -> None:
    init = "self.c = nn.Conv2d(8, 16, 3)"
    many = Case("return self.c(x).relu()", "torch.randn(16, 8, 60, 64)", "torch.randn(1)", init=init)
    few = Case("return self.c(x).relu()", "torch.randn(4, 8, 60, 64)", "torch.randn(1)", init=init)
    texts = [drafted(name, case, TF32)[1].candidate.source for name, case in (("many", many), ("few", few))]
    assert ["row_of_piece" in text for text in texts] == [True, False]


def test_windows_of_one_place_go_through_registers_where_tiles_are_very_many() -> None:
    sizes = {"one_many": "torch.randn(16, 16, 256, 256)", "one_few": "torch.randn(16, 16, 128, 256)"}
    body = ("return self.c(x).relu()", "torch.randn(1)")
    cases = {n: Case(body[0], size, body[1], init="self.c = nn.Conv2d(16, 16, 1)") for n, size in sizes.items()}
    texts = [drafted(name, case, TF32)[1].candidate.source for name, case in cases.items()]
    assert ["row_of_piece" in text for text in texts] == [True, False]


def test_divisions_behind_tf32_sums_call_nothing() -> None:
    case = Case("return F.silu(self.l(x))", "torch.randn(128, 64)", "torch.randn(1)", init="self.l = nn.Linear(64, 64)")
    texts = [drafted("silu", case, CudaParameters(products=2, tensor=tensor))[1].candidate.source for tensor in (1, 2)]
    assert ["rk_divide_near(" in text for text in texts] == [False, True]


def test_a_factor_that_goes_by_places_knows_where_it_is(tmp_path: Path) -> None:
    """An identity is subtracted from each matrix of a row: a table of addresses would not say which element it is."""
    case = Case(
        "return (x[:, 1:] - torch.eye(3)).reshape(40, -1) @ y", "torch.randn(40, 8, 3, 3)", "torch.randn(63, 130)"
    )
    parameters = CudaParameters(products=2)
    fp, plan = drafted("identity", case, parameters, regions=1)
    assert ratio(plan, fp, tmp_path) < numbers.RATIO
