"""What a worker does on a GPU before a call, with CPU tensors in place of the device's."""

import os

import torch

from eval.arena import Arena
from eval.candidate import Bound
from eval.content import plain
from eval.records import TensorSpec


def test_every_content_comes_in_the_layout_that_the_code_sees() -> None:
    """Strided copies held the pattern of unwritten memory: honest kernels read indices from it."""
    specs = [TensorSpec((3, 5), "float32"), TensorSpec((4, 2), "int64"), TensorSpec((7,), "float32")]
    content, outputs = Arena(specs), Arena(specs[:1])
    message = {"content": content.describe(), "outputs": outputs.describe(), "writable": True, "strided": True}
    fds = [os.dup(content.fd), os.dup(outputs.fd)]
    bound = Bound(message, fds, torch.device("cpu"), writes=False, like=None)
    draws = [[torch.randn(3, 5), torch.arange(8).reshape(4, 2), torch.randn(7)] for _ in range(2)]
    bound.draws = [[t.reshape(-1).view(torch.uint8) for t in draw] for draw in draws]
    for number in (1, 0):
        bound.fill(plain(number, len(specs)))
        assert all(torch.equal(mine, given) for mine, given in zip(bound.tensors, draws[number], strict=True))
    assert [t.stride() for t in bound.tensors] == [(1, 3), (1, 4), (1,)]
