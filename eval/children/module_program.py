"""A module candidate in a program of its own, for a sanitizer: `python -m ...children.module_program CALL ...`.

Comes in: files with a call each, as `instruments.module_sanitizers` writes them. Goes out: a line before each call, and
whatever the sanitizer has to say that the program runs under. Code that fails ends it with REFUSED: that it does is for
other checks to find. Runs in a candidate's sandbox only.
"""

from __future__ import annotations

import base64
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from rag_kernels.eval.build.call_file import CALL_LINE, REFUSED
from rag_kernels.eval.children.candidate_code import load


class Given:
    """The tensors of one call (`eval.children.candidate_code.Buffers`)."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        self.tensors = tensors
        self.results: list[torch.Tensor] = []
        self.fresh: Callable[[], None] = lambda: None


def main(files: Sequence[str]) -> None:
    os.environ.pop("LD_PRELOAD", None)  # the compilers that the code starts are not looked at
    code = None
    for number, file in enumerate(files):
        call = json.loads(Path(file).read_text())
        device = torch.device(call["device"])
        try:
            code = code or load(call["message"], device)
            given = Given([_tensor(form).to(device) for form in call["tensors"]])
            run = code.bind(given, call["message"])
            given.fresh()
            print(CALL_LINE, number, flush=True)
            with torch.no_grad():
                run()
            if device.type == "cuda":
                torch.cuda.synchronize()
        except Exception as error:
            print(f"{type(error).__name__}: {error}", flush=True)
            os._exit(REFUSED)


def _tensor(form: dict[str, Any]) -> torch.Tensor:
    tensor = torch.empty(form["shape"], dtype=getattr(torch, form["dtype"]))
    if tensor.numel():
        content = torch.frombuffer(bytearray(base64.b64decode(form["bytes"])), dtype=tensor.dtype)
        tensor.copy_(content.reshape(tensor.shape))
    return tensor


if __name__ == "__main__":
    main(sys.argv[1:])
