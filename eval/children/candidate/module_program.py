"""A module candidate in a program of its own, for a sanitizer: `python -m ...module_program CALL ...`.

Comes in: files with a call each, as `instruments.module_sanitizers` writes them. Goes out: a line before each call, and
whatever the sanitizer has to say that the program runs under. Code that fails ends it with REFUSED: that it does is for
other checks to find. Runs in a candidate's sandbox only.
"""

from __future__ import annotations

import base64
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from rag_kernels.eval.build.call_file import CALL_LINE, REFUSED
from rag_kernels.eval.children.candidate.candidate_code import load
from rag_kernels.eval.messages.protocol import module_call
from rag_kernels.eval.messages.to_candidate import GivenTensor


class Given:
    """The tensors of one call (`eval.children.candidate.candidate_code.Buffers`)."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        self.tensors = tensors
        self.results: list[torch.Tensor] = []
        self.fresh: Callable[[], None] = lambda: None


def main(files: Sequence[str]) -> None:
    os.environ.pop("LD_PRELOAD", None)  # the compilers that the code starts are not looked at
    code = None
    for number, file in enumerate(files):
        call = module_call(Path(file).read_text())
        device = torch.device(call.device)
        try:
            code = code or load(call.code, device)
            given = Given([_tensor(tensor).to(device) for tensor in call.tensors])
            run = code.bind(given, call.binding)
            given.fresh()
            print(CALL_LINE, number, flush=True)
            with torch.no_grad():
                run()
            if device.type == "cuda":
                torch.cuda.synchronize()
        except Exception as error:
            print(f"{type(error).__name__}: {error}", flush=True)
            os._exit(REFUSED)


def _tensor(given: GivenTensor) -> torch.Tensor:
    tensor = torch.empty(given.spec.shape, dtype=getattr(torch, given.spec.dtype))
    if tensor.numel():
        content = torch.frombuffer(bytearray(base64.b64decode(given.content)), dtype=tensor.dtype)
        tensor.copy_(content.reshape(tensor.shape))
    return tensor


if __name__ == "__main__":
    main(sys.argv[1:])
