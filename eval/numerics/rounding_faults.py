"""Is an output rounded as it should be? Not how large its errors are, but whether they lean or come in rows.

Comes in: the candidate's output, the reference's and the oracle's. Goes out: a sentence, or nothing. An output that is
computed well and rounded once has errors of at most half a unit in the last place, as often up as down, and as many
signs in one row as in another. Bits that are cut off lean towards zero; a factor that a row has in common, rounded to
16 bits on its way, moves all of the row; more roundings than PyTorch's make errors larger. What PyTorch's own output
shows is no fault. In fp32 orders of summation differ by more than a rounding, but they do not make all of an output
larger or smaller by the same part: a root or an exponential of too few terms does. Runs in the reference worker.
"""

from __future__ import annotations

import math

import torch

LEAST = 1024  # elements; fewer say little
LEAST_GROUPS, LEAST_LINE = 16, 32
# Of a unit, on average: cutting off leans by a half, halves away from zero by a tenth, rounding by nothing.
LEANS = 0.06
VECTORS, LEAST_TAIL, TAIL_LEANS = (8, 16, 32, 64), 64, 0.25  # of so many chance leans by a seventh, four times over
COMMON = 8.0  # times the variance between rows that their length allows for
MORE = 1.35  # times the mean square of PyTorch's errors, or of one rounding's: another rounding doubles that of one
NEAREST = 0.5 + 1 / 16  # units: farther off is no number to nearest, but for what rounding in fp32 leaves
FEW_BEYOND, MANY_BEYOND = 1e-4, 0.01  # of elements: of PyTorch's, where it rounds to nearest once, and of a fault's
AS_PYTORCH = 3.0  # times what PyTorch's own output shows
LEAST_ZEROS, ZEROS = 16, 0.01  # elements, and a part of those that are zero
HALF = 2  # bytes
FAR = 1.5  # units: beyond, PyTorch's own error is no matter of the last rounding
OFF = 2.0**-20  # of an output in fp32, throughout: a quarter of what `input_kinds.STRICT` allows a product
ONE_BY_ONE = 8192  # terms that one number may add up: it loses a third of that much of small ones among larger ones
LOSES = 1.5  # the power of their number that it loses
PARTS, MOST, SURE = 64, 1024, 6.0  # of an output, elements of each, and how many times what chance gives them
PLAIN = 2.0  # times as far off as that: one content is enough to tell
AS_PYTORCHS = 8.0  # times as far off as PyTorch's own output


def rounding_fault(got: torch.Tensor, reference: torch.Tensor, oracle: torch.Tensor, *, longest: int = 1) -> str:
    """Return what is wrong with the rounding of an output whose `longest` sum has so many terms, or nothing."""
    if got.dtype == torch.float32 and reference.dtype == torch.float32:
        return _throughout(got, reference, oracle, OFF * max(1.0, longest / ONE_BY_ONE) ** LOSES)
    if got.dtype not in (torch.float16, torch.bfloat16) or got.numel() < LEAST:
        return ""
    exact = oracle.double()
    _, exponent = torch.frexp(exact)
    info = torch.finfo(got.dtype)
    unit = torch.ldexp(torch.full_like(exact, info.eps), exponent - 1)
    own = (reference.double() - exact) / unit
    sound = torch.isfinite(exact) & (exact.abs() > 16 * info.tiny) & (own.abs() <= FAR) & torch.isfinite(got)
    if int(sound.sum()) < max(LEAST, got.numel() // 2):
        return ""
    sign = exact.sign()
    mine, own = (
        (t.clamp(-1, 1) * sign).where(sound, torch.zeros_like(t)) for t in ((got.double() - exact) / unit, own)
    )
    count = float(sound.sum())
    for words, weight in ((("towards zero", "away from zero"), 1.0), (("to one side", "to one side"), sign)):
        lean, leans = (float((t * weight).sum()) / count for t in (mine, own))
        if abs(lean) > LEANS + AS_PYTORCH * abs(leans) + _spread(mine * weight, sound):
            word = words[lean > 0]
            return f"its rounding leans {word} by {abs(lean):.2f} units in the last place ({abs(leans):.2f} PyTorch's)"
    if told := _leaning_tail(mine, own, sound):
        return told
    mean, means = (12 * float(t.square().sum()) / count for t in (mine, own))
    if mean > MORE * max(means, 1.0):
        return (
            f"its errors go together with further roundings: {mean:.1f} times what one leaves ({means:.1f} PyTorch's)"
        )
    beyond, beyonds = (float((t.abs() > NEAREST).sum()) / count for t in (mine, own))
    if beyond > MANY_BEYOND and beyonds < FEW_BEYOND:
        return f"its errors go together with rounding of {beyond:.1%} of the elements that is not to nearest"
    mine, own = (torch.where(sound, t - t.sum() / count, 0.0) for t in (mine, own))
    for axis in range(got.dim()):
        common, commons = _in_common(mine, sound, axis), _in_common(own, sound, axis)
        if common > COMMON + AS_PYTORCH * commons:
            return (
                f"its errors along dimension {axis} go together, as if a factor were rounded to 16 bits: "
                f"{common:.0f} times what rounding gives ({commons:.0f} PyTorch's)"
            )
    return ""


def signs_of_zeros(got: torch.Tensor, reference: torch.Tensor, oracle: torch.Tensor) -> str:
    """Return how many zeros of an output have another sign than what is right, and than PyTorch's; nothing for few.

    A quotient by such a zero is infinite to the other side.
    """
    if not got.is_floating_point() or got.dtype != reference.dtype or got.element_size() < HALF:
        return ""
    sign = torch.signbit(reference)
    known = (reference == 0) & (oracle == 0) & (sign == torch.signbit(oracle)) & (got == 0)
    other, count = int((known & (torch.signbit(got) != sign)).sum()), int(known.sum())
    if other < max(LEAST_ZEROS, ZEROS * count):
        return ""
    return f"{other / count:.1%} of the zeros among its results have another sign than PyTorch's"


def _leaning_tail(mine: torch.Tensor, own: torch.Tensor, sound: torch.Tensor) -> str:
    """Return how the last columns lean, which whole vectors leave; nothing where they do not, or are few."""
    for tail in dict.fromkeys(mine.shape[-1] % width for width in VECTORS):
        count = int(sound[..., -tail:].sum()) if tail else 0
        if count < LEAST_TAIL:
            continue
        lean, leans = (float(t[..., -tail:].sum()) / count for t in (mine, own))
        if abs(lean) > TAIL_LEANS + AS_PYTORCH * abs(leans):
            where = "towards zero" if lean < 0 else "away from zero"
            return f"its rounding leans {where} by {abs(lean):.2f} units in the last {tail} columns"
    return ""


def _throughout(got: torch.Tensor, reference: torch.Tensor, oracle: torch.Tensor, least: float) -> str:
    """Return by how much all of an output is off in one direction; nothing where that is less, or may be chance."""
    if got.numel() < LEAST:
        return ""
    exact, mine, own = (_sampled(t).double() for t in (oracle, got, reference))
    known = torch.isfinite(exact) & torch.isfinite(mine) & torch.isfinite(own)
    exact = exact.where(known, 0.0)
    weight = exact.square().sum(1)
    if not bool((weight > 0).all()):
        return ""
    off, owns = ((((t - exact).where(known, 0.0) * exact).sum(1) / weight) for t in (mine, own))
    mean, most = float(off.mean()), max(least, AS_PYTORCHS * float(owns.mean().abs()))
    if abs(mean) <= most or abs(mean) <= SURE * float(off.std()) / math.sqrt(PARTS):
        return ""
    plainly = "plainly " * (abs(mean) > PLAIN * most)
    return f"its results are {plainly}off by one part in {1 / abs(mean):,.0f} throughout"


def _sampled(output: torch.Tensor) -> torch.Tensor:
    """Return the beginnings of the parts of an output, one line each."""
    flat = output.reshape(-1)
    return flat[: len(flat) // PARTS * PARTS].reshape(PARTS, -1)[:, :MOST]


def _spread(errors: torch.Tensor, sound: torch.Tensor) -> float:
    """Return how far the mean may be off by chance, four times over, where whole rows go together."""
    lines = errors.reshape(errors.shape[0], -1) if errors.dim() > 1 else errors.reshape(1, -1)
    if lines.shape[0] < LEAST_GROUPS:
        return 4 * float(errors.std()) / math.sqrt(max(1.0, float(sound.sum())))
    return 4 * float(lines.mean(1).std()) / math.sqrt(lines.shape[0])


def _in_common(errors: torch.Tensor, sound: torch.Tensor, axis: int) -> float:
    """Return the variance of the lines' means along an axis, over what independent errors would give; 0: unknown."""
    if errors.shape[axis] < LEAST_LINE or errors.numel() // errors.shape[axis] < LEAST_GROUPS:
        return 0.0
    count = sound.sum(axis).double()
    full = count >= LEAST_LINE
    if int(full.sum()) < LEAST_GROUPS:
        return 0.0
    means = errors.sum(axis) / count.clamp(min=1)
    within = float(errors.square().sum() / sound.sum())
    return float((means.square() * count)[full].mean()) / max(within, 1e-12)
