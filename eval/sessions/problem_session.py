"""One problem, ready to judge candidates against: its reference worker, draws and oracle answers.

Comes in: a FunctionalProblem, and outputs of calls on its contents. Goes out: how they compare with what is right,
which the reference worker works out and keeps. Nothing of a candidate is known in this module. How long the reference
takes is told by `ReferenceTimes`, made beside it; what else is known of the problem stands in a `ProblemKnowledge`.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from rag_kernels.eval.admission_records import Admission
from rag_kernels.eval.buffers.call_content import Recipe, plain, whole_draw
from rag_kernels.eval.buffers.output_snapshot import OutputSnapshot
from rag_kernels.eval.buffers.parallel_copy import copied, copy_bytes
from rag_kernels.eval.buffers.shared_arena import Arena
from rag_kernels.eval.machine.device import measured
from rag_kernels.eval.messages.to_reference import (
    Answered,
    Checked,
    CheckOutputs,
    Comparison,
    ComputeAnswer,
    PrecisionShown,
    ShowPrecision,
    TakeOutputs,
    TookOutputs,
)
from rag_kernels.eval.process.workers import WorkerFailed
from rag_kernels.eval.records import Device, FunctionalProblem
from rag_kernels.eval.sessions.problem_contents import ProblemContents
from rag_kernels.eval.sessions.reference_worker import Resources
from rag_kernels.eval.sessions.special_draws import EIGHT_BITS, SpecialDraws
from rag_kernels.eval.traits.aten import operator
from rag_kernels.eval.traits.input_kinds import ALOFT, BESIDE_HUGE, BURSTS, HARDLY_JOINED, INTEGERS
from rag_kernels.eval.traits.steps import has_steps

HELD_NEAR = (*BURSTS, ALOFT, BESIDE_HUGE, HARDLY_JOINED)  # kinds on which small results are held to themselves


class ProblemSession(ProblemContents):
    """Contents of a problem with what is right for them. `specials` are its draws of special kinds."""

    def __init__(self, fp: FunctionalProblem, resources: Resources) -> None:
        super().__init__(fp, resources)
        self.specials = SpecialDraws(self)
        self._keep, self._measured_again = resources.keep, False  # ceilings that turned out higher
        self._taken: OutputSnapshot | None = None  # which lies there now
        self.by_noise = False  # see `compare_by_noise`
        self.admission: Admission | None = None  # by whose limits outputs are compared; see `compare_by`
        self.oracle_kind = "fp64"

    @property
    def reads_in_part(self) -> bool:
        """Whether the problem may be right without reading all of its inputs, so that bytes are no bound."""
        return any(operator(name).reads_in_part for name in self.fp.features.operators)

    @property
    def decided_on_content(self) -> bool:
        """Whether rounding may decide on outputs by a step, as on integers and 8-bit floats: seen on their content."""
        few = {*INTEGERS, *EIGHT_BITS, "bool"}
        return any(s.dtype in few for s in self.fp.outputs) or has_steps(self.fp)

    def compare_by(self, admission: Admission | None) -> None:
        """Compare outputs from now on by the limits that were calibrated for the problem; None: those of the dtype."""
        self.admission = admission

    def compare_by_noise(self) -> None:
        """Compare outputs from now on by what rounding as it is allowed does to each draw.

        At other sizes than the problem's a lower precision is farther from fp32, or less far, than its limits say.
        """
        self.by_noise = True

    def _answer(self, draw: int) -> None:
        """Have the answer for a whole draw computed and remembered."""
        self.write(plain(draw, len(self.specs)))
        limit_s = max(self.limits.open_s, self.call_limit_s)
        reply = self.ask(ComputeAnswer(draw, noisy=self.by_noise), Answered, deadline_s=limit_s)
        self.answered.add(draw)
        self.oracle_kind = reply.oracle

    def require_answer(self, recipe: Recipe) -> None:
        """Compute a whole draw's answer now, so that it is not computed between a call and its check."""
        draw = whole_draw(recipe)
        if draw is not None and draw not in self.answered:
            self._answer(draw)

    def check(self, outputs: OutputSnapshot, recipe: Recipe, *, noisy: bool = False) -> tuple[Comparison, ...]:
        """Compare a call's outputs with the answer, one by one; `noisy` where rows of special kinds are among them."""
        self.require_answer(recipe)
        draw, a = whole_draw(recipe), self.admission
        kind = "" if draw is None else self.specials.kind_of(draw)
        noisy = noisy or self.by_noise
        special = noisy if draw is None else self.by_noise or bool(kind)
        ordinary = not special  # else the noise there sets the limit
        limits = a.limits(self.limits.precision) if a and ordinary else None
        limit_s = max(self.limits.open_s, self.call_limit_s)
        answer = self.remembered.number(recipe) if draw is None else draw
        if answer is None or answer not in self.answered or self.decided_on_content:
            self.write(recipe)
        if answer is not None and answer not in self.answered:
            self.ask(ComputeAnswer(answer, noisy), Answered, deadline_s=limit_s)
            self.answered.add(answer)
        self._submit(outputs)
        request = CheckOutputs(answer, outputs.number, limits, noisy, near=kind in HELD_NEAR)
        results = self.ask(request, Checked, deadline_s=limit_s).results
        if any(result.unsettled for result in results):
            self.write(recipe)
            results = self.ask(replace(request, settle=True), Checked, deadline_s=limit_s).results
        unsound = self.specials.unsound.get(draw, set()) if draw is not None else set()
        return tuple(Comparison(True, 0.0, "") if i in unsound else result for i, result in enumerate(results))

    def _submit(self, outputs: OutputSnapshot) -> None:
        if outputs is not self._taken:
            if outputs.lent:
                raise RuntimeError("Outputs are compared after others took their place: they should have been kept.")
            self._taken = None
            for index, raw in enumerate(outputs.copies):
                copy_bytes(self.submitted.bytes(index), raw)

    def take(self, outputs: Arena | None, *, keep: bool) -> OutputSnapshot:
        """Return a copy of what a candidate wrote: to `outputs`, or (GPU) to the shared memory.

        It is good until the next one is taken or another one compared, unless it is to be kept: on a CPU it lies where
        the reference worker reads it.
        """
        if outputs is not None and keep:
            return OutputSnapshot(tuple(copied(outputs.bytes(index)) for index in range(len(self.fp.outputs))))
        if outputs is not None:
            places = tuple(self.submitted.bytes(index) for index in range(len(self.fp.outputs)))
            for index, place in enumerate(places):
                copy_bytes(place, outputs.bytes(index))
            self._taken = OutputSnapshot(places, lent=True)
            return self._taken
        reply = self.ask(TakeOutputs(keep), TookOutputs)
        return OutputSnapshot(number=reply.taken, hash=reply.hash)

    def precision(self, outputs: OutputSnapshot, draw: int, *, ordinary: bool = False) -> tuple[str, float]:
        """Return the precision class that the outputs on a probe's draw, or on an `ordinary` one, show, and the
        relative error that goes with it.
        """
        self._submit(outputs)
        self.write(plain(draw, len(self.specs)))
        limit_s = max(self.limits.open_s, 4 * self.call_limit_s)
        reply = self.ask(ShowPrecision(draw, outputs.number, ordinary), PrecisionShown, deadline_s=limit_s)
        return reply.name, reply.error

    def raise_ceilings(self, device: Device) -> None:
        """Take the device with ceilings that are higher than was known, and have it kept."""
        if device != self.device:
            self.device = self._keep(device)

    def measure_again(self) -> None:
        """Measure the device's ceilings again, once a session; where that fails they stay as they are."""
        if not self._measured_again:
            self._measured_again = True
            with suppress(WorkerFailed), self.device_lock.alone():
                self.raise_ceilings(measured(self.device, self.workers))
