"""Ceilings: by dtype, the greatest of all measurements, and never a bound for what a baseline beats."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest
from factories import attempt, device, judged, linear_problem, passed

from rag_kernels.archive.records import Attempt
from rag_kernels.eval import codec
from rag_kernels.eval.limits import Limits
from rag_kernels.eval.machine import device as machine
from rag_kernels.eval.machine.ceilings import RATES, higher, measure, product_gflops, raised
from rag_kernels.eval.process.workers import Workers
from rag_kernels.eval.records import Backend, Device, Features
from rag_kernels.eval.sessions.problem_session import ProblemSession
from rag_kernels.eval.trial.physical_floor import finding, settled_floor_us
from rag_kernels.long_runs.replay import _remember
from rag_kernels.scripted import ScriptedJudge

H200 = device(
    "cuda",
    fp32_gflops=137_000.0,
    tf32_gflops=411_000.0,
    fp16_gflops=760_000.0,
    bf16_gflops=750_000.0,
    fp8_gflops=1_400_000.0,
    int8_gflops=1_300_000.0,
)
PRODUCT = replace(linear_problem(4096, 4096, 4096).features, bytes_moved=3 * 2 * 4096**2)
CUBLAS_US = PRODUCT.flops / 700e6  # fp16, at 700 TFLOP/s


def of(*dtypes: str, **changes: Any) -> Features:
    return replace(PRODUCT, dtypes=dtypes, **changes)


@pytest.mark.parametrize(
    ("features", "precision", "gflops"),
    [
        (of("float32"), "strict", 137_000.0),
        (of("float32"), "tf32", 411_000.0),
        (of("float32"), "any", 760_000.0),
        (of("float16"), "strict", 760_000.0),
        (of("bfloat16"), "strict", 760_000.0),
        (of("float32", "int8"), "strict", 760_000.0),
        (of("bfloat16", "float8_e4m3fn"), "strict", 760_000.0),
        (of("float32", product_dtypes=("bfloat16",)), "strict", 760_000.0),
        (of("int8", "int32", product_dtypes=("int8",)), "strict", 1_300_000.0),
    ],
)
def test_a_products_ceiling_is_that_of_its_dtype(features: Features, precision: str, gflops: float) -> None:
    assert product_gflops(features, H200, precision) == gflops
    assert product_gflops(features, H200, precision, generous=True) >= gflops


def test_a_device_of_old_has_one_ceiling_for_all() -> None:
    old = device("cuda")
    assert product_gflops(of("float16"), old) == old.fp32_gflops
    assert codec.loads(codec.dumps(old)) == old and "tf32" not in codec.dumps(old)


@dataclass
class Held:
    """What of a session a time is held against. `again` is what a new measurement finds."""

    device: Device
    features: Features
    again: Device
    exceeds_cache: bool = True
    reads_in_part: bool = False
    measured: int = 0
    limits: Limits = field(default_factory=Limits)

    @property
    def fp(self) -> Held:
        return self

    def measure_again(self) -> None:
        self.measured += 1
        self.raise_ceilings(higher(self.device, self.again))

    def raise_ceilings(self, found: Device) -> None:
        self.device = higher(self.device, found)

    @property
    def session(self) -> ProblemSession:
        return cast(ProblemSession, self)


def test_a_half_precision_product_at_the_librarys_speed_is_not_accused() -> None:
    held = Held(H200, of("float16"), H200)
    told = settled_floor_us(held.session, CUBLAS_US, 1.1 * CUBLAS_US, strict=True)
    found = finding(held.session, CUBLAS_US, 1.1 * CUBLAS_US, strict=True)
    assert (found.impossible, found.pruned, found.suspicious) == ("", False, False)
    assert 0.9 < told / CUBLAS_US < 1 and held.measured == 0
    strict = Held(H200, of("float32"), H200)  # in fp32 that speed cannot be had
    found = finding(strict.session, CUBLAS_US / 2, 10 * CUBLAS_US, strict=True)
    assert found.pruned and not found.impossible and strict.limits.timing.pruned > 1


def test_what_a_baseline_beats_is_measured_again_and_the_maximum_kept() -> None:
    """A ceiling that was measured while the machine was busy: 6.5 GB/s where it moves 18."""
    slow, features = device(bandwidth_gbs=6.5), of("float32", flops=0, pointwise_flops=0)
    copy_us = features.bytes_moved / 18e3
    held = Held(slow, features, replace(slow, bandwidth_gbs=17.0))
    told = settled_floor_us(held.session, copy_us, 1.02 * copy_us, strict=True)
    assert held.measured == 1 and held.device.bandwidth_gbs == pytest.approx(18 / 1.02)  # the baseline's own rate
    assert told == pytest.approx(1.02 * copy_us)
    found = finding(held.session, copy_us, 1.02 * copy_us, strict=True)
    assert not found.suspicious and not found.impossible
    faster = finding(held.session, copy_us / 3, 1.02 * copy_us, strict=True)
    assert faster.suspicious and "memory alone" in faster.impossible


def test_a_candidate_is_not_accused_before_the_ceilings_were_measured_again() -> None:
    slow, features = device(bandwidth_gbs=6.5), of("float32", flops=0, pointwise_flops=0)
    copy_us = features.bytes_moved / 18e3
    held = Held(slow, features, replace(slow, bandwidth_gbs=18.0))
    settled_floor_us(held.session, copy_us, 5 * copy_us, strict=True)
    assert held.measured == 1 and not finding(held.session, copy_us, 5 * copy_us, strict=True).suspicious


def test_a_baseline_far_above_a_ceiling_says_nothing_of_the_machine() -> None:
    """It needs less than was counted: rows of a table, Winograd's products. It is no floor of the problem either."""
    features = of("float32", operators=("conv2d",), bytes_moved=8)
    seconds = features.flops / (3e9 * device().fp32_gflops)
    assert raised(device(), features, seconds, precision="strict", by=1.25, memory=True) == device()
    held = Held(device(), features, device())
    assert settled_floor_us(held.session, 1e6 * seconds, 1e6 * seconds, strict=True) == 1e6 * seconds
    assert not finding(held.session, 1e6 * seconds, 1e6 * seconds, strict=True).pruned
    near = PRODUCT.flops / (1.1e9 * device().fp32_gflops)
    found = raised(device(), PRODUCT, near, precision="strict", by=1.25, memory=False)
    assert found.fp32_gflops == pytest.approx(1.1 * device().fp32_gflops)


class Measuring:
    """A child that measures what it is told, one after the other."""

    def __init__(self, *gbs: float) -> None:
        self.gbs = list(gbs)

    def call(self, *_: object, **__: object) -> dict[str, float]:
        return dict.fromkeys(RATES, 1.0) | {"bandwidth_gbs": self.gbs.pop(0)}


def test_a_ceiling_is_the_greatest_of_several_measurements(tmp_path: Path) -> None:
    workers = Measuring(6.5, 18.0, 12.0)
    seen = [machine.open_device("cpu", cast(Workers, workers), tmp_path).bandwidth_gbs for _ in range(4)]
    assert seen == [6.5, 18.0, 18.0, 18.0] and not workers.gbs
    opened = machine.open_device("cpu", cast(Workers, workers), tmp_path)
    machine.keep_device(replace(opened, bandwidth_gbs=7.0), tmp_path)
    assert machine.open_device("cpu", cast(Workers, workers), tmp_path) == opened


def test_two_machines_of_one_name_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = machine.open_device("cpu", cast(Workers, Measuring(1.0)), tmp_path)
    monkeypatch.setattr(machine, "cpu_machine", lambda: "model 25-1-1, 2 cores, 512 GiB")
    second = machine.open_device("cpu", cast(Workers, Measuring(2.0)), tmp_path)
    assert first.name == second.name and first.key != second.key
    assert (first.bandwidth_gbs, second.bandwidth_gbs) == (1.0, 2.0)
    assert replace(first, machine="").key == Device("cpu", first.name, first.arch, 1.0, 1.0).key  # as archives have it


def test_a_file_of_before_opens(tmp_path: Path) -> None:
    file = tmp_path / "d_old.json"
    old = {"backend": "cuda", "name": "H", "arch": "sm_90", "bandwidth_gbs": 1, "fp32_gflops": 1}
    file.write_text(json.dumps(old))
    assert asdict(machine.read_device(file)) | old == asdict(machine.read_device(file))


@pytest.mark.parametrize("known", ["", "24 GiB"])
def test_a_replay_knows_the_ceilings_of_its_run(known: str) -> None:
    here = device(machine="24 GiB")
    judge = ScriptedJudge(on=here)
    then: Callable[[Device], Attempt] = lambda on: replace(attempt(), judged=judged(passed(), on=on))  # noqa: E731
    _remember(judge, [then(device(machine=known, bandwidth_gbs=50.0, fp32_gflops=1.0))])
    assert judge.device == replace(here, bandwidth_gbs=50.0)
    _remember(judge, [then(device(machine="another", bandwidth_gbs=70.0))])
    assert judge.device.bandwidth_gbs == 50.0


def test_this_machine_is_measured() -> None:
    backend: Backend = "cpu"
    found = measure({"backend": backend, "threads": 2})
    assert found["bandwidth_gbs"] > 0.1 and found["fp32_gflops"] > 0.1
    assert set(found) <= set(RATES) and all(rate >= 0 for rate in found.values())
    assert machine.cpu_machine().endswith("GiB")
