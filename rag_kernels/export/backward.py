"""A kernel for a forward's gradients: where its arguments come from, and whose gradient each of its outputs is.

Comes in: the attempts of a forward and of a backward. Goes out: places of arguments and outputs, by the names that the
evidence of an export holds. Knows nothing of formats, and runs nothing itself.
"""

from __future__ import annotations

from rag_kernels.archive.records import Attempt
from rag_kernels.eval.errors import ProblemError
from rag_kernels.eval.records import Argument, TensorArgument, TensorSpec
from rag_kernels.export.evidence import Pulled
from rag_kernels.ingest.functional.gradients import backward_problem, gradient_names

INNER = "forward_model."  # where the backward's module keeps the forward's


def pulled_of(forward: Attempt, backward: Attempt) -> Pulled:
    """Return the kernel of a backward with the names of its gradients, which a child process finds.

    Raises ProblemError where it is not the backward of this forward.
    """
    _require_backward(forward, backward)
    return Pulled(backward, gradient_names(backward.problem))


def paired(forward: Attempt, pulled: Pulled) -> tuple[tuple[tuple[str, int], ...], tuple[int, ...]]:
    """Return where each argument of the backward comes from, and whose gradient each of its outputs is.

    Raises ProblemError where it is not the backward of this forward, or sizes and types contradict the names.
    """
    one, other, names = forward.problem, pulled.attempt.problem, pulled.names
    _require_backward(forward, pulled.attempt)
    by_path = {known.path: i for i, known in enumerate(one.arguments)}
    for name in names.arguments:
        if name not in by_path:
            raise ProblemError(f"The backward gives a gradient of {name}, which the forward's kernel does not take.")
    gives = tuple(by_path[name] for name in names.arguments)
    takes = tuple(_source(argument, names.outputs, by_path) for argument in other.arguments)
    given = [_spec(one.arguments[i]) for i in gives]
    taken = [(one.outputs[i : i + 1] or (None,))[0] if what == "grad" else _spec(one.arguments[i]) for what, i in takes]
    if len(set(gives)) < len(gives) or given != [*other.outputs] or taken != [_spec(a) for a in other.arguments]:
        raise ProblemError(f"The names of {other.problem.name}'s gradients are not those of its sizes and types.")
    return takes, gives


def _require_backward(forward: Attempt, backward: Attempt) -> None:
    one, other = forward.problem.problem, backward.problem.problem
    if forward.problem.step is not None:
        raise ProblemError(f"{one.name} is a step of training, which has its own backward: name no other.")
    if other.source != backward_problem(one).source:
        raise ProblemError(f"{other.name} is not the backward of {one.name}: name a kernel of that.")
    for attempt in (forward, backward):
        if attempt.candidate.backend != forward.candidate.backend or attempt.problem.mutated or attempt.problem.written:
            raise ProblemError("Both kernels must be for one kind of device, and write to nothing.")


def _source(argument: Argument, outputs: tuple[int, ...], by_path: dict[str, int]) -> tuple[str, int]:
    """Return ("grad", output) or ("value", argument of the forward)."""
    path = argument.path
    if path.startswith(INNER):
        wanted = path.removeprefix(INNER)
    elif not path.isdigit():
        wanted = path
    elif int(path) < len(outputs):
        return "grad", outputs[int(path)]
    else:
        wanted = str(int(path) - len(outputs))
    if wanted not in by_path:
        raise ProblemError(f"The backward takes {argument.name}, which the forward's kernel does not.")
    return "value", by_path[wanted]


def _spec(argument: Argument) -> TensorSpec | object:
    return argument.spec if isinstance(argument, TensorArgument) else argument.value
