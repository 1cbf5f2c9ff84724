"""A kernel of a training step as the forward of a module that trains: its forward, what it saves, and its backward.

Comes in: the attempt of a training step. Goes out: a `CompiledForward` of the module's own call, whose
gradients are the step's backward. What is saved is known by running the forward without data and without its kernels.
Knows nothing of formats.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from rag_kernels.archive.records import Attempt
from rag_kernels.eval.buffers.shared_arena import ITEM_BYTES
from rag_kernels.eval.build.composed_forward import Kernels, composed_forward
from rag_kernels.eval.build.step_form import backward_alone, forward_alone, results_of, step_told
from rag_kernels.eval.errors import ProblemError
from rag_kernels.eval.records import Backend
from rag_kernels.export.backward import INNER
from rag_kernels.export.runtime import CompiledForward
from rag_kernels.export.serving.served import Argument, Output, Served, Shape, Sizes
from rag_kernels.export.serving.torch_operator import Backward as Gradients

Fields = tuple[Any, ...]  # of a `served.Argument` or `served.Output`


def compiled_step(
    attempt: Attempt,
    arguments: Sequence[Fields],
    outputs: Sequence[Fields],
    *,
    name: str,
    any_alignment: bool,
    only: Sequence[dict[str, int]],
) -> CompiledForward:
    """Return the module's forward with its gradients, from the arguments and outputs of the step.

    Raises ProblemError for a step that writes to what it is given.
    """
    problem, source = attempt.problem, attempt.candidate.source
    step, backend = problem.step, attempt.candidate.backend
    assert step is not None
    if problem.mutated or problem.written:
        changed = ", ".join([*problem.mutated, *(f"input {path}" for path in problem.written)])
        raise ProblemError(
            f"{problem.problem.name} changes {changed} in place, and a kernel does not: it cannot train."
        )
    pulled = len(step.pulled)
    given = [_of_forward(fields, pulled) for fields in arguments[pulled:]]
    alone, constants = forward_alone(source), dict(problem.constants)
    made = _made(alone, given, outputs[: step.outputs], constants, backend, only)
    if made is None:  # which sizes follow which is not known: its own alone
        given, outputs = [fields[:4] for fields in given], [fields[:2] for fields in outputs]
        made = _made(alone, given, outputs[: step.outputs], constants, backend, ())
        assert made is not None
        only = ()
    texts, kept = results_of(source)
    places = [*texts, *dict.fromkeys(text for text in kept if text not in texts)]
    saved = [places.index(text) for text in kept]
    by_path = {str(fields[1]): i for i, fields in enumerate(given)}
    backward = CompiledForward(
        backward_alone(source, pulled),
        tier="composed",
        backend=backend,
        arguments=_of_backward([made[n] for n in (*step.pulled, *saved)], given),
        constants=constants,
        outputs=outputs[step.outputs :],
        any_alignment=any_alignment,
        name=f"{name}_gradients",
        only=only,
    )
    takes = (
        *(("grad", n) for n in step.pulled),
        *(("made", n) for n in saved),
        *(("value", i) for i in range(len(given))),
    )
    gives = tuple(by_path[path] for path in step.gradients)
    fixed = tuple(by_path[path] for path in step.fixed if path in by_path)
    return CompiledForward(
        alone,
        tier="composed",
        backend=backend,
        arguments=given,
        constants=constants,
        outputs=made,
        any_alignment=any_alignment,
        name=name,
        backward=Gradients(backward, takes, gives, len(made) - step.outputs, fixed),
        only=only,
    )


def _of_backward(results: Sequence[Fields], given: Sequence[Fields]) -> list[Fields]:
    """Return the arguments of the gradients: what is pulled of the results, what was saved, and the forward's own."""
    first = [("input", str(i), *_as_argument(fields)) for i, fields in enumerate(results)]
    own = [
        (fields[0], str(int(fields[1]) + len(first)) if fields[1].isdigit() else fields[1], *fields[2:])
        for fields in given
    ]
    return [*first, *own]


def told(attempt: Attempt, made: CompiledForward) -> str:
    """Return a line on what the forward of a step saves for its backward."""
    assert made.backward is not None
    numbers = {n for what, n in made.backward.takes if what == "made"}
    size = sum(ITEM_BYTES[made.outputs[n][1]] * prod(made.outputs[n][0]) for n in numbers)
    return step_told(attempt.problem, attempt.candidate.source, f"{size / 1e6:.3g} MB")


def _of_forward(fields: Fields, pulled: int) -> Fields:
    """Return an argument of a step as one of the module's call."""
    role, path, *rest = fields
    return (role, str(int(path) - pulled) if path.isdigit() else path.removeprefix(INNER), *rest)


def _as_argument(output: Fields) -> Fields:
    shape, dtype, *free = output
    return (shape, dtype, *free)


def _made(
    alone: str,
    given: Sequence[Fields],
    outputs: Sequence[Fields],
    constants: dict[str, Any],
    backend: Backend,
    only: Sequence[dict[str, int]],
) -> list[Fields] | None:
    """Return the forward's outputs and what it saves; None where it is not known how these follow free sizes.

    Nor is it where several are free: how they hang together could only a functional form of the forward say.
    """
    served = Served([Argument(*fields) for fields in given], [Output(*fields) for fields in outputs], backend, only)
    if served.related:
        return None
    verified = served.verified_sizes()
    specs = _specs(alone, served, verified, constants)
    assert specs is not None
    saved = specs[len(outputs) :]
    if not verified:
        return [*outputs, *saved]
    moved = {name: size + 2 * i + 1 for i, (name, size) in enumerate(sorted(verified.items()))}
    other = _specs(alone, served, moved, constants)
    if other is None:
        return None
    free = [_free(one, two, verified, moved) for (one, _), (two, _) in zip(saved, other[len(outputs) :], strict=True)]
    if any(shape is None for shape in free):
        return None
    return [*outputs, *((*spec, shape) for spec, shape in zip(saved, free, strict=True))]


def _free(one: Sizes, other: Sizes, verified: dict[str, int], moved: dict[str, int]) -> Shape | None:
    """Return a shape by the names of sizes, from what it is at two values of them; None where it is another form."""
    shape: list[int | str] = []
    for a, b in zip(one, other, strict=True):
        named = [(a // size, name) for name, size in verified.items() if a % size == 0 and a // size * moved[name] == b]
        if a != b and not named:
            return None
        factor, name = named[0] if a != b else (1, "")
        shape.append(a if a == b else name if factor == 1 else f"{factor}*{name}")
    return tuple(shape)


def _specs(
    alone: str, served: Served, sizes: dict[str, int], constants: dict[str, Any]
) -> list[tuple[Sizes, str]] | None:
    """Return shape and dtype of all that a forward makes at some sizes; None where its operators do not take these."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        values = [
            a.shape if a.role == "scalar" else torch.empty(served.shape_at(a, sizes), dtype=getattr(torch, a.dtype))
            for a in served.arguments
        ]
        try:
            made = composed_forward(alone, Kernels(_Idle()))(*values, **constants)
        except Exception:  # whatever operators raise at sizes that do not fit
            return None
    results = [made] if isinstance(made, torch.Tensor) else list(made)
    return [(tuple(result.shape), str(result.dtype).removeprefix("torch.")) for result in results]


class _Idle:
    """A library whose functions do nothing."""

    def get_function(self, name: str) -> Callable[..., None]:
        return lambda *_: None
