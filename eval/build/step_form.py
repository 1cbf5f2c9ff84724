"""The form of a candidate for a training step: composed, with a `forward` and a `backward`.

Comes in: the source. Goes out: a sentence on what is wrong with it, one function that runs both in turn as the judge
calls it, and the source of either alone, as an export runs them. `forward` takes the arguments but the gradients and
ends with `return (outputs...,), (saved...,)`; `backward` takes a tuple of gradients, what was saved, and the same
arguments, and returns the gradients of arguments. What is saved is the writer's choice.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

from rag_kernels.eval.records import Argument, Candidate, FunctionalProblem, TrainingStep

FORWARDS, FORWARDS_S = 100, 0.2  # between the halves of a step, as many as a deep model has layers
TOLD = (
    "a training step is a composed source with `forward(arguments...)`, which ends with "
    "`return (outputs...,), (saved...,)`, and `backward(grads, saved, arguments...)`, both with the forward's arguments"
)


def pulled_arguments(arguments: Sequence[Argument], step: TrainingStep) -> int:
    """Return how many arguments of a training step, which are its first, are gradients of outputs."""
    return sum(a.path.isdigit() and int(a.path) < len(step.pulled) for a in arguments)


def is_step(candidate: Candidate) -> bool:
    """Return whether a source has the two functions of a training step, whatever the problem."""
    return candidate.tier == "composed" and bool(re.search(r"^def backward\(", candidate.source, re.MULTILINE))


def fault(source: str, fp: FunctionalProblem) -> str:
    """Return in what a composed source is no training step of a problem; "" where nothing is."""
    assert fp.step is not None
    functions = _functions(source)
    if set(functions) != {"forward", "backward"}:
        return f"It has no `forward` and `backward`: {TOLD}."
    taken = len(fp.arguments) - pulled_arguments(fp.arguments, fp.step)
    found = {name: len(function.args.args) for name, function in functions.items()}
    if found != {"forward": taken, "backward": taken + 2}:
        return f"`forward` takes {taken} arguments here and `backward` two more, not {found}: {TOLD}."
    returned = _returned(functions["forward"])
    if returned is None:
        return f"`forward` does not end with two tuples: {TOLD}."
    if len(returned[0].elts) != fp.step.outputs:
        return f"`forward` returns {len(returned[0].elts)} outputs, and there are {fp.step.outputs}: {TOLD}."
    return ""


def joined(forward: Callable[..., Any], backward: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function of a step: gradients of outputs, then arguments; outputs, then gradients of arguments."""

    def step(*values: Any, **keywords: Any) -> Any:
        grads, given = _parted(forward, values)
        outputs, saved = forward(*given, **keywords)
        return (*outputs, *_tuple(backward(grads, saved, *given, **keywords)))

    return step


def apart(forward: Callable[..., Any], backward: Callable[..., Any]) -> Callable[..., Any]:
    """Return a step as a program makes it that reads the outputs, has other forwards come before the backward, as those
    of a model's other layers do, and asks for the gradients twice.

    It returns the outputs as the forward left them, and the gradients of the second time. What the backward needs has
    to be in what was saved, and stay there: the others take the same numbers in another order. Raises ValueError where
    `backward` changes an output.
    """

    def step(*values: Any, **keywords: Any) -> Any:
        grads, given = _parted(forward, values)
        outputs, saved = forward(*given, **keywords)
        kept = [output.clone() for output in outputs]
        others, ends_s = tuple(map(_turned, given)), perf_counter() + FORWARDS_S
        for _ in range(FORWARDS):
            _finished(forward(*others, **keywords)[0])
            if perf_counter() > ends_s:
                break
        backward(grads, saved, *given, **keywords)
        found = _tuple(backward(grads, saved, *given, **keywords))
        for number, before in enumerate(kept):
            if not bool((_bits(outputs[number]) == _bits(before)).all()):
                raise ValueError(f"`backward` changes output {number} of `forward`, which a model has read by then.")
        return (*kept, *found)

    return step


def _parted(forward: Callable[..., Any], values: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Return what a step is called with as gradients and the arguments of its forward."""
    code: Any = forward.__code__
    first = len(values) - code.co_argcount
    return values[:first], values[first:]


def _tuple(found: Any) -> tuple[Any, ...]:
    return found if isinstance(found, tuple) else (found,)


def _finished(outputs: Any) -> None:
    """Wait for what a GPU has queued, which the time between the halves is of."""
    import torch

    if any(output.is_cuda for output in outputs):
        torch.cuda.synchronize()


def _turned(value: Any) -> Any:
    """Return a tensor of floats with its elements in the other order, anything else as it is."""
    import torch

    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return value
    return value.reshape(-1).flip(0).reshape(value.shape)


def _bits(tensor: Any) -> Any:
    import torch

    return tensor.contiguous().reshape(-1).view(torch.uint8)


def results_of(source: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the outputs and what is saved of the forward of a training step, as its source spells them."""
    returned = _returned(_functions(source)["forward"])
    assert returned is not None
    outputs, saved = (tuple(map(ast.unparse, one.elts)) for one in returned)
    return outputs, saved


def step_told(fp: FunctionalProblem, source: str, size: str = "") -> str:
    """Return a line on a kernel of a training step: its gradients, what its forward saves, and of what size."""
    assert fp.step is not None
    count = len(fp.step.gradients)
    head = f"one step of training: a forward, and a backward for {count} gradient{'s' if count > 1 else ''}"
    kept = ", ".join(results_of(source)[1])
    if not kept:
        return f"{head}; nothing is saved between them: the backward computes again what it needs of the forward"
    return f"{head}; saved between them: {kept}{f' ({size})' if size else ''}; the rest is computed again"


def forward_alone(source: str) -> str:
    """Return the composed source of the forward, which returns in one tuple its outputs and what else is saved."""
    function = _functions(source)["forward"]
    returned = _returned(function)
    assert returned is not None
    outputs, saved = results_of(source)
    more = {text: e for text, e in zip(saved, returned[1].elts, strict=True) if text not in outputs}
    last = ast.Return(_flat([*returned[0].elts, *more.values()]))
    return _with(source, _as_forward(function, function.args, [*function.body[:-1], last]))


def backward_alone(source: str, grads: int) -> str:
    """Return the composed source of the backward, which takes so many gradients and each saved tensor by itself."""
    function = _functions(source)["backward"]
    first, second, *rest = function.args.args
    names = [
        [f"{argument.arg}_{i}" for i in range(n)]
        for argument, n in ((first, grads), (second, len(results_of(source)[1])))
    ]
    begins: list[ast.stmt] = [
        ast.Assign([ast.Name(argument.arg, ast.Store())], ast.Tuple([ast.Name(n, ast.Load()) for n in own], ast.Load()))
        for argument, own in zip((first, second), names, strict=True)
    ]
    spread = [ast.arg(name) for own in names for name in own]
    arguments = ast.arguments(
        posonlyargs=[],
        args=[*spread, *rest],
        kwonlyargs=function.args.kwonlyargs,
        kw_defaults=function.args.kw_defaults,
        defaults=[],
    )
    return _with(source, _as_forward(function, arguments, [*begins, *function.body]))


def _functions(source: str) -> dict[str, ast.FunctionDef]:
    return {node.name: node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)}


def _returned(function: ast.FunctionDef) -> tuple[ast.Tuple, ast.Tuple] | None:
    """Return the two tuples that a forward ends with; None where it ends otherwise, or returns before."""
    last = function.body[-1]
    if sum(isinstance(node, ast.Return) for node in ast.walk(function)) != 1 or not isinstance(last, ast.Return):
        return None
    pair = last.value
    if not isinstance(pair, ast.Tuple) or len(pair.elts) != 2:
        return None
    one, other = pair.elts
    if not isinstance(one, ast.Tuple) or not isinstance(other, ast.Tuple):
        return None
    return None if any(isinstance(e, ast.Starred) for e in (*one.elts, *other.elts)) else (one, other)


def _flat(elements: Sequence[ast.expr]) -> ast.expr:
    return elements[0] if len(elements) == 1 else ast.Tuple(list(elements), ast.Load())


def _as_forward(function: ast.FunctionDef, arguments: ast.arguments, body: list[ast.stmt]) -> ast.FunctionDef:
    made = ast.FunctionDef("forward", arguments, body, [], None, None)
    return ast.fix_missing_locations(ast.copy_location(made, function))


def _with(source: str, forward: ast.FunctionDef) -> str:
    """Return a source with this function in place of its own; the kernels stay as they are written."""
    lines = source.splitlines()
    for function in sorted(_functions(source).values(), key=lambda f: -f.lineno):
        del lines[function.lineno - 1 : function.end_lineno]
    return "\n".join(lines).rstrip() + f"\n\n\n{ast.unparse(forward)}\n"
