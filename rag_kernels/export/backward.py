"""Which gradients a kernel for a problem's backward gives: found with numbers, from the functional forms of both.

Comes in: the attempts of a forward and of a backward. Goes out: places of arguments and outputs. Knows nothing of
formats.
"""

from __future__ import annotations

from rag_kernels.archive.records import Attempt
from rag_kernels.eval.errors import ProblemError
from rag_kernels.eval.records import Argument, TensorArgument
from rag_kernels.export.torch_operator import functional_gradients, module_fn
from rag_kernels.ingest.gradients import backward_problem

INNER = "forward_model."  # where the backward's module keeps the forward's


def paired(forward: Attempt, backward: Attempt) -> tuple[tuple[tuple[str, int], ...], tuple[int, ...]]:
    """Return where each argument of the backward comes from, and whose gradient each of its outputs is.

    Raises ProblemError where it is not the backward of this forward, or another gradient comes out.
    """
    one, other = forward.problem, backward.problem
    if other.problem.source != backward_problem(one.problem).source:
        raise ProblemError(f"{other.problem.name} is not the backward of {one.problem.name}: name a kernel of that.")
    for attempt in (forward, backward):
        if attempt.candidate.backend != forward.candidate.backend or attempt.problem.mutated or attempt.problem.written:
            raise ProblemError("Both kernels must be for one kind of device, and write to nothing.")
    takes = tuple(_source(argument, forward) for argument in other.arguments)
    return takes, _given(forward, backward, takes)


def _source(argument: Argument, forward: Attempt) -> tuple[str, int]:
    """Return ("grad", output) or ("value", argument of the forward)."""
    problem, path = forward.problem, argument.path
    by_path = {known.path: i for i, known in enumerate(problem.arguments)}
    if path.startswith(INNER):
        wanted = path.removeprefix(INNER)
    elif int(path) < len(problem.outputs):
        return "grad", int(path)
    else:
        wanted = str(int(path) - len(problem.outputs))
    if wanted not in by_path:
        raise ProblemError(f"The backward takes {argument.name}, which the forward's kernel does not.")
    return "value", by_path[wanted]


def _given(forward: Attempt, backward: Attempt, takes: tuple[tuple[str, int], ...]) -> tuple[int, ...]:
    import torch

    def drawn(shape: tuple[int, ...], dtype: str) -> torch.Tensor:
        kind = getattr(torch, dtype)
        return torch.rand(shape, dtype=kind) if kind.is_floating_point else torch.zeros(shape, dtype=kind)

    problem = forward.problem
    values = [
        drawn(a.spec.shape, a.spec.dtype) if isinstance(a, TensorArgument) else a.value for a in problem.arguments
    ]
    grads = [drawn(spec.shape, spec.dtype) for spec in problem.outputs]
    tensors = [i for i, value in enumerate(values) if isinstance(value, torch.Tensor)]
    wanted = dict(zip(tensors, functional_gradients(problem.source, grads, values), strict=True))
    with torch.no_grad():
        made = module_fn(backward.problem.source)(*(grads[i] if what == "grad" else values[i] for what, i in takes))
    found: list[int] = []
    for gradient in [made] if isinstance(made, torch.Tensor) else made:
        alike = [i for i, w in wanted.items() if i not in found and _alike(gradient, w)]
        if not alike:
            raise ProblemError("A gradient of the backward is none of the forward's functional form.")
        found.append(alike[0])
    return tuple(found)


def _alike(one: object, other: object) -> bool:
    import torch

    assert isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor)
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    size = other.double().abs().max().clamp(min=1e-30)
    return bool((one.double() - other.double()).abs().max() <= 1e-2 * size)
