"""Compare the functional form with the module: the same weights, the same inputs, the same random draws.

Comes in: a problem, its functional form and the emitted source. Goes out: nothing, or a ProblemError that says how
far apart they are. The module runs first: where it fails, nothing is said of the functional form. Runs in the child
process, for real and in train mode, as KernelBench runs modules.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from rag_kernels.eval.records import Argument, Problem, ProblemError, ScalarArgument, TensorSpec
from rag_kernels.ingest.graphs.recording import build, error_line, execute, make_inputs, state_at, tensors_of

SEED = 2025
RELATIVE = 1e-4
ABSOLUTE = 1e-5  # of the output's root mean square
DEEP = 4.0  # roundings to 16 bits: what a network of many layers adds up to, in the root mean square
AS_NEAR = 4.0  # times the module's own error against double
# Of the largest values about: a module that is further from itself in double says nothing. Among the gradients of
# KernelBench's levels 1 and 2, 43 outputs are held to the module's own error, which is at most 0.0026 of the largest
# values, but for one problem's 0.17: every bound between gives the same verdicts (`tests/bench/gradient_noise.py`).
NOISE = 0.05
_LOOSER = {torch.float16: 32.0, torch.bfloat16: 256.0, torch.float8_e4m3fn: 4096.0, torch.float8_e5m2: 8192.0}


class ModuleFails(ProblemError):
    """The module itself raises on its inputs."""


class DoesNotRun(ProblemError):
    """The emitted source raises."""


class Disagrees(ProblemError):
    """The emitted source gives something else than the module."""


@dataclass(frozen=True, slots=True)
class Ran:
    """What the module made of its inputs, and the values of the functional form's arguments before."""

    problem: Problem
    values: list[Any]
    outputs: list[Tensor]


def run_module(problem: Problem, arguments: tuple[Argument, ...]) -> Ran:
    """Run the module for real.

    Raises ModuleFails when it raises.
    """
    model, inputs = _made(problem)
    values = _values(model, pytree.tree_leaves(inputs), arguments)
    torch.manual_seed(SEED)
    with torch.no_grad():
        try:
            result = model(*inputs)
        except (MemoryError, ProblemError):
            raise
        except Exception as error:
            raise ModuleFails(
                f"{problem.name}: the module fails on the inputs that get_inputs() draws: {error_line(error)}; "
                "correct the inputs or the forward."
            ) from error
        return Ran(problem, values, tensors_of(problem, result))


def _made(problem: Problem) -> tuple[torch.nn.Module, list[Any]]:
    torch.manual_seed(SEED)
    module = execute(problem)
    return build(problem, module), make_inputs(problem, module)


def compare(ran: Ran, source: str, recorded: tuple[TensorSpec, ...] = (), *, random: bool = False) -> None:
    """Run the functional form on what the module had, and compare every output.

    What cancels out (the gradient of a bias before a normalization) is rounding alone in both: there the error against
    the module in double counts, unless it is `random`.

    Raises Disagrees when outputs differ in number or values, DoesNotRun when the emitted source raises, and
    ProblemError when the module's own outputs have other shapes than were `recorded`.
    """
    name, theirs = ran.problem.name, ran.outputs
    require_recorded(ran, recorded)
    with torch.no_grad():
        mine = _functional_outputs(ran.problem, source, ran.values)
    if len(mine) != len(theirs):
        raise Disagrees(f"{name}: the functional form returns {len(mine)} tensors, not {len(theirs)}.")
    exact: list[Tensor] | None = None
    for i, (ours, reference) in enumerate(zip(mine, theirs, strict=True)):
        reason = _difference(ours, reference)
        blame = "report the problem file, because this is a fault of the functionalizer."
        alike = (ours.shape, ours.dtype) == (reference.shape, reference.dtype)
        if reason and alike and reference.is_floating_point() and not random:
            exact = _in_double(ran) if exact is None else exact
            if exact and _as_near(ours, reference, exact[i], _largest(ran)):
                continue
            if exact and _rms(reference.double() - exact[i]) > NOISE * _largest(ran):
                own = float((reference.double() - exact[i]).abs().max())
                blame = (
                    f"the module itself is up to {own:.3g} from what it gives in double: rounding decides these values."
                )
        if reason:
            raise Disagrees(f"{name}: the functional form disagrees with the module in output {i}: {reason}; {blame}")


def require_recorded(ran: Ran, recorded: tuple[TensorSpec, ...]) -> None:
    """Require that the module's outputs have the shapes that were recorded.

    Raises ProblemError.
    """
    for spec, real in zip(recorded, ran.outputs, strict=False):
        if spec.shape != tuple(real.shape):
            raise ProblemError(
                f"{ran.problem.name}: the forward returns {list(real.shape)} where {list(spec.shape)} was recorded: "
                "this shape depends on the data (bincount of values that its minlength is not above?), and a kernel's "
                "is fixed."
            )


def _in_double(ran: Ran) -> list[Tensor]:
    """Return what the module makes of the same values in double; nothing where it does not take them."""
    model, inputs = _made(ran.problem)

    def widened(leaf: Any) -> Any:
        return leaf.double() if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf

    try:
        with torch.no_grad():
            made = tensors_of(ran.problem, model.double()(*pytree.tree_map(widened, inputs)))
    except Exception:  # whatever a module raises that names its dtypes
        return []
    alike = [(a.shape, a.is_floating_point()) for a in made] == [(a.shape, a.is_floating_point()) for a in ran.outputs]
    return made if alike else []


def _largest(ran: Ran) -> float:
    """Return the largest root mean square of what the module takes and makes."""
    tensors = [x for x in (*ran.values, *ran.outputs) if isinstance(x, Tensor) and x.is_floating_point() and x.numel()]
    return max((_rms(x.double()) for x in tensors), default=0.0)


def _rms(values: Tensor) -> float:
    return float(values.detach().square().mean().sqrt()) if values.numel() else 0.0


def _as_near(ours: Tensor, reference: Tensor, exact: Tensor, largest: float) -> bool:
    """Return whether the functional form is as near to the exact values as the module is, or about, and near enough."""
    mine, theirs = (ours.double() - exact).abs(), (reference.double() - exact).abs()
    if not bool(torch.isfinite(mine).all() and torch.isfinite(theirs).all()):
        return False
    if _rms(theirs) > NOISE * largest:
        return False
    return _rms(mine) <= AS_NEAR * _rms(theirs) and float(mine.max()) <= 2 * AS_NEAR * float(theirs.max())


def verify(problem: Problem, source: str, arguments: tuple[Argument, ...]) -> None:
    """Run the module, then its functional form, and compare every output.

    Raises what `run_module` and `compare` raise.
    """
    compare(run_module(problem, arguments), source)


def _values(model: torch.nn.Module, leaves: list[Any], arguments: tuple[Argument, ...]) -> list[Any]:
    def value(argument: Argument) -> Any:
        if isinstance(argument, ScalarArgument) or argument.role == "input":
            leaf = leaves[int(argument.path)]
            return leaf.clone() if isinstance(leaf, Tensor) else leaf
        return state_at(model, argument.path).clone()  # the module may change it

    return [value(a) for a in arguments]


def _functional_outputs(problem: Problem, source: str, values: list[Any]) -> list[Tensor]:
    namespace: dict[str, Any] = {}
    exec(compile(source, f"<functional {problem.name}>", "exec"), namespace)
    torch.manual_seed(SEED)
    try:
        result = namespace["module_fn"](*values)
    except Exception as error:
        raise DoesNotRun(f"{problem.name}: the functional form does not run: {error_line(error)}.") from error
    return list(result) if isinstance(result, tuple) else [result]


def _apart(ours: Tensor, reference: Tensor) -> float:
    """Return the root mean square of the difference over that of the reference; infinite where one is not finite."""
    if not bool(torch.isfinite(ours).all() and torch.isfinite(reference).all()):
        return math.inf
    return float((ours.double() - reference.double()).norm() / reference.double().norm().clamp_min(1e-300))


def _difference(ours: Tensor, reference: Tensor) -> str:
    if ours.shape != reference.shape or ours.dtype != reference.dtype:
        return f"{ours.dtype}{list(ours.shape)} instead of {reference.dtype}{list(reference.shape)}"
    if not reference.dtype.is_floating_point:
        wrong = int((ours != reference).sum())
        return f"{wrong} of {reference.numel()} elements differ" if wrong else ""
    dtype = reference.dtype
    if dtype.itemsize == 1:  # which few operators take
        ours, reference = ours.float(), reference.float()
    finite = reference[torch.isfinite(reference)]
    scale = float(finite.double().square().mean().sqrt()) if finite.numel() else 0.0
    loose = _LOOSER.get(dtype, 1.0)
    if torch.allclose(ours, reference, rtol=RELATIVE * loose, atol=ABSOLUTE * loose * scale, equal_nan=True):
        return ""
    if dtype in _LOOSER and _apart(ours, reference) < DEEP * torch.finfo(dtype).eps:
        return ""
    worst = float((ours - reference).abs().nan_to_num(torch.inf).max())
    return f"the largest difference is {worst:.3g} where the RMS is {scale:.3g}"
