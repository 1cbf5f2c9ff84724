"""Calls of a composed source's kernels, recorded for a program that a sanitizer runs.

Comes in: names and arguments of calls. Goes out: bytes as `eval.build.call_file` has them, or why they are of no use.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch

from rag_kernels.eval.build import call_file
from rag_kernels.eval.records import TensorSpec

MOST_RECORDED = 64 << 20  # bytes of calls


class Recorder:
    """Calls as `eval.build.call_file` has them. `left_out` says why they are not of use."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.left_out = ""

    def __call__(self, name: str, arguments: Sequence[Any]) -> None:
        self.parts.append(call_file.call(name))
        places = sorted((v.data_ptr(), v.data_ptr() + v.nbytes) for v in arguments if torch.is_tensor(v) and v.numel())
        if any(start < end for (_, end), (start, _) in itertools.pairwise(places)):
            self.left_out = f"`{name}` is called with tensors that share memory"
        for value in arguments:
            if isinstance(value, bool | int | float):
                self.parts.append(call_file.number(value))
            elif type(value) in (torch.Tensor, torch.nn.Parameter) and value.is_contiguous():
                content = bytes(value.detach().cpu().reshape(-1).view(torch.uint8).numpy())
                spec = TensorSpec(tuple(value.shape), str(value.dtype).removeprefix("torch."))
                self.parts.append(call_file.tensor(spec, len(content), call_file.READ) + content)
            else:
                what = "a strided tensor" if torch.is_tensor(value) else type(value).__name__
                self.left_out = f"`{name}` is called with {what}"
        if sum(map(len, self.parts)) > MOST_RECORDED:
            self.left_out = "its kernels are called with too much"
        if self.left_out:
            self.parts = []
