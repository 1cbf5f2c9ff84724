"""A problem's module examined in a child process of its own: what its outputs depend on, and how exact they are.

Comes in: a FunctionalProblem, a device, a seed and a budget in seconds. Goes out: an `Examination`. Inputs and
parameters are drawn anew as the reference worker draws them; outputs are compared with a run in fp64. What does not fit
into the budget or the memory is left out with a note. Knows nothing of candidates.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from rag_kernels.eval.admission_records import (
    Calibration,
    Examination,
    NullKernel,
    Output,
    Sensitivity,
)
from rag_kernels.eval.children.examination.error_calibration import Case, calibrate
from rag_kernels.eval.children.examination.null_kernels import Sample, tried_null_kernels
from rag_kernels.eval.machine.device_lock import DeviceLock
from rag_kernels.eval.numerics.eight_bits import in_float32, narrowed
from rag_kernels.eval.numerics.oracle import (
    double_factories,
    doubled,
    right_answer,
    seed_draws,
    strict_precision,
    tensors,
    vary,
)
from rag_kernels.eval.problem import load_module
from rag_kernels.eval.records import FunctionalProblem, TensorArgument
from rag_kernels.eval.traits.steps import has_steps, is_elementwise

TINY = 1e-300
SLOW_SHARE = 0.25  # of the budget; beyond it only one kind of inputs is calibrated
Values = dict[str, torch.Tensor]


def examine(payload: dict[str, Any]) -> Examination:
    """Return everything about one problem. `payload`: problem, device, threads, seed, budget_s, turns."""
    torch.set_num_threads(payload["threads"])
    strict_precision()
    units, locks = payload["lock"]
    device_lock, device = DeviceLock(units, Path(locks)), torch.device(payload["device"])
    torch.ones(1, device=device)  # a GPU's context takes no turn
    with device_lock.shared(), torch.no_grad():
        started = time.monotonic()
        subject = ExaminedModule(payload["problem"], device, payload["seed"])
        return Examiner(subject, started, payload["budget_s"], device_lock).examine()


class ExaminedModule:
    """The module as a function of its tensor arguments, by name."""

    def __init__(self, fp: FunctionalProblem, device: torch.device, seed: int) -> None:
        self.fp, self.device, self.seed = fp, device, seed
        module = load_module(fp.problem.name, fp.problem.source, device=str(device))
        self.get_inputs = module.get_inputs
        with device:
            seed_draws(seed, device)
            self.model = module.Model(*module.get_init_inputs()).to(device)
            self.leaves, self.tree = pytree.tree_flatten(list(module.get_inputs()))
        self.model.requires_grad_(False)
        self.generator = torch.Generator(device).manual_seed(seed ^ 0x5EED)
        held = [a for a in fp.tensors if a.role != "input"]  # values of eight bits are widened for what moves them
        self.initial = {a.name: in_float32(self._attribute(a.path).detach().clone()) for a in held}
        self.mutated = {path: self._attribute(path).detach().clone() for path in fp.mutated}
        self.draws = 0

    def _attribute(self, path: str) -> torch.Tensor:
        value: Any = self.model
        for part in path.split("."):
            value = getattr(value, part)
        assert isinstance(value, torch.Tensor)
        return value

    def inputs(self) -> Values:
        """Return the problem's own inputs, drawn anew."""
        self.draws += 1
        seed_draws(self.seed + self.draws, self.device)
        with self.device:
            leaves = pytree.tree_leaves(list(self.get_inputs()))
        return {a.name: in_float32(leaves[int(a.path)].to(self.device)) for a in self.fp.tensors if a.role == "input"}

    def normal(self, own: Values) -> Values:
        """Return the same with zero-mean inputs."""
        inputs = {a.name for a in self.fp.tensors if a.role == "input" and own[a.name].is_floating_point()}
        return {n: self._normal(v) if n in inputs and v.dim() else v for n, v in own.items()}

    def _normal(self, own: torch.Tensor) -> torch.Tensor:
        return torch.randn(own.shape, generator=self.generator, device=self.device).to(own.dtype)

    def held(self) -> Values:
        """Return parameters (zero biases and unit scales moved, others rotated) and buffers."""
        roles = {a.name: a.role for a in self.fp.tensors}
        moved = {n: vary(v, self.generator) if roles[n] == "parameter" else v for n, v in self.initial.items()}
        return {name: value.clone() for name, value in moved.items()}

    def redrawn(self, argument: TensorArgument, old: torch.Tensor, others: Values) -> torch.Tensor | None:
        """Return another value for one argument; None where no other can be made."""
        if argument.role == "input":
            new = others[argument.name]
            if not torch.equal(new, old):
                return new
        if old.is_floating_point():  # a rotation alone would leave sums as they are
            noise = torch.rand(old.shape, generator=self.generator, device=self.device) * 0.6 + 0.7
            new = vary(old, self.generator) * noise.to(old.dtype)
        else:
            new = torch.roll(old.reshape(-1), 1 + old.numel() // 3).reshape(old.shape)
        return None if torch.equal(new, old) else new

    def run(self, values: Values, mode: Any = None, *, double: bool = False) -> list[torch.Tensor]:
        """Return the outputs; updates of buffers are lost."""
        values = {a.name: narrowed(values[a.name], getattr(torch, a.spec.dtype)) for a in self.fp.tensors}
        by_path = {a.path: values[a.name] for a in self.fp.tensors if a.role != "input"}
        state = dict(self.model.named_parameters()) | dict(self.model.named_buffers()) | self.mutated | by_path
        state |= {path: state[path].clone() for path in self.mutated}
        leaves = list(self.leaves)
        for argument in self.fp.tensors:
            if argument.role == "input":
                leaves[int(argument.path)] = values[argument.name].clone()  # modules may write to their inputs
        inputs = pytree.tree_unflatten(leaves, self.tree)
        if double:
            state, inputs = doubled(state), doubled(inputs)
        with mode or contextlib.nullcontext(), double_factories() if double else contextlib.nullcontext():
            results = tensors(torch.func.functional_call(self.model, state, tuple(inputs)))
        return [t.clone() for t in results]


class Examiner:
    """Runs the parts one after the other; each may fail or be left out without harm to the others."""

    def __init__(self, subject: ExaminedModule, started: float, budget_s: float, device_lock: DeviceLock) -> None:
        self.subject, self.started, self.budget_s, self.device_lock = subject, started, budget_s, device_lock
        self.notes: list[str] = []
        self.oracle_kind = "fp64"

    def out_of_time(self) -> bool:
        """Return whether time is up. Asked between steps, so that it is also where others may time."""
        if self.subject.device.type != "cpu":
            torch.cuda.synchronize()
        before = time.monotonic()
        self.device_lock.give_way()
        self.started += time.monotonic() - before  # waiting for others costs no budget
        return time.monotonic() > self.started + self.budget_s

    def attempt(self, what: str, work: Callable[[], Any]) -> Any:
        """Return the part's result, or None with a note."""
        if self.out_of_time():
            self.notes.append(f"{what}: left out, there was no time for it")
            return None
        try:
            return work()
        except (RuntimeError, TypeError, ValueError, MemoryError, NotImplementedError) as error:
            self.notes.append(f"{what}: failed ({type(error).__name__}: {str(error).splitlines()[0][:160]})")
            return None

    def examine(self) -> Examination:
        subject = self.subject
        inputs, self.other_inputs = subject.inputs(), subject.inputs()
        given = self._sample("as given", inputs | subject.initial, self.other_inputs)
        samples = [given]
        self.own = inputs | subject.held()
        if subject.initial:
            varied = self.attempt("other parameters", lambda: self._sample("own", self.own, self.other_inputs))
            samples += [varied] if varied else []
        normal = subject.normal(self.own)
        if any(not torch.equal(normal[name], self.own[name]) for name in self.own):
            zero_mean = self.attempt("zero-mean inputs", lambda: self._sample("normal", normal, subject.normal(normal)))
            if zero_mean and all(bool(torch.isfinite(t).all()) for t in zero_mean.oracle):
                samples.append(zero_mean)
        outputs = self._outputs(given)
        rows: tuple[NullKernel, ...] = (
            self.attempt("null kernels", lambda: tried_null_kernels(samples, self.out_of_time)) or ()
        )
        slow = time.monotonic() > self.started + SLOW_SHARE * self.budget_s
        first = len(samples) - 1 if slow else min(1, len(samples) - 1)  # the last sample shows lower precision best
        calibration: Calibration | None = None
        if self.oracle_kind == "fp64":
            calibration = self.attempt("calibration", lambda: self._calibrate(samples[first:]))
        sensitivities = self.attempt("sensitivities", self._sensitivities) or ()
        return Examination(
            outputs=outputs,
            kinds=tuple(s.kind for s in samples),
            oracle=self.oracle_kind,
            null_kernels=rows,
            sensitivities=sensitivities,
            calibration=calibration,
            notes=tuple(self.notes),
            seconds=time.monotonic() - self.started,
        )

    def _exact(self, values: Values, reference: list[torch.Tensor]) -> list[torch.Tensor]:
        exact = right_answer(lambda: self.subject.run(values, double=True), reference)
        if exact is not None:
            return exact
        if self.oracle_kind == "fp64":
            self.oracle_kind = "own dtype"
            self.notes.append("the module does not run in fp64: compared with its own dtype")
        return reference

    def _sample(self, kind: str, values: Values, others: Values) -> Sample:
        """Return right answers for these values, and how to run on the same parameters with other inputs."""
        run = self.subject.run
        reference = run(values)
        inputs = frozenset(a.name for a in self.subject.fp.tensors if a.role == "input")
        runs: dict[str, Callable[[], list[torch.Tensor]]] = {}
        if any(not torch.equal(others[name], values[name]) for name in inputs):
            runs["previous output"] = cache(lambda: run(values | {name: others[name] for name in inputs}))
        for name in sorted(inputs):
            less = _half(values[name])
            if less is not None:
                runs[f"half of {name}"] = lambda name=name, less=less: run(values | {name: less})  # type: ignore[misc]
        return Sample(kind, values, inputs, reference, self._exact(values, reference), runs)

    def _outputs(self, given: Sample) -> tuple[Output, ...]:
        previous = given.others.get("previous output", lambda: given.reference)()
        rows = []
        for right, exact, other in zip(given.reference, given.oracle, previous, strict=True):
            x, y = exact.double(), other.double()
            rms, gone = _rms(x), (x - y).abs()
            spread = tuple(_relative(_rms(x - x.mean(axis, keepdim=True)), rms) for axis in range(x.dim()))
            # An element far smaller than the largest is held to the scale of a hundredth of it.
            scale = x.abs().clamp(min=0.01 * float(x.abs().max())) if x.numel() else x
            changed_max = float((gone / scale.clamp(min=TINY)).max()) if x.numel() else 0.0
            rows.append(
                Output(
                    shape=tuple(right.shape),
                    dtype=str(right.dtype).removeprefix("torch."),
                    rms=rms,
                    finite=bool(torch.isfinite(in_float32(right)).all()),
                    spread=spread,
                    changed=_relative(_rms(gone), rms),
                    changed_max=changed_max,
                )
            )
        return tuple(rows)

    def _calibrate(self, samples: list[Sample]) -> Calibration | None:
        subject = self.subject
        cases = [
            Case(lambda mode, values=s.values: subject.run(values, mode), s.reference, s.oracle)  # type: ignore[misc]
            for s in samples
        ]
        return calibrate(
            cases,
            subject.generator,
            self.out_of_time,
            elementwise=is_elementwise(subject.fp),
            steps=has_steps(subject.fp),
        )

    def _sensitivities(self) -> tuple[Sensitivity, ...]:
        fp = self.subject.fp
        oracle = self.subject.run(self.own, double=self.oracle_kind == "fp64")
        wanted = sorted((a for a in fp.tensors if a.path not in fp.mutated), key=lambda a: a.role != "input")
        return tuple(self._sensitivity(a, oracle) for a in wanted)

    def _sensitivity(self, argument: TensorArgument, oracle: list[torch.Tensor]) -> Sensitivity:
        if self.out_of_time():
            return Sensitivity(argument.name, argument.role, None, "no time left")
        old = self.own[argument.name]
        new = self.subject.redrawn(argument, old, self.other_inputs)
        if new is None:
            return Sensitivity(argument.name, argument.role, None, "it has no other value")
        try:
            moved = self.subject.run(self.own | {argument.name: new}, double=self.oracle_kind == "fp64")
        except (RuntimeError, TypeError, ValueError, IndexError):
            return Sensitivity(argument.name, argument.role, None, "the module refuses other values")
        pairs = zip(oracle, moved, strict=True)
        return Sensitivity(
            argument.name, argument.role, max(_relative(_rms(a.double() - b.double()), _rms(a)) for a, b in pairs)
        )


def _half(value: torch.Tensor) -> torch.Tensor | None:
    """Return the value with the second half of its last dimension zeroed, as a sampled reduction would see it."""
    if not value.is_floating_point() or value.dim() == 0 or value.shape[-1] < 2 or not bool(value.any()):
        return None
    less = value.clone()
    less[..., value.shape[-1] // 2 :] = 0
    return None if torch.equal(less, value) else less


def _rms(value: torch.Tensor) -> float:
    return float(value.double().square().mean().sqrt()) if value.numel() else 0.0


def _relative(change: float, scale: float) -> float:
    if change == 0:
        return 0.0
    return change / scale if scale else float("inf")
