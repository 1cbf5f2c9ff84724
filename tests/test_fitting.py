"""Problems that are too large for the machine are judged at a smaller size, and say so."""

from collections.abc import Iterator

import pytest

from rag_kernels.eval.problem import problem_from_source
from rag_kernels.eval.process.workers import Workers
from rag_kernels.eval.records import ProblemError
from rag_kernels.ingest.fitting import footprint, functionalize_to_fit, room_bytes

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
    with Workers() as pool:
        yield pool


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
