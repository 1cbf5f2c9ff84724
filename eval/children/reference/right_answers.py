"""What a problem's outputs are to be, and whether given outputs are that.

Comes in: a bound module, and outputs of a candidate as bytes that others have copied. Goes out: comparisons. The
right answer to a content is the module's own in fp64; what differs from it is right all the same where rounding decides
a step, or where indices choose values that are as good (`numerics.steps`). Runs in the reference's process, which
never sees a candidate.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from dataclasses import replace
from functools import partial

import torch

from rag_kernels.eval.admission_records import LARGEST, TWICE
from rag_kernels.eval.children.reference.answer import Answer, Outputs
from rag_kernels.eval.children.reference.bound_module import BoundModule
from rag_kernels.eval.children.reference.other_roundings import OtherRoundings
from rag_kernels.eval.machine.full_memory import ran_out_of_memory
from rag_kernels.eval.messages.to_reference import Answered, Checked, Comparison, PrecisionShown
from rag_kernels.eval.numerics.by_chance import by_chance
from rag_kernels.eval.numerics.compare import (
    LIMITS,
    MOST_BITS,
    NOISE_SHARE,
    UNIT_ROUNDOFF,
    compare,
    decided_by_rounding,
    exceeding,
    own_error,
    ratios,
    unpacked,
)
from rag_kernels.eval.numerics.cut_factors import BITS, COARSE_SHARE, COARSER, GOES_WITH, goes_with, middle
from rag_kernels.eval.numerics.decisions import AsDecided, Deciding, Decision
from rag_kernels.eval.numerics.eight_bits import EIGHT_BITS, chosen, narrowed
from rag_kernels.eval.numerics.exactness_probe import relative_error, targets
from rag_kernels.eval.numerics.octaves import small_fault
from rag_kernels.eval.numerics.oracle import ExactCasts, double_factories, right_answer
from rag_kernels.eval.numerics.rounding_faults import rounding_fault, signs_of_zeros
from rag_kernels.eval.numerics.rounding_noise import SCALE, Perturbed, cut_to_tf32, through, to_tf32
from rag_kernels.eval.numerics.steps import (
    Choosing,
    as_good,
    as_near,
    as_pytorch_steps,
    chosen_by_rounding,
    dense,
    excused,
    lone,
    rounded_as_owed,
    stepped,
)
from rag_kernels.eval.numerics.ties import Arranged, taken_by, takes_any
from rag_kernels.eval.traits.index_ties import index_source, is_rounded
from rag_kernels.eval.traits.input_kinds import SPLIT, precision_class
from rag_kernels.eval.traits.marked_values import moves_at_numbers
from rag_kernels.eval.traits.packed_bits import packed_at
from rag_kernels.eval.traits.steps import has_steps, longest_sum

DENSE_RUNS = 5  # with the rounding of a product's operands
FEW = 256  # elements of an output
HALF = 2  # bytes
KEPT = 16  # a part of a GPU's free memory that temporaries may keep
LEAST_APART = 4.0  # times as large as of TF32 are errors of bf16 on a probe, by their bits eight times


class RightAnswers:
    """The answers of one problem, by the number of the draw that they are for."""

    def __init__(self, module: BoundModule, forms: Outputs, *, operands: float) -> None:
        """Take a module and outputs of the shapes and dtypes that were traced.

        `operands` is the unit roundoff that those of products in fp32 may have, where a lower precision is allowed.
        """
        self.module, self.forms, self.operands = module, forms, operands
        self.has_steps, self.takes_any = has_steps(module.fp), takes_any(module.fp)
        self.longest = longest_sum(module.fp)
        self.moves_at_numbers = moves_at_numbers(module.fp)
        self.others = OtherRoundings(module, operands)
        self.answers: dict[int, Answer] = {}

    def compute(self, draw: int, *, noisy: bool, moved: bool, partly: bool = False) -> Answered:
        """Compute what is right for the current content, and remember it: whole draws come again.

        `noisy` also measures what honest rounding may do there; `partly` leaves a few elements open. Raises ValueError
        where the module returns other shapes or dtypes than were traced.
        """
        answer = self.answers[draw] = self._compute()
        if noisy:
            answer.noise = self.others.noise(answer, moved=NOISE_SHARE if moved else 0.0)
        if partly and answer.kind == "fp64":
            answer.leave_open()
        pairs = list(zip(answer.reference, answer.oracle, strict=True))
        own = tuple(own_error(r, o) if r.is_floating_point() else 0.0 for r, o in pairs)
        worst = max((relative_error(r, o) for r, o in pairs if r.is_floating_point()), default=0.0)
        self._release()
        return Answered(answer.kind, all(map(math.isfinite, own)), worst, own)

    def check(
        self,
        outputs: Outputs,
        draw: int | None,
        limits: tuple[float, float] | None,
        *,
        noisy: bool,
        settle: bool = False,
        near: bool = False,
    ) -> Checked:
        """Compare outputs with the answer of a draw, or with one computed now for the current content.

        `limits` are error ratios, of the root mean square and of the largest error. Where small elements are off, or
        equals may be taken in another order, it can be told to `settle` that, on the answer's own content. `near` holds
        small elements to themselves, whatever else is in their row. Raises as `compute` does.
        """
        answer = self.answers[draw] if draw is not None else self._compute()
        if noisy and draw is None:
            answer.noise = self.others.noise(answer)
        outputs = [got.to(self.module.device) for got in outputs]
        results = self._compared(outputs, answer, limits, settle=settle, near=near)
        if self.takes_any and not all(result.ok for result in results):
            if not settle:
                results = [replace(result, unsettled=not result.ok) for result in results]
            elif (other := self._in_their_order(outputs, answer)) is not None:
                results = self._compared(outputs, other, limits, settle=settle, near=near)
        self._release()
        return Checked(tuple(results))

    def _in_their_order(self, outputs: Outputs, answer: Answer) -> Answer | None:
        """Return the answer where equals are taken as outputs took them; None where they do not tell, or wrongly."""

        def run(places: dict[int, torch.Tensor]) -> tuple[list[torch.Tensor], Arranged]:
            self.module.restore()
            with Arranged(places) as found:
                return self.module.own_results(self.module.call()), found

        def in_double() -> list[torch.Tensor]:
            with Arranged(places):
                return self.module.call_in_double()

        if answer.kind != "fp64" or (places := taken_by(outputs, run)) is None:
            return None
        own, _ = run(places)
        exact = right_answer(in_double, own)
        return None if exact is None else self._without_steps(Answer(own, exact, "fp64"))

    def _compared(
        self, outputs: Outputs, answer: Answer, limits: tuple[float, float] | None, *, settle: bool, near: bool
    ) -> list[Comparison]:
        """Compare outputs with an answer, one by one."""
        noise = answer.noise or [None] * len(answer.oracle)
        outputs = answer.put_right(outputs)
        if answer.raw:
            outputs = [as_pytorch_steps(*o) for o in zip(outputs, answer.raw, answer.oracle, strict=True)]
        results = [
            compare(got, reference, oracle, noise=row, limits=limits, owed=owed)
            for got, reference, oracle, row, owed in zip(
                outputs, answer.reference, answer.oracle, noise, answer.yardsticks(), strict=True
            )
        ]
        for at, (result, got) in enumerate(zip(results, outputs, strict=True)):
            if not result.ok:
                results[at] = self._settled(result, at, got, answer, limits, settle=settle)
            elif got.dtype in EIGHT_BITS:
                told = rounded_as_owed(
                    got, answer.reference[at], answer.oracle[at], self.others.again(at, exact_stays=False)
                )
                results[at] = Comparison(False, result.ratio, told) if told else result
            elif answer.kind == "fp64" and got.is_floating_point():
                results[at] = self._where_small(result, got, at, answer, settle=settle, near=near)
        if answer.kind == "fp64" and answer.noise is None:  # of ordinary contents
            given = zip(results, outputs, answer.reference, answer.oracle, strict=True)
            results = [
                replace(r, rounding=rounding_fault(g, own, o, longest=self.longest), zeros=signs_of_zeros(g, own, o))
                for r, g, own, o in given
            ]
        return results

    def precision(self, outputs: Outputs, draw: int) -> PrecisionShown:
        """Name the precision that outputs show on the probe's draw, which is the current content."""
        error = self._probed(outputs, draw)
        name = precision_class(error, len(targets(self.module.fp)))
        if name == "bf16" and (error <= self._between(draw) or self._are_cut(outputs)):
            name = "tf32"
        return PrecisionShown(name, error)

    def kept_bits(self, outputs: Outputs, draw: int) -> PrecisionShown:
        """Name the precision of factors that errors on an ordinary draw, which is the current content, go with.

        The name is empty where there is no memory to find it out.
        """
        try:
            return self._kept_bits(outputs, self.answers[draw])
        except (RuntimeError, MemoryError) as error:
            if not ran_out_of_memory(error):
                raise
            return PrecisionShown("", 0.0)
        finally:
            self._release()

    def _kept_bits(self, outputs: Outputs, answer: Answer) -> PrecisionShown:
        if answer.kind != "fp64" or not any(self._share_lost(outputs, answer, bits) for bits in BITS):
            return PrecisionShown("strict", 0.0)
        shares = {name: self._share_lost(outputs, answer, bits) for name, bits in COARSER.items()}
        name = next((name for name, share in shares.items() if share > COARSE_SHARE), "split-precision")
        return PrecisionShown(name, 2.0 ** (1 - COARSER.get(name, max(BITS))))

    def _share_lost(self, outputs: Outputs, answer: Answer, bits: int) -> float:
        """Return how much of what outputs lose where products keep fewer bits of their factors is in the errors."""

        def with_less() -> list[torch.Tensor]:
            with Perturbed(operands=partial(middle, bits=bits), spread=True):
                return self.module.call_in_double()

        shares = [0.0]
        for got, exact, less in zip(
            outputs, answer.oracle, right_answer(with_less, answer.reference) or (), strict=False
        ):
            if got.dtype == torch.float32:
                shares.append(goes_with(got.to(self.module.device), exact, less))
        return max(share if share > GOES_WITH else 0.0 for share in shares)

    def _probed(self, outputs: Outputs, draw: int) -> float:
        """Return the largest relative error of any output on the probe's draw."""
        both = zip(outputs, self.answers[draw].oracle, strict=True)
        pairs = [(got, oracle) for got, oracle in both if got.is_floating_point()]
        return max((relative_error(g.to(self.module.device), o) for g, o in pairs), default=0.0)

    def _between(self, draw: int) -> float:
        """Return an error between what factors in TF32 and what factors in bf16 make of the probe's outputs.

        What follows a product (a norm, a softmax) may enlarge either. 0 where the two are not told apart so.
        """
        lower = []
        for change in (to_tf32, through(torch.bfloat16)):
            self.module.restore()
            with Perturbed(operands=change):
                results = self.module.call()
            lower.append(self._probed(results, draw))
        tf32, bf16 = lower
        return math.sqrt(tf32 * bf16) if bf16 > LEAST_APART * tf32 else 0.0

    def _are_cut(self, outputs: Outputs) -> bool:
        """Return whether outputs are what factors give that are cut to TF32: off to one side, which adds up."""
        pairs = [(got, cut) for got, cut in zip(outputs, self._with_cut(), strict=True) if got.is_floating_point()]
        return max((relative_error(g.to(self.module.device), c) for g, c in pairs), default=math.inf) < SPLIT

    def _with_cut(self) -> list[torch.Tensor]:
        """Return what the module gives where a tensor core cuts factors to TF32 that it is given in fp32."""
        self.module.restore()
        with Perturbed(operands=cut_to_tf32):
            return self.module.call()

    def _compute(self) -> Answer:
        results, made = self._own()
        _require_form(results, self.forms)

        def in_double() -> list[torch.Tensor]:
            with AsDecided(made) if made else contextlib.nullcontext():
                return self.module.call_in_double()

        exact = right_answer(in_double, results)
        if exact is None:
            return Answer(results, results, "own dtype")
        answer = self._without_steps(Answer(results, exact, "fp64"))
        # In fp64 the oracle rounds as badly as the module; a few sums that cancel have no scale of their own.
        if any(t.dtype == torch.float64 or t.numel() < FEW for t in results):
            answer.noise = self.others.noise(answer)
        return answer

    def _own(self) -> tuple[list[torch.Tensor], list[Decision]]:
        """Return the module's own outputs, and what it decided at numbers that had to be rounded."""
        self.module.restore()
        if not self.moves_at_numbers:
            return self.module.own_results(self.module.call()), []
        with Deciding() as deciding:
            return self.module.own_results(self.module.call()), deciding.made

    def _without_steps(self, answer: Answer) -> Answer:
        """Return an answer in which PyTorch's own steps by rounding are no errors that others may have anywhere."""
        if not self.has_steps:
            return answer
        raw = answer.reference
        floats = [own.is_floating_point() and own.numel() > 0 for own in raw]
        pairs = zip(raw, answer.oracle, floats, strict=True)
        steps = [stepped(own, right, right) if is_float else None for own, right, is_float in pairs]
        if any(step is not None for step in steps):
            answer.raw = raw
            answer.reference = [
                own if step is None else chosen(step, narrowed(right, own.dtype), own)
                for own, right, step in zip(raw, answer.oracle, steps, strict=True)
            ]
        return answer

    def _settled(
        self,
        result: Comparison,
        at: int,
        got: torch.Tensor,
        answer: Answer,
        limits: tuple[float, float] | None,
        *,
        settle: bool,
    ) -> Comparison:
        """Return the result of an output that differs: right if rounding decides where; its content is there, if the
        module has steps or it is to `settle`.
        """
        own, right = (answer.raw or answer.reference)[at], answer.oracle[at]
        if got.is_floating_point():
            if got.shape != right.shape:
                return result
            if self.has_steps:
                put_right = excused(got, own, right, self.others.again(at))
                if put_right is not None:
                    got, result = put_right, self._held(put_right, at, answer, limits)
                    if result.ok:
                        return result
                elif (times := dense(got, right, itertools.islice(self.others.again(at), DENSE_RUNS))) is not None:
                    return Comparison(True, times, "")
            if answer.kind != "fp64":
                return result
            if not settle:
                return replace(result, unsettled=True)
            if self.operands and got.dtype == torch.float32 and not answer.noise:
                limits = self._as_allowed(at, answer, limits)
                for compared in (self._held, self._as_cut):
                    if (held := compared(got, at, answer, limits)).ok:
                        return held
            if (put_right := self._lone(got, at, answer, limits)) is not None:
                return self._held(put_right, at, answer, limits)
            if answer.noise:
                return self._by_wide_noise(result, got, at, answer, limits)
            return self._by_chance(result, got, at, answer, limits)
        if at < len(self.module.fp.results) and is_rounded(self.module.fp, self.module.fp.results[at]):
            return Comparison(True, 0.0, "") if as_near(got, own, right, self.others.again(at)) else result
        if result.one_apart and decided_by_rounding(got, own, right, self.others.again(at)):
            return Comparison(True, 0.0, "")
        bits = packed_at(self.module.fp, self.module.fp.results[at]) if at < len(self.module.fp.results) else ()
        if bits and bits[-1] < min(8 * own.element_size(), MOST_BITS):
            again = (unpacked(other, own, bits) for other in self.others.again(at))
            mine, theirs, exact = (unpacked(value, own, bits) for value in (got, own, right.to(own.dtype)))
            if decided_by_rounding(mine, theirs, exact, again):
                return Comparison(True, 0.0, "")
        return Comparison(True, 0.0, "") if self._chosen_as_well(at, got, own, right) else result

    def _held(self, got: torch.Tensor, at: int, answer: Answer, limits: tuple[float, float] | None) -> Comparison:
        """Compare an output of which some elements were set right."""
        noise, owed = answer.noise[at] if answer.noise else None, answer.yardsticks()[at]
        return compare(got, answer.reference[at], answer.oracle[at], noise=noise, limits=limits, owed=owed)

    def _as_allowed(self, at: int, answer: Answer, limits: tuple[float, float] | None) -> tuple[float, float]:
        """Return limits with room for what the precision that is allowed makes of this very content.

        Limits were found on another draw. Where few factors are rounded (a layer's filters, in the mean over all its
        pixels) their errors are few, too, and much larger by chance on one draw than on the other.
        """
        rms, largest = limits or LIMITS[answer.reference[at].element_size()]
        lower = [through(torch.bfloat16)] if self.operands >= UNIT_ROUNDOFF[torch.bfloat16] else []
        for change in (to_tf32, *lower):
            self.module.restore()
            with Perturbed(operands=change):
                made = ratios(self.module.call()[at], answer.reference[at], answer.oracle[at])
            rms, largest = max(rms, TWICE * made[0]), max(largest, LARGEST * made[1])
        return rms, largest

    def _as_cut(self, got: torch.Tensor, at: int, answer: Answer, limits: tuple[float, float] | None) -> Comparison:
        """Compare an output with what is right where factors are cut to TF32.

        That is off by more than rounding them, and to one side: limits with room for it would have room for bf16.
        """
        owed = answer.yardsticks()[at]
        return compare(got, answer.reference[at], self._with_cut()[at], limits=limits, owed=owed)

    def _lone(
        self, got: torch.Tensor, at: int, answer: Answer, limits: tuple[float, float] | None
    ) -> torch.Tensor | None:
        """Return an output with lone elements set right at which the problem is ill-conditioned; None: it has others.

        They are held to what PyTorch itself gives with worse rounding, of inputs that are as good as these.
        """
        owed, right = answer.yardsticks()[at], answer.oracle[at]
        if owed is None:
            return None
        most = (limits or LIMITS[got.element_size()])[0] * owed.rms
        allowed = most.reshape(-1, 1).expand(len(most), got.numel() // len(most)).reshape(got.shape)
        return lone(got, right, allowed, self.others.moved(at))

    def _by_wide_noise(
        self, result: Comparison, got: torch.Tensor, at: int, answer: Answer, limits: tuple[float, float] | None
    ) -> Comparison:
        """Return the result of an output on an unusual content: right where many runs with amplified rounding show more
        than a few did.

        What is steep where rounding decides (a saturated tanh of terms that cancel) is moved in some runs alone.
        """
        wide = self.others.wide_noise(answer)[at]
        held = compare(got, answer.reference[at], answer.oracle[at], noise=wide, limits=limits)
        return held if held.ok else self._by_chance(result, got, at, answer, limits)

    def _by_chance(
        self, result: Comparison, got: torch.Tensor, at: int, answer: Answer, limits: tuple[float, float] | None
    ) -> Comparison:
        """Return the result of an output of few elements, or of rows of few large ones: right where PyTorch's own error
        is small by luck.

        A sum of either sign may come to next to nothing: it is held to what inputs that are as good come to. In 16 bits
        one rounding is all of a row's error.
        """
        owed, limits = answer.yardsticks()[at], limits or LIMITS[got.element_size()]
        if got.element_size() > HALF and got.numel() < FEW:
            noise = self.others.noise(answer, moved=SCALE)[at]
            return compare(got, answer.reference[at], answer.oracle[at], noise=noise, limits=limits)
        if got.element_size() == HALF and owed is not None and owed.finite:
            over = exceeding(got, answer.oracle[at], owed, limits)
            if by_chance(got, answer.oracle[at], over, self.others.moved(at, scale=1 / math.sqrt(3), inputs=False)):
                return Comparison(True, result.ratio, "")
        return result

    def _where_small(
        self, result: Comparison, got: torch.Tensor, at: int, answer: Answer, *, settle: bool, near: bool
    ) -> Comparison:
        """Return the result of an output that is right by its rows: wrong where its small elements are."""
        noise = answer.noise[at] if answer.noise else None
        found = small_fault(got, answer.reference[at], answer.oracle[at], noise=noise, near=near)
        if found is not None and settle:
            noise = self.others.wide_noise(answer)[at]
            found = small_fault(got, answer.reference[at], answer.oracle[at], noise=noise, near=near)
        if found is None:
            return result
        return Comparison(False, result.ratio, found.told, relative=found.error, unsettled=not settle)

    def _chosen_as_well(self, at: int, got: torch.Tensor, reference: torch.Tensor, right: torch.Tensor) -> bool:
        """Return whether an output of indices chooses values as good as the right ones."""
        fp = self.module.fp
        source = index_source(fp, fp.results[at]) if at < len(fp.results) else None
        if source is None or (source.exact and source.first):
            return False
        self.module.restore()
        with Choosing() as own:
            self.module.call()
        with (
            contextlib.suppress(RuntimeError, TypeError, ValueError),
            double_factories(),
            ExactCasts(),
            Choosing() as wide,
        ):
            self.module.call_in_double()
        if len(own.choices) != len(wide.choices):
            return False
        pairs = zip(wide.choices, own.choices, strict=True)
        theirs = [pair for pair in pairs if pair[1].gave(reference)]  # of several choices
        good = [as_good(got, right.to(got.dtype), *pair, exact=source.exact) for pair in theirs]
        if not good or all(good) or source.exact:
            return bool(good) and all(good)
        dim, size = theirs[0][1].dim, theirs[0][1].operand.dim()
        if dim is None or got.dim() != size or got.shape != reference.shape:
            return False
        return chosen_by_rounding(got, reference, right.to(got.dtype), dim, self.others.again(at))

    def _release(self) -> None:
        """Give the GPU memory of fp64 temporaries back where it is much of what is free: other workers need room too.

        Not each time: to take it anew costs a tenth of a second where many processes ask the driver for memory.
        """
        if self.module.device.type == "cuda":
            kept = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
            if kept > torch.cuda.mem_get_info()[0] // KEPT:
                torch.cuda.empty_cache()


def _require_form(results: Outputs, traced: Outputs) -> None:
    got = [(tuple(t.shape), t.dtype) for t in results]
    expected = [(tuple(t.shape), t.dtype) for t in traced]
    if got != expected:
        raise ValueError(f"the module returned {got} where {expected} was traced")
