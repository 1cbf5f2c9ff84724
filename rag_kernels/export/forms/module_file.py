"""The format `module`: a Python file with the problem, the kernel, and a ModelNew that runs it by rag-kernels.

Comes in: an attempt and a path. Goes out: a file. Knows nothing of the search.
"""

from __future__ import annotations

import pprint
from collections.abc import Sequence
from typing import Any

from rag_kernels.archive.records import Attempt
from rag_kernels.eval.contract import portable
from rag_kernels.eval.records import Contract, FunctionalProblem, Passed, TensorArgument
from rag_kernels.eval.told import told
from rag_kernels.export.backward import paired
from rag_kernels.export.evidence import Pulled
from rag_kernels.export.package import WITH_COMPOSED, TextFile
from rag_kernels.export.runtime import CompiledForward
from rag_kernels.export.serving.torch_operator import Backward
from rag_kernels.export.training_step import compiled_step

HEAD_OF_RUNTIME = """\
from {package}.drop_in import DropIn  # noqa: E402
from {package}.runtime import {names}  # noqa: E402
"""
# Names of the file's own begin with RK_, but for COMPILED, which callers take: a problem may have a KERNEL, of pixels.
MODULE = """\
# {summary}
# Written by rag-kernels. `ModelNew` takes the place of `Model` below; for calls other than those that were verified
# (other sizes, dtypes, constructor arguments, attributes, gradients) it falls back to `Model`, with one warning that
# says why; `kernel_used` and `kernel_reason` tell it of the last call.

{problem}

# ---- the kernel ----

{runtime}
RK_KERNEL = {source}

RK_FUNCTIONAL = {functional}

{backward}COMPILED = {compiled}
COMPILED.op  # torch.ops.rag_kernels.{name}


class ModelNew(DropIn, {original}):
    COMPILED = COMPILED
    VERIFIED = staticmethod(get_init_inputs)
"""
COMPILED = """\
CompiledForward(
    {source},
    tier={tier!r},
    backend={backend!r},
    arguments={arguments},
    constants={constants},
    outputs={outputs},
    train_mode_only={train_mode_only},
    any_alignment={any_alignment},
    name={name!r},
    functional={functional},
    not_written={not_written!r},{more}
)"""
BACKWARD = """\
# Its gradients, by kernel {id}.
RK_BACKWARD = {compiled}

"""


def head_of(package: str, *, gradients: bool) -> str:
    """Return the lines that import what a file uses of the runtime: older ones do not know all of it."""
    names = "Backward, CompiledForward" if gradients else "CompiledForward"
    return HEAD_OF_RUNTIME.format(package=package, names=names)


def module_text(attempt: Attempt, backward: Pulled | None = None, runtime: str = "") -> str:
    """Return the text of an importable module: the problem, the kernel, its gradients' kernel, and `ModelNew`.

    `runtime` is where the runtime comes from, an import of ours where it is empty.
    """
    made, pulled = compiled_of(attempt, listed=True), ""
    more = f"\n    only={made.only!r}," if made.only else ""
    step = made.backward
    if backward is not None:
        takes, gives = paired(attempt, backward)
        step = Backward(compiled_of(backward.attempt), takes, gives)
    if step is not None:
        other = step.kernel
        assert isinstance(other, CompiledForward)
        pulled = BACKWARD.format(
            id=(backward.attempt if backward is not None else attempt).candidate.id,
            compiled=_compiled_text(other, source=literal(other.source), functional=literal(other.functional)),
        )
        together = f", {step.saved}, {step.fixed}" if step.saved is not None else ""
        more += f"\n    backward=Backward(RK_BACKWARD, {step.takes}, {step.gives}{together}),"
    return MODULE.format(
        summary=summary(attempt),
        problem=attempt.problem.problem.source.rstrip(),
        runtime=runtime or head_of("rag_kernels.export", gradients=step is not None),
        original="Model" if attempt.problem.step is None else "ForwardModel",
        source=literal(made.source),
        functional=literal(made.functional),
        name=made.name,
        backward=pulled,
        compiled=_compiled_text(made, source="RK_KERNEL", functional="RK_FUNCTIONAL", more=more),
    )


def _compiled_text(made: CompiledForward, *, source: str, functional: str, more: str = "") -> str:
    return COMPILED.format(
        source=source,
        functional=functional,
        tier=made.tier,
        backend=made.backend,
        arguments=pprint.pformat(made.arguments, width=100),
        constants=pprint.pformat(made.constants, width=100, sort_dicts=False),
        outputs=pprint.pformat(made.outputs, width=100),
        train_mode_only=made.train_mode_only,
        any_alignment=made.any_alignment,
        name=made.name,
        not_written=made.not_written,
        more=more,
    )


def compiled_of(attempt: Attempt, *, listed: bool = False) -> CompiledForward:
    """Return the kernel of an attempt with the calls that it serves: free sizes where its contract has them.

    Where it was judged at a list of sizes, they are served by forms that hold the list (`listed`); else its own alone.
    """
    problem, candidate, held = attempt.problem, attempt.candidate, contract_of(attempt)
    if held is not None and held.only and not listed:
        held = None
    arguments, outputs = _with_free_sizes(problem, held)
    moving = any(argument[4:] for argument in arguments)
    only = [dict(values) for values in held.only] if held is not None and moving else ()
    if problem.step is not None:
        return compiled_step(
            attempt, arguments, outputs, name=_operator_name(attempt), any_alignment=_any_alignment(attempt), only=only
        )
    return CompiledForward(
        candidate.source,
        tier=candidate.tier,
        backend=candidate.backend,
        arguments=arguments,
        constants=dict(problem.constants) if candidate.tier == "composed" else dict(problem.abi_constants),
        outputs=outputs,
        train_mode_only=bool(problem.mutated),
        any_alignment=_any_alignment(attempt),
        name=_operator_name(attempt),
        functional=problem.source,
        not_written=(*problem.mutated, *(f"input {path}" for path in problem.written)),
        only=only,
    )


def _with_free_sizes(
    problem: FunctionalProblem, contract: Contract | None
) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    """Return arguments and outputs, with free sizes unless constants follow them, or outputs do not."""
    tensors = iter(contract.tensors) if contract is not None and portable(contract) and not problem.mutated else None
    arguments: list[tuple[Any, ...]] = []
    for a in problem.arguments:
        if isinstance(a, TensorArgument):
            free = (_sizes(next(tensors).shape),) if tensors else ()
            arguments.append((a.role, a.path, a.spec.shape, a.spec.dtype, *free))
        else:
            arguments.append(("scalar", a.path, a.value, type(a.value).__name__))
    made = contract.outputs if contract is not None and tensors else [()] * len(problem.outputs)
    outputs = [
        (o.shape, o.dtype, _sizes(free)) if free else (o.shape, o.dtype)
        for o, free in zip(problem.outputs, made, strict=True)
    ]
    return arguments, outputs


def _sizes(shape: Sequence[str]) -> tuple[int | str, ...]:
    return tuple(int(size) if size.isdigit() else size for size in shape)


def contract_of(attempt: Attempt) -> Contract | None:
    """Return the calls that a kernel was seen to be right for; None where it passed at its own sizes alone, or not."""
    verdict = attempt.judged.verdict
    return verdict.contract if isinstance(verdict, Passed) else None


def _any_alignment(attempt: Attempt) -> bool:
    """Return whether it was seen to be right for tensors that begin at any element.

    Else they are copied to where it was.
    """
    held = contract_of(attempt)
    return held is not None and held.alignment == "element"


def _operator_name(attempt: Attempt) -> str:
    """Return an operator's name for a kernel and its problem: the source may solve others too, at other sizes."""
    return f"{attempt.candidate.id}_{attempt.problem.problem.id}"


def literal(source: str) -> str:
    """Return readable triple quotes, unless the text does not fit between them."""
    return repr(source) if "'''" in source or source.endswith("\\") else f"r'''{source}'''"


def summary(attempt: Attempt) -> str:
    said = told(attempt.judged)
    head = f"{attempt.problem.problem.name}: kernel {attempt.candidate.id}"
    if said is None:
        return head
    sign = "" if said.confirmed else "at least "
    over_compile = f", {said.over_compile:.2f}x torch.compile" if said.over_compile else ""
    return f"{head}, {sign}{said.over_eager:.2f}x eager{over_compile} on {attempt.judged.device.name}."


PACKAGE = TextFile(
    text=module_text,
    suffix=".py",
    comment="#",
    loaded_by="an import, beside rag-kernels",
    tiers=WITH_COMPOSED,
    in_place=True,
    with_gradients=module_text,
)
