"""The best kernel of a module, and where it goes: from a live `nn.Module` to one that runs the kernel.

Comes in: a module with example inputs. Goes out: a `Best`, to run, to save, to explain, and to put into a model. Start
at `optimize`. Knows nothing of terminals.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from rag_kernels.archive.protocol import Archive
from rag_kernels.archive.records import Attempt
from rag_kernels.eval.judge import Judge
from rag_kernels.eval.problem import problem_from_source
from rag_kernels.eval.records import Problem, ProblemError
from rag_kernels.eval.sizes.workloads import workloads_of
from rag_kernels.eval.told import told
from rag_kernels.example_call import Leaves, example_call
from rag_kernels.export.drop_in import DropIn, Fallback, with_kernel
from rag_kernels.export.forms.module_file import compiled_of
from rag_kernels.export.out_file import write_kernel
from rag_kernels.export.runtime import CompiledForward
from rag_kernels.export.serving.inputs import Arranged, arranged_in
from rag_kernels.export.serving.results import Results, results_of
from rag_kernels.export.training_step import told as step_told
from rag_kernels.feedback import explain
from rag_kernels.ingest.functional.training_step import training_step
from rag_kernels.ingest.live.called_module import Call, problem_of_calls
from rag_kernels.ingest.live.live_module import name_of, problem_of_module, without_gradient
from rag_kernels.options import Keywords, OptionError, options_of
from rag_kernels.records import Writer
from rag_kernels.report.console import attempt_line, detail, served_line, speeds, summary, total_line
from rag_kernels.report.json_rows import attempt_row, result_row, served_row, total_row
from rag_kernels.run.workloads import Search, Served, searched_at, total
from rag_kernels.wiring import open_session, place_of

if TYPE_CHECKING:
    import torch

COLUMNS = ("#", "verdict", "over eager", "over torch.compile", "idea, or what is wrong")


@dataclass(frozen=True, slots=True)
class Calls:
    """Which calls of one module took its kernel, and the others: how many of each kind, and why the last of it."""

    module: str  # its name in the model; "" is the model itself
    kernel: int  # calls that took the kernel
    fallbacks: tuple[Fallback, ...]


@dataclass(frozen=True, slots=True, repr=False)
class Best:
    """Hold what a search for a module's kernel came to. `attempt` is the best one; None where no kernel is right."""

    module: torch.nn.Module
    problem: Problem
    attempts: tuple[Attempt, ...]
    attempt: Attempt | None
    signature: tuple[Any, ...] = ()  # of the module, as it was when the kernel was written
    served: tuple[Served, ...] = ()  # what came of the kernel at each workload, where there are several
    results: Results | None = None  # how the module arranges its results
    leaves: Leaves | None = None  # of the call
    arranged: Arranged = None  # how the call nests them

    @property
    def speedup(self) -> float | None:
        """Return the kernel's one number, over the better baseline: confirmed, else the lower end of its interval."""
        said = told(self.attempt.judged) if self.attempt else None
        return said.speedup if said else None

    def save(self, path: str | Path) -> Path:
        """Write the kernel, in the format of the path's suffix (.py: an importable module), and return where.

        Raises ProblemError where there is no kernel, or no such folder.
        """
        if not Path(path).absolute().parent.is_dir():
            raise ProblemError(f"{path} cannot be written: its folder does not exist.")
        return write_kernel(self._kernel(), Path(path))

    def explain(self) -> str:
        """Return what was found, what every attempt came to, and what holds the kernel back."""
        run_id = self.attempts[0].run_id if self.attempts else None
        row = result_row(self.attempts, run_id=run_id, problem=self.problem.name)
        parts = [summary(row | ({"step": self._step_told()} if row["step"] else {}))]
        parts += [attempt_line(attempt_row(attempt)) for attempt in self.attempts]
        if self.served:
            parts += [served_line(served_row(one)) for one in self.served]
            parts.append(total_line(total_row(total(self.served), workloads=len(self.served))))
        if self.attempt is not None:
            judged, features = self.attempt.judged, self.attempt.problem.features
            parts.append(explain.explain(judged.verdict, device=judged.device, features=features))
        return "\n".join(parts)

    def optimized(self) -> torch.nn.Module:
        """Return a module that runs the kernel where it serves a call, else the original.

        Its parameters are those of the original. Raises ProblemError where there is no kernel, and where the module is
        another one by now than it was written for.
        """
        kernel = self._kernel()
        if not self.fits(self.module):
            raise ProblemError(
                f"{self.problem.name} has other settings than the kernel was written for: optimize again."
            )
        return with_kernel(copy.copy(self.module), self._compiled(kernel), self.results)

    def fits(self, module: torch.nn.Module) -> bool:
        """Return whether a module is of the same class, settings, and shapes of parameters and buffers."""
        return _signature(module) == (self.signature or _signature(self.module))

    def _compiled(self, kernel: Attempt) -> CompiledForward:
        """Return the kernel for calls that are given as the example's is."""
        compiled, leaves = compiled_of(kernel, listed=True), self.leaves
        return compiled.called(leaves.tensors, leaves.others, self.arranged) if leaves else compiled

    def _step_told(self) -> str:
        """Return what is told of the kernel of a training step, or why it cannot train."""
        try:
            return step_told(self._kernel(), compiled_of(self._kernel(), listed=True))
        except ProblemError as error:
            return str(error)

    def _kernel(self) -> Attempt:
        if self.attempt is None:
            raise ProblemError(f"{self.problem.name} has no verified kernel: raise `effort`, or name a model.")
        return self.attempt

    def __repr__(self) -> str:
        return f"<Best of {self.problem.name}: {self.attempt!r} of {len(self.attempts)} attempts>"

    def _repr_html_(self) -> str:
        """Return a table of the attempts, for notebooks."""
        head = "".join(f"<th>{name}</th>" for name in COLUMNS)
        rows = "".join(f"<tr>{_cells(attempt)}</tr>" for attempt in self.attempts)
        return f"<p>{escape(repr(self))}</p><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def optimize(
    module: torch.nn.Module,
    example_inputs: Sequence[Any] | Mapping[str, Any] | torch.Tensor,
    example_kwargs: Mapping[str, Any] | None = None,
    *,
    workloads: Sequence[Sequence[Any] | Mapping[str, Any]] = (),
    training: bool = False,
    name: str = "",
    writer: Writer | None = None,
    judge: Judge | None = None,
    archive: Archive | str | Path | None = None,
    progress: Callable[[Attempt], object] | None = None,
    **options: Unpack[Keywords],
) -> Best:
    """Write, prove and time kernels for a module as it is called with these inputs; return the best.

    Inputs are a list as in a call, or a dict of them by name; `example_kwargs` are those that are given by keyword
    beside a list. They are tensors, in lists, tuples and dicts or not; numbers, strings, truth values and None are
    constants: a call with others runs the module itself. `workloads` are other calls that the module gets, which differ
    in sizes alone: the kernel is then the one that serves all of them best. `training` takes a step of training: one
    kernel for the forward and for the gradients of inputs and of parameters that want one; where some inputs require a
    gradient, of those inputs alone.
    `progress` is called with each attempt as soon as it is judged. Other keywords are the fields of `Options`.

    Raises ProblemError where the module cannot be traced, and OptionError for an option that cannot be used.
    """
    if not hasattr(module, "forward"):
        raise OptionError(f"optimize() takes a module, not {module!r}; generate() takes a problem file.")
    if progress is not None and not callable(progress):
        raise OptionError(f"progress={progress!r} cannot be called: it is a function of an attempt.")
    call, leaves = example_call(module, example_inputs, example_kwargs)
    place, opened = place_of(archive)
    settings = options_of(options, place)
    others = [example_call(module, one, example_kwargs) for one in workloads]
    problem, signature = _problem(module, (call, leaves), others, name), _signature(module)
    if training:
        problem = training_step(problem, fixed=without_gradient(call.tensors()))
    sizes = workloads_of(problem)
    attempts = []
    with open_session(settings, writer=writer, judge=judge, archive=opened) as session:
        search = Search.of(session, problem, sizes)
        for event in search.events():
            if isinstance(event, Attempt):
                attempts.append(event)
                if progress is not None:
                    progress(event)
    found = search.found
    assert found is not None
    return Best(
        module,
        searched_at(problem, sizes),
        tuple(attempts),
        found.best,
        signature,
        served=found.served,
        results=_results(module, call),
        leaves=leaves,
        arranged=arranged_in(type(module).forward, module, call.args, call.kwargs),
    )


def _results(module: torch.nn.Module, call: Call) -> Results | None:
    """Return how a module arranges its results; None where that takes data: its first call tells."""
    try:
        return results_of(module.forward, call.args, dict(call.kwargs))
    except Exception:  # whatever a module raises without data
        return None


def _problem(
    module: torch.nn.Module, first: tuple[Call, Leaves], others: Sequence[tuple[Call, Leaves]], name: str
) -> Problem:
    (call, leaves), name = first, name or name_of(module)
    if not others and leaves.plain() and not call.kwargs and len(call.args) == len(leaves.tensors):
        return problem_of_module(module, call.args, name)
    made = problem_of_calls(module, [call, *(one for one, _ in others)], name)
    if made.notes:
        raise ProblemError(
            f"{name} cannot serve all workloads by one kernel: {'; '.join(made.notes)}. "
            "Workloads differ in sizes alone: optimize the module for each other kind of call by itself."
        )
    return problem_from_source(name, made.source)


def apply(model: torch.nn.Module, kernels: Iterable[Best]) -> list[str]:
    """Put kernels into a model, in place: wherever a submodule is like the module that one was written for.

    Returns the names of the submodules that run one now. They keep their parameters, hooks, names and base class; a
    call that a kernel does not serve runs the module itself, and `apply.report(model)` counts both.
    """
    found = [(best, best._compiled(best._kernel())) for best in kernels if best.attempt is not None]
    replaced: list[str] = []
    for name, module in list(model.named_modules()):
        best, compiled = next(((best, compiled) for best, compiled in found if best.fits(module)), (None, None))
        if best is None or compiled is None or isinstance(module, DropIn) or any(_within(name, o) for o in replaced):
            continue
        with_kernel(module, compiled, best.results)
        replaced.append(name)
    return replaced


def report(model: torch.nn.Module) -> list[Calls]:
    """Return, for every module of a model that has a kernel, which calls took it, which fell back, and why."""
    return [
        Calls(name, module.kernel_calls, tuple(module.kernel_fallbacks.values()))
        for name, module in model.named_modules()
        if isinstance(module, DropIn)
    ]


apply.report = report  # type: ignore[attr-defined]


def _within(name: str, outer: str) -> bool:
    return not outer or name.startswith(f"{outer}.")


def _signature(module: torch.nn.Module) -> tuple[Any, ...]:
    """Return what two modules must have in common to compute the same: classes, settings, shapes and dtypes."""
    told_of: list[Any] = []
    for name, part in module.named_modules():
        values = vars(part).items()
        settings = {key: _setting(value) for key, value in values if not key.startswith(("_", "kernel_"))}
        told_of.append((name, getattr(part, "MADE_OF", type(part)), settings))
    told_of += [(name, tuple(value.shape), value.dtype) for name, value in module.state_dict().items()]
    return tuple(told_of)


def _setting(value: Any, depth: int = 3) -> str:
    """Return the text of a setting; of an object without one of its own what is in it, not where it is."""
    own = getattr(type(value), "__repr__", None) is not object.__repr__
    if own or not depth or not hasattr(value, "__dict__"):
        return repr(value)
    return f"{type(value)} of { {name: _setting(one, depth - 1) for name, one in vars(value).items()} }"


def _cells(attempt: Attempt) -> str:
    row = attempt_row(attempt)
    texts = (str(row["attempt"]), row["verdict"], *speeds(row), detail(row))
    return "".join(f"<td>{escape(text)}</td>" for text in texts)
