"""Is this problem worth judging kernels on? Examined once per problem and device, before anyone spends tokens.

Comes in: a FunctionalProblem. Goes out: an `Admission`: what the output depends on, which null kernels would pass,
how exact honest arithmetic is and how far from that the nearest lower precision lies (the limits follow from the two),
and, if nothing needs to be computed, the sentence that says so. The numbers come from a child process
(`eval.children.examination.examine`); no candidate is known here, and seeds come from the operating system.
"""

from __future__ import annotations

import math
import os
import random
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from rag_kernels.eval import codec
from rag_kernels.eval.admission_records import MIN_GAP, Admission, Examination
from rag_kernels.eval.ids import content_id
from rag_kernels.eval.machine.device import threads
from rag_kernels.eval.process.workers import WorkerFailed, Workers
from rag_kernels.eval.records import Device, FunctionalProblem, ProblemError

ADMISSION_VERSION = "3"
EXAMINER = "rag_kernels.eval.children.examination.examine:examine"
BUDGET_S = 60.0  # measuring stops after this long; what is left out is noted
DEADLINE_S = 300.0  # for modules whose single call is slow
MEMORY_SHARE = 0.7  # of what is available on the host
SMALL_CHANGE = 1e-2  # of the largest output: the tolerance of KernelBench, relative
MIN_ELEMENTS = 16  # statistics of fewer outputs (a loss) say nothing: only the previous output is tried
IGNORED = 1e-9  # relative change of an fp64 output that is rounding, not dependence


DEGENERATE, UNVERIFIABLE = "degenerate problem", "precision-unverifiable"
ALREADY_KNOWN = frozenset({"zeros", "ones", "previous output"})  # need no look at the inputs


def admission_file(fp: FunctionalProblem, device: Device, *, cache: Path) -> Path:
    """Return where this problem's admission on this machine is, or will be, kept."""
    key = content_id("ad", fp.problem.source, device.key, version("torch"), ADMISSION_VERSION)
    return cache / "admissions" / f"{key}.json"


def open_admission(
    file: Path,
    fp: FunctionalProblem,
    device: Device,
    workers: Workers,
    *,
    budget_s: float = BUDGET_S,
    units: Sequence[str] = (),
    locks: Path = Path(),
) -> Admission:
    """Return the cached admission, or one examined now. An examination that fails costs a note, never the problem.

    It takes turns (`machine.device_lock`) on `units`, with locks under the folder `locks`; the caller must hold none
    meanwhile.
    """
    if fp.uses_random:
        raise ProblemError(
            f"{fp.problem.name} draws random numbers in its forward (dropout in train mode?), so no kernel can be "
            "compared with it; set p=0 or leave the random operator out."
        )
    if not file.is_file():
        admission = admit(_examine(fp, device, workers, budget_s, (list(units), str(locks))))
        if not admission.examination.outputs:
            return admission  # nothing was measured: the next one may have more memory
        file.parent.mkdir(parents=True, exist_ok=True)
        staged = file.with_suffix(f".{os.getpid()}.tmp")
        staged.write_text(codec.dumps(admission))
        staged.rename(file)
    admission = codec.loads(file.read_text())
    assert isinstance(admission, Admission)
    return admission


def _examine(
    fp: FunctionalProblem, device: Device, workers: Workers, budget_s: float, device_lock: tuple[list[str], str]
) -> Examination:
    payload = {
        "problem": fp,
        "device": device.backend,
        "threads": threads(),
        "budget_s": budget_s,
        "seed": random.SystemRandom().getrandbits(40),
        "lock": device_lock,
    }
    memory_bytes = None if device.backend == "cuda" else int(MEMORY_SHARE * _available_bytes())
    try:
        found = workers.call(EXAMINER, payload, deadline_s=DEADLINE_S, memory_bytes=memory_bytes)
    except WorkerFailed as failure:
        return Examination(notes=(f"not examined: {failure.message}",))
    assert isinstance(found, Examination)
    return found


def _available_bytes() -> int:
    with open("/proc/meminfo") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("MemAvailable"))


def admit(found: Examination) -> Admission:
    """Decide on what was measured."""
    degenerate = _degenerate(found)
    calibration = found.calibration
    unverifiable = calibration is not None and calibration.gap < MIN_GAP
    labels = [DEGENERATE] if degenerate else []
    labels += [UNVERIFIABLE] if unverifiable else []
    notes = list(found.notes)
    if not degenerate:
        notes += _remarks(found)
    if calibration is not None and unverifiable and not degenerate:
        notes.append(
            f"lower precision can hardly be told from honest rounding here (gap {calibration.gap:.2g}, wanted "
            f"{MIN_GAP:g}): speeds are comparable only between kernels of one precision"
        )
    return Admission(found, degenerate, tuple(labels), tuple(notes))


def _degenerate(found: Examination) -> str:
    """Return why nothing, or nothing of interest, needs to be computed."""
    if any(not output.finite for output in found.outputs) or not found.outputs:
        return ""
    slack = found.calibration.limit_rms if found.calibration else 0.0
    known = {row.name for row in found.null_kernels if row.passes_own or row.ratio <= slack}
    for name, says in (("zeros", "is zero"), ("ones", "is one")):
        if name in known:
            return f"the output {says}, to rounding, with the problem's own inputs and parameters"
    if "previous output" in known:
        return "the output is the same for any inputs, to rounding: a kernel could compute it once and return it again"
    copies = [row.name for row in found.null_kernels if row.passes and row.name.startswith("copy of ")]
    if copies:
        return f"the output is a {copies[0]}: there is nothing to compute"
    elements = sum(math.prod(output.shape) for output in found.outputs)
    change = max(output.changed_max for output in found.outputs)
    has_previous = any(row.name == "previous output" for row in found.null_kernels)
    if has_previous and elements >= MIN_ELEMENTS and change <= SMALL_CHANGE:
        return f"the output hardly depends on the inputs: other ones move no element by more than {change:.1%} of it"
    return ""


def _remarks(found: Examination) -> list[str]:
    """Return what a reader should know of a problem that is not degenerate."""
    remarks = []
    ignored = [s.name for s in found.sensitivities if s.change is not None and s.change <= IGNORED]
    if ignored:
        remarks.append(f"the output does not depend on {', '.join(ignored)}: a kernel need not read it")
    for row in found.null_kernels:
        if row.passes and row.name not in ALREADY_KNOWN:
            remarks.append(f"{row.name} would pass: less than the whole needs to be computed")
    accepted = [row.name for row in found.null_kernels if row.kernelbench and not row.passes_own]
    if accepted:
        remarks.append(f"KernelBench's own tolerance (1e-2) would accept {', '.join(accepted)}; this judge does not")
    if any(not output.finite for output in found.outputs):
        remarks.append("the output is not finite everywhere on the problem's own inputs")
    return remarks
