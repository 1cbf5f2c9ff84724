"""The format `module`: an importable Python file with the problem, the kernel, and a `ModelNew` that runs it.

Comes in: an attempt and a path. Goes out: a file. Knows nothing of the search.
"""

from __future__ import annotations

import pprint
from pathlib import Path

from rag_kernels.archive.records import Attempt
from rag_kernels.eval.records import FunctionalProblem, Passed, TensorArgument

MODULE = """\
# {summary}
# Written by rag-kernels. `ModelNew` takes the place of `Model` below; for calls other than the one that was verified
# (other shapes, dtypes, constructor arguments, attributes, gradients) it falls back to `Model`, with one warning that
# says why; `kernel_used` and `kernel_reason` tell it of the last call.{mutated}

{problem}

# ---- the kernel ----

from rag_kernels.export.drop_in import DropIn  # noqa: E402
from rag_kernels.export.runtime import CompiledForward  # noqa: E402

KERNEL = {source}

FUNCTIONAL = {functional}

COMPILED = CompiledForward(
    KERNEL,
    tier={tier!r},
    backend={backend!r},
    arguments={arguments},
    constants={constants},
    outputs={outputs},
    train_mode_only={train_mode_only},
    name={name!r},
    functional=FUNCTIONAL,
)
COMPILED.op  # torch.ops.rag_kernels.{name}


class ModelNew(DropIn, Model):
    COMPILED = COMPILED
    VERIFIED = staticmethod(get_init_inputs)
"""


def write_module(attempt: Attempt, out: Path) -> Path:
    """Write an importable module with `ModelNew` and return the path."""
    out.write_text(module_text(attempt))
    return out


def module_text(attempt: Attempt) -> str:
    """The text of an importable module: the problem, the kernel, and `ModelNew`."""
    problem, candidate = attempt.problem, attempt.candidate
    constants = dict(problem.constants) if candidate.tier == "composed" else dict(problem.abi_constants)
    mutated = f"\n# It does not update {', '.join(problem.mutated)}." if problem.mutated else ""
    return MODULE.format(
        summary=_summary(attempt),
        mutated=mutated,
        problem=problem.problem.source.rstrip(),
        source=_literal(candidate.source),
        functional=_literal(problem.source),
        name=_operator_name(attempt),
        tier=candidate.tier,
        backend=candidate.backend,
        arguments=pprint.pformat(_arguments(problem), width=100),
        constants=pprint.pformat(constants, width=100, sort_dicts=False),
        outputs=[(o.shape, o.dtype) for o in problem.outputs],
        train_mode_only=bool(problem.mutated),
    )


def _arguments(problem: FunctionalProblem) -> list[tuple[str, str, tuple[int, ...], str]]:
    return [
        (a.role, a.path, a.spec.shape, a.spec.dtype) if isinstance(a, TensorArgument) else ("scalar", a.path, (), type(a.value).__name__)
        for a in problem.arguments
    ]


def _operator_name(attempt: Attempt) -> str:
    """One operator a kernel and problem: the same source may solve others, at other sizes."""
    return f"{attempt.candidate.id}_{attempt.problem.problem.id}"


def _literal(source: str) -> str:
    """Readable triple quotes, unless the text does not fit between them."""
    return repr(source) if "'''" in source or source.endswith("\\") else f"r'''{source}'''"


def _summary(attempt: Attempt) -> str:
    verdict = attempt.judged.verdict
    head = f"{attempt.problem.problem.name}: kernel {attempt.candidate.id}"
    if not isinstance(verdict, Passed):
        return head
    m = verdict.measurement
    over_compile = f", {m.speedup_compile.median:.2f}x torch.compile" if m.speedup_compile else ""
    return f"{head}, {m.speedup_eager.median:.2f}x eager{over_compile} on {attempt.judged.device.name}."
