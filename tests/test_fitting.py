"""Problems that are too large for the machine are judged at a smaller size, and say so."""

from collections.abc import Iterator

import pytest
from support.kept import kept_workers

from rag_kernels.eval.problem import problem_from_source
from rag_kernels.eval.process.workers import Workers
from rag_kernels.eval.records import Device, ProblemError
from rag_kernels.ingest.functional.functionalize import (
    footprint,
    functionalize_as,
    functionalize_to_fit,
    room_bytes,
    room_on,
)

LARGE = """
import torch
import torch.nn as nn

BATCH = 4096
FEATURES = 1 << 20

class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x)

def get_inputs():
    return [torch.rand(BATCH, FEATURES)]

def get_init_inputs():
    return []
"""


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    with kept_workers() as pool:
        yield pool


def test_a_device_elsewhere_has_room_by_its_own_memory() -> None:
    far = Device("cuda", "NVIDIA H200", "sm_90", 1.0, 1.0, machine="143771, 700.00, 1980")
    assert room_on(far) == (143771 << 20) // 7
    host = Device("cpu", "AMD EPYC", "x86-64-v4", 1.0, 1.0, machine="model 25-1-1, 8 cores, 32 MiB of cache, 48 GiB")
    assert room_on(host) == (48 << 30) // 24
    assert room_on(Device("cuda", "unknown", "sm_90", 1.0, 1.0)) > 1 << 60


def test_seventeen_gigabytes_are_scaled_down_with_a_notice(workers: Workers) -> None:
    form = functionalize_to_fit(problem_from_source("large", LARGE), workers=workers, max_bytes=64 << 20)
    assert footprint(form) <= 64 << 20
    assert form.notice.startswith("scaled down to fit this machine: ")
    assert "BATCH" in form.notice
    assert form.verified


def test_what_fits_is_left_alone(workers: Workers) -> None:
    small = LARGE.replace("1 << 20", "64")
    form = functionalize_to_fit(problem_from_source("small", small), workers=workers, max_bytes=64 << 20)
    assert form.outputs[0].shape == (4096, 64)
    assert "scaled down to fit" not in form.notice


def test_what_cannot_fit_says_so(workers: Workers) -> None:
    with pytest.raises(ProblemError):
        functionalize_to_fit(problem_from_source("large", LARGE), workers=workers, max_bytes=1)


def test_there_is_room_on_this_machine() -> None:
    assert room_bytes("cpu") > 1 << 20


def test_promised_sizes_stay_whatever_room_there_is(workers: Workers) -> None:
    told = functionalize_to_fit(
        problem_from_source("large", LARGE), workers=workers, max_bytes=64 << 20, where="NVIDIA H200"
    )
    assert told.notice.startswith("scaled down to fit NVIDIA H200: ")
    for room in (1 << 40, footprint(told) // 2):
        assert functionalize_as(told, workers=workers, max_bytes=room) == told
    with pytest.raises(
        ProblemError, match=r"large was written for x \[\d+, \d+\].*judge it where there is more memory"
    ):
        functionalize_as(told, workers=workers, max_bytes=1 << 20)
