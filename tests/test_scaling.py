"""Shrinking a problem by its text: which sizes go first, and what holds together."""

from __future__ import annotations

import ast
import random

import pytest
from support.kept import kept_workers

from rag_kernels.eval.problem import load_module
from rag_kernels.eval.records import Problem, ProblemError
from rag_kernels.eval.sizes.fitting import fit, roomiest
from rag_kernels.eval.sizes.resizing import (
    fewer,
    free_sizes,
    grown,
    leaving_rest,
    odd_sizes,
    parts_of_sizes,
    scaled,
    with_sizes,
)
from rag_kernels.eval.sizes.text_sizes import difference
from rag_kernels.eval.sizes.tried_sizes import (
    Between,
    Few,
    Grown,
    Multiple,
    Packed,
    Rest,
    Rung,
    Square,
    Tiled,
    packed,
    tiles,
)
from rag_kernels.eval.zoo.problems import task
from rag_kernels.ingest.functional.functionalize import functionalize
from rag_kernels.ingest.functional.sizes import _search, at_other_sizes

CONV = """\
import torch
# a comment with ümläuts, so that byte and character offsets differ
class Model: ...
batch_size = 1024 * 4; channels = 64
height = width = 128
kernel_size = 3

def get_inputs():
    return [torch.rand(batch_size, channels, height, width)]

def get_init_inputs():
    return [channels, kernel_size]
"""


def values(problem: Problem) -> dict[str, int]:
    tree = ast.parse(problem.source)
    namespace: dict[str, int] = {}
    for statement in tree.body:
        if isinstance(statement, ast.Assign):
            exec(ast.unparse(statement), namespace)
    return {k: v for k, v in namespace.items() if isinstance(v, int)}


def elements(problem: Problem) -> int:
    """How many elements the inputs have, without torch's help."""
    module = load_module("scaled", problem.source)
    return sum(t.numel() for t in module.get_inputs())


def test_the_batch_goes_first() -> None:
    smaller = scaled(Problem("p", CONV), 1 / 64, reach="batch")
    assert smaller is not None
    assert values(smaller) == {"batch_size": 64, "channels": 64, "height": 128, "width": 128, "kernel_size": 3}
    assert difference(Problem("p", CONV), smaller) == "batch_size=64 instead of 4096"


@pytest.mark.parametrize("name", ["torch.randn", "lambda *sizes: torch.randn(*sizes, dtype=torch.float64)"])
def test_tensors_may_be_made_by_another_name(name: str) -> None:
    """The batch is known as such, and literals are sizes."""
    source = f"import torch\nB, H = 32, 64\n\ndef get_inputs():\n    r = {name}\n    return [r(B, H), r(B, 128)]\n"
    odd = odd_sizes(Problem("p", source), reach="batch")
    assert odd is not None and "B, H = 33, 64" in odd.source and "r(B, 128)" in odd.source
    every = odd_sizes(Problem("p", source), reach="inputs")
    assert every is not None and "B, H = 33, 65" in every.source and "r(B, 129)" in every.source


def test_sizes_of_the_module_go_last_and_small_numbers_stay() -> None:
    inputs_only, everything = (scaled(Problem("p", CONV), 1e-9, reach=reach) for reach in ("inputs", "all"))
    assert inputs_only is not None and everything is not None
    assert values(inputs_only)["channels"] == 64
    assert values(everything) == {"batch_size": 2, "channels": 32, "height": 16, "width": 16, "kernel_size": 3}


def test_literals_in_get_inputs_shrink_together_with_those_of_the_module() -> None:
    source = (
        "import torch\nclass Model: ...\n"
        "def get_inputs():\n    return [torch.rand(128, 4096), torch.randint(0, 10, (128,))]\n"
        "def get_init_inputs():\n    return [4096, 10]\n"
    )
    batch = scaled(Problem("p", source), 1 / 4, reach="batch")
    everything = scaled(Problem("p", source), 1 / 64)
    assert batch is not None and everything is not None
    assert "torch.rand(32, 4096), torch.randint(0, 10, (32,))" in batch.source
    assert "torch.rand(64, 128)" in everything.source and "return [128, 10]" in everything.source
    assert difference(Problem("p", source), batch) == "32 instead of 128"


def test_equal_sizes_stay_equal() -> None:
    source = (
        "import torch\nclass Model: ...\nrows = 4096\nshape = (4096,)\n"
        "def get_inputs():\n    return [torch.rand(rows, *shape), torch.rand(rows)]\n"
        "def get_init_inputs():\n    return []\n"
    )
    smaller = scaled(Problem("p", source), 1 / 100, reach="inputs")
    assert smaller is not None
    assert "rows = 256\nshape = (256,)" in smaller.source


def test_nothing_to_shrink_is_none() -> None:
    source = "def get_inputs():\n    return [3]\ndef get_init_inputs():\n    return []\n"
    assert scaled(Problem("p", source), 0.5) is None


@pytest.mark.parametrize("limit", [2**22, 2**16])
def test_fit_finds_a_problem_that_fits(limit: int) -> None:
    source = CONV.replace("1024 * 4", "64")
    smaller, notice = fit(Problem("p", source), max_bytes=limit, measure=elements)
    assert elements(smaller) <= limit < elements(Problem("p", source))
    assert "batch_size=" in notice and " instead of 64" in notice


def test_what_fits_is_as_large_as_it_can_be() -> None:
    """Halves of several sizes go far below what fits: they grow again by eighths, those of the module first."""
    problem = Problem("p", CONV.replace("1024 * 4", "64"))
    for limit in (2**22 + 2**19, 2**20, 3 * 2**17):
        least, _ = fit(problem, max_bytes=limit, measure=elements)
        found, told = roomiest(problem, least, max_bytes=limit, measure=elements)
        assert limit * 0.7 < elements(found) <= limit, told
        assert told == difference(problem, found)


def test_fit_leaves_a_problem_alone_that_fits_already() -> None:
    problem = Problem("p", CONV.replace("1024 * 4", "2"))
    assert fit(problem, max_bytes=2**40, measure=elements) == (problem, "")


def test_fit_tries_other_sizes_when_some_do_not_hold_together() -> None:
    def measure(problem: Problem) -> int:
        found = values(problem)
        if found["height"] < 128 and found["channels"] == 64:
            raise ProblemError("the height is baked into the module")
        return found["batch_size"] * found["channels"] * found["height"]

    smaller, _ = fit(Problem("p", CONV), max_bytes=2 * 32 * 16, measure=measure)
    assert values(smaller)["channels"] == 32


def test_fit_says_so_when_nothing_fits() -> None:
    with pytest.raises(ProblemError, match=r"could not be shrunk"):
        fit(Problem("p", CONV), max_bytes=10, measure=elements_of_values)


def elements_of_values(problem: Problem) -> int:
    found = values(problem)
    return found["batch_size"] * found["height"]


def test_of_a_range_only_the_end_is_a_size() -> None:
    source = CONV.replace(
        "torch.rand(batch_size, channels, height, width)", "torch.arange(0, 4096, 8), torch.arange(512)"
    )
    smaller = scaled(Problem("p", source), 1 / 16)
    assert smaller is not None and "torch.arange(0, 512, 8), torch.arange(256)" in smaller.source
    odd = odd_sizes(Problem("p", source), reach="inputs")
    assert odd is not None and "torch.arange(0, 4097, 8), torch.arange(513)" in odd.source
    fit(Problem("p", source), max_bytes=100, measure=elements)


def test_numbers_of_the_module_that_are_a_size_shrink_with_it_at_last() -> None:
    source = (
        "import torch\nROWS = 65536\nclass Model:\n    def f(self, x):\n        return x[65536 // 16 :], 65537, 16\n"
        "def get_inputs():\n    return [torch.rand(ROWS, 8)]\ndef get_init_inputs():\n    return []\n"
    )
    apart, together = (scaled(Problem("p", source), 1 / 16, reach=reach) for reach in ("all", "text"))
    assert apart is not None and "65536 // 16" in apart.source and "ROWS = 4096" in apart.source
    assert together is not None and "4096 // 16 :], 65537, 16" in together.source and "ROWS = 4096" in together.source
    assert scaled(Problem("p", CONV), 1e-9, reach="text") is None  # nothing of the kind: all sizes were tried before
    kept, grew = (roomiest(Problem("p", source), p, max_bytes=480_000, measure=elements)[0] for p in (together, apart))
    assert kept == together, "its numbers would not grow along"
    assert 4 * elements(apart) < elements(grew) <= 480_000


def test_one_size_grows_at_a_time_and_others_make_room() -> None:
    problem = Problem("p", CONV)
    largest = [grown(problem, number, times=8, shrink=1 / 64) for number in range(4)]
    told = [difference(problem, p) if p else None for p in largest]
    assert told[0] is not None and told[0].endswith("height=width=1024 instead of 128"), told
    assert told[1] is not None and "batch_size=32768 instead of 4096" in told[1], told
    assert told[2] is not None and "channels=512 instead of 64" in told[2], told
    assert told[3] is None  # a kernel of 3 is none
    tied = Problem("p", CONV.replace("channels = 64", "channels = 128"))
    alone, together = (grown(tied, 0, times=8, together=both) for both in (False, True))
    assert alone and together and values(alone)["channels"] == 128 and values(together)["channels"] == 1024


def test_two_sizes_may_be_alike_while_others_make_room() -> None:
    problem = Problem("p", CONV)
    square = with_sizes(problem, {0: 256, 1: 256}, shrink=1 / 2)
    assert square is not None and values(square) | {"kernel_size": 3} == {
        "batch_size": 256,
        "channels": 32,
        "height": 256,
        "width": 256,
        "kernel_size": 3,
    }
    assert with_sizes(problem, {3: 8}) is None, "there are three"


def test_parts_of_sizes_and_rests_of_vectors() -> None:
    source = "N = 1024\nM = 20\n\ndef get_inputs():\n    return [torch.rand(N, M)]\n"
    halves = parts_of_sizes(Problem("p", source), reach="all", times=3, parts=2)
    assert halves is not None and halves.source.startswith("N = 1536\nM = 30\n")
    eighths = parts_of_sizes(Problem("p", source), reach="all", times=9, parts=8)
    assert eighths is not None and eighths.source.startswith("N = 1152\nM = 20\n"), "20 has no eighths"
    rest = leaving_rest(Problem("p", source), reach="all", rest=81, of=128, vector=16)
    assert rest is not None and rest.source.startswith("N = 1105\nM = 81\n")
    several = source.replace("N = 1024\nM = 20", "N = 64\nM = 2\nK = 2\nL = 2").replace("N, M", "N, M, K, L")
    rest = leaving_rest(Problem("p", several), reach="all", rest=81, of=128, vector=16)
    assert rest is not None and rest.source.startswith("N = 81\nM = 3\nK = 3\nL = 3\n"), "too many elements"


def test_no_other_sizes_are_taken_for_one_another() -> None:
    several = {Grown(2), Rest(2, 2), Between(2, 2), Rung("batch", 2), Square(2, 2), Multiple(2, 2, 2), Tiled(2, 2, 2)}
    assert len(several | {Packed(2, 2, 2, second=False)}) == 8


def test_sizes_as_models_have_them() -> None:
    text = (
        "import torch\nROWS = 256\nCOLUMNS = 512\nclass Model(torch.nn.Module):\n"
        "    def forward(self, x):\n        return torch.relu(x)\n"
        "def get_inputs():\n    return [torch.randn(ROWS, COLUMNS)]\ndef get_init_inputs():\n    return []\n"
    )
    with kept_workers() as workers:
        fp = functionalize(Problem("p", text), workers=workers)
    last = list(free_sizes(fp.problem))[-1]
    assert last == "ROWS"
    tried = [Multiple(0, 1, 4), Multiple(1, 0, 4), Tiled(0, 5, 1024, shorter=True), Tiled(1, 5, 1024, shorter=True)]
    told = [difference(fp.problem, next(_search(fp, fp, sizes))) for sizes in tried]
    assert told == [
        "ROWS=1024 instead of 256, COLUMNS=256 instead of 512",
        "COLUMNS=1024 instead of 512",
        "ROWS=1280 instead of 256, COLUMNS=256 instead of 512",
        "ROWS=128 instead of 256, COLUMNS=2560 instead of 512",
    ], told
    assert tiles(random.Random(1))[0].times == 5, "which come first, as time may be short"
    two = [difference(fp.problem, next(_search(fp, fp, Packed(0, 1, 20, second)))) for second in (False, True)]
    assert two == ["ROWS=20 instead of 256, COLUMNS=2560 instead of 512", "ROWS=21 instead of 256"], two
    tried = packed(random.Random(1))
    assert all(b == a._replace(second=True) for a, b in zip(tried[::2], tried[1::2], strict=True))


@pytest.mark.parametrize(("rows", "columns"), [(8192, 4096), (512, 4096), (1024, 1 << 14)])
def test_a_large_problem_keeps_its_lines_where_its_batch_gives_room(rows: int, columns: int) -> None:
    source = task("x.sum(-1)", "torch.randn(ROWS, COLUMNS)", sizes=f"ROWS, COLUMNS = {rows}, {columns}")
    with kept_workers() as workers:
        (small,) = at_other_sizes(functionalize(Problem("sums", source), workers=workers), ["small"], workers)
    assert small is not None
    found = small.tensors[0].spec.shape
    assert found[1] == columns and 16 <= found[0] < rows


def test_few_of_one_size_may_be_long() -> None:
    source = "N = 256\nM = 512\n\ndef get_inputs():\n    return [torch.rand(N, M)]\n"
    lone = fewer(Problem("p", source), 1, 3, times=4)
    assert lone is not None and lone.source.startswith("N = 3\nM = 2049\n"), lone


def test_one_size_at_one_does_not_make_another_problem_of_it() -> None:
    """A sum of a column and a row has the form of neither, as the problem's own sums have."""
    source = task("F.silu(x + self.bias)", "torch.rand(33, 57)", setup="self.bias = nn.Parameter(torch.zeros(57))")
    with kept_workers() as workers:
        added = functionalize(Problem("added", source), workers=workers)
        few = at_other_sizes(added, [Few("all", number, 1) for number in range(4)], workers)
    found = [form for form in few if form is not None]
    assert found
    assert all(form.tensors[0].spec == form.outputs[0] for form in found), [form.notice for form in found]


def test_one_size_may_be_one_alone_or_with_those_equal_to_it() -> None:
    problem = Problem("p", CONV)
    ones = [fewer(problem, number, 1) for number in range(4)]
    told = [difference(problem, p) if p else None for p in ones]
    assert told == ["height=width=1 instead of 128", "batch_size=1 instead of 4096", "channels=1 instead of 64", None]
    tied = Problem("p", CONV.replace("channels = 64", "channels = 128"))
    alone, together = (fewer(tied, 0, 5, together=both) for both in (False, True))
    assert alone and together and values(alone)["channels"] == 128 and values(together)["channels"] == 5
    assert fewer(problem, 2, 64) is None  # no fewer
