"""Errors that are small beside what outputs are held against: of small elements, and of factors with few bits."""

from functools import partial

import pytest
import torch

from rag_kernels.eval.machine.full_memory import ran_out_of_memory
from rag_kernels.eval.numerics.compare import compare
from rag_kernels.eval.numerics.cut_factors import BITS, COARSER, goes_with, middle
from rag_kernels.eval.numerics.input_draws import redraw
from rag_kernels.eval.numerics.octaves import small_fault
from rag_kernels.eval.numerics.rounding_noise import Perturbed, through, to_tf32
from rag_kernels.eval.traits.input_kinds import BURST

GEN = torch.Generator().manual_seed(0)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def gated(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return a gate's input, what it gives in this dtype, and what is right."""
    x = (5 * torch.randn(512, 512, generator=GEN)).to(dtype)
    return x, torch.nn.functional.silu(x), torch.nn.functional.silu(x.double())


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_wrong_where_it_is_small_is_found(dtype: torch.dtype) -> None:
    x, own, exact = gated(dtype)
    least = 8.0 if dtype == torch.bfloat16 else 10.5
    clamped = (x.double() / (1 + (-x.double()).clamp(max=least).exp())).to(dtype)
    other = (x.float() * torch.sigmoid(x.float())).to(dtype)
    if dtype == torch.float32:
        clamped = torch.where(x < -12, 0.0, own)
        assert compare(clamped, own, exact).ok  # by rows it is hidden
    assert small_fault(clamped, own, exact) is not None
    assert small_fault(other, own, exact) is None


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_small_because_it_cancels_is_no_fault(dtype: torch.dtype) -> None:
    a, b = (torch.randn(256, 256, generator=GEN).to(dtype) for _ in range(2))
    own, exact = a @ b, a.double() @ b.double()
    blocked = torch.stack([a[:, i : i + 16].float() @ b[i : i + 16].float() for i in range(0, 256, 16)])
    one_by_one = torch.zeros(256, 256)
    for part in blocked:
        one_by_one += part
    assert small_fault(one_by_one.to(dtype), own, exact) is None


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(96, 512), (4, 2, 64, 64)])
def test_a_running_sum_in_floats_is_less_exact_behind_a_burst(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    """Sums of neighbours are as exact there as anywhere, in whatever order; by what their row has neither shows."""
    x = redraw(BURST, torch.zeros(shape, dtype=dtype), torch.Generator().manual_seed(1))
    wide = x.double().unfold(-1, 17, 1)
    exact, own = wide.sum(-1), wide.float().sum(-1).to(dtype)
    sums = torch.nn.functional.pad(x.float().cumsum(-1), (1, 0))
    running, other = (sums[..., 17:] - sums[..., :-17]).to(dtype), wide.flip(-1).float().sum(-1).to(dtype)
    assert bool(torch.isfinite(own).all()) and float(own.float().abs().max()) > 1e4 * float(own.float().abs().median())
    assert small_fault(other, own, exact, near=True) is None and small_fault(running, own, exact) is None
    assert small_fault(running, own, exact, near=True) is not None


def kept(value: torch.Tensor, bits: int) -> torch.Tensor:
    mantissa, exponent = torch.frexp(value)
    return torch.ldexp((mantissa * 2.0**bits).round() * 2.0**-bits, exponent)


def cut_off(value: torch.Tensor, bits: int) -> torch.Tensor:
    mantissa, exponent = torch.frexp(value)
    return torch.ldexp((mantissa * 2.0**bits).trunc() * 2.0**-bits, exponent)


def shown(got: torch.Tensor, a: torch.Tensor, b: torch.Tensor, bits: int) -> float:
    with Perturbed(operands=partial(middle, bits=bits)):
        moved = torch.relu(a.double() @ b.double())
    return goes_with(got, torch.relu(a.double() @ b.double()), moved)


@pytest.mark.parametrize("depth", [64, 1024])
def test_factors_with_few_bits_show_on_ordinary_numbers(depth: int) -> None:
    a, b = torch.randn(192, depth, generator=GEN), torch.randn(depth, 192, generator=GEN)
    for factor in (kept(a, 16), kept(a, 17), cut_off(a, 16), kept(a, 14)):
        assert max(shown(torch.relu(factor @ b), a, b, bits) for bits in BITS) > 0.1
    for name, lower in (("tf32", to_tf32), ("bf16", through(torch.bfloat16))):
        assert shown(torch.relu(lower(a) @ lower(b)), a, b, COARSER[name]) > 0.5


def test_squares_of_fewer_bits_show_in_what_is_made_of_their_sum() -> None:
    def unit(x: torch.Tensor, of: torch.Tensor) -> torch.Tensor:
        return x * (of * of).mean(-1, keepdim=True).rsqrt()

    x = torch.randn(2048, 256, generator=GEN)
    exact = unit(x.double(), x.double())
    with Perturbed(operands=partial(middle, bits=18), spread=True):
        moved = unit(x.double(), x.double())
    assert goes_with(unit(x, kept(x, 16)), exact, moved) > 0.1
    assert goes_with(unit(x, x), exact, moved) == 0


@pytest.mark.parametrize("depth", [64, 1024])
def test_other_orders_of_sums_have_nothing_to_do_with_last_digits(depth: int) -> None:
    a, b = torch.randn(192, depth, generator=GEN), torch.randn(depth, 192, generator=GEN)
    one_by_one = torch.zeros(192, 192)
    for k in range(depth):
        one_by_one += a[:, k : k + 1] * b[k]
    for right in (one_by_one, a @ b, (a.flip(1) @ b.flip(0)), kept(a, 22) @ kept(b, 22)):
        assert not any(shown(torch.relu(right), a, b, bits) for bits in BITS)


def test_the_scale_of_a_row_is_that_of_all_of_it() -> None:
    """Of 40,000 rows few have more than one element in a sample: what is small beside its row owes as much as ever."""
    exact = torch.randn(40_000, 256, generator=GEN, dtype=torch.float64)
    exact[:, ::8] *= 1e-7
    own = exact.float()
    other = torch.where(exact.abs() < 1e-6, own + 3e-7 * torch.randn(own.shape, generator=GEN), own)
    assert small_fault(other, own, exact) is None
    assert small_fault(torch.where(exact.abs() < 1e-6, own + 3e-5, own), own, exact) is not None


def test_full_memory_is_told_by_its_error_on_a_cpu_too() -> None:
    with pytest.raises(RuntimeError) as full:
        torch.empty(1 << 50)
    try:
        raise ValueError("the call failed") from full.value
    except ValueError as error:
        assert ran_out_of_memory(error)
    assert ran_out_of_memory(MemoryError()) and not ran_out_of_memory(RuntimeError("of another shape"))
