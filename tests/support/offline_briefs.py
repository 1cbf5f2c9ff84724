"""Briefs for the offline writer, with attempts and exemplars that nobody measured."""

from __future__ import annotations

import dataclasses

from factories import attempt

from rag_kernels.archive.records import ArchivedKernel, Attempt, Exemplar
from rag_kernels.eval.records import Backend, Device, FunctionalProblem, Measurement, Passed
from rag_kernels.records import Brief, Draft, Shown


def brief(
    fp: FunctionalProblem,
    *,
    attempts: tuple[Attempt, ...] = (),
    exemplars: tuple[Shown, ...] = (),
    number: int = 1,
    width: int = 4,
    backend: Backend = "cpu",
) -> Brief:
    device = Device(backend, "device", "arch", 100.0, 1000.0)
    return Brief("run", fp, device, exemplars, attempts, "", number, width)


def judged(fp: FunctionalProblem, draft: Draft, number: int, candidate_us: float) -> Attempt:
    """The attempt that comes of a draft when it passes in this time."""
    made = attempt("run", number, fp)
    verdict = made.judged.verdict
    assert isinstance(verdict, Passed)
    measured = dataclasses.replace(verdict.measurement, candidate_us=candidate_us)
    assert isinstance(measured, Measurement)
    passed = dataclasses.replace(made.judged, verdict=dataclasses.replace(verdict, measurement=measured))
    return dataclasses.replace(made, candidate=draft.candidate, judged=passed)


def shown(fp: FunctionalProblem, source: str, *, graph_key: str = "", backend: Backend = "cpu") -> Shown:
    values = {f.name: "" for f in dataclasses.fields(ArchivedKernel)} | {
        "id": "k_old",
        "source": source,
        "tier": "kernel",
        "backend": backend,
        "graph_key": graph_key or fp.graph_key,
        "problem_name": "older",
    }
    return Shown(Exemplar("k_old", 1, 0.9, ("same graph",)), ArchivedKernel(**values))  # type: ignore[arg-type]
