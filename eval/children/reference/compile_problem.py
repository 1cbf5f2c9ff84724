"""A problem's module compiled before it is judged: torch.compile's cache on disk holds it then.

Runs in a child process of its own, of which nothing is left but that cache. Comes in: a FunctionalProblem, a device,
threads, whether TF32 is allowed, and whose turn it is on the device. Knows nothing of candidates.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from rag_kernels.eval.children.reference.baseline_variants import compile_ahead, make
from rag_kernels.eval.machine.device_lock import DeviceLock
from rag_kernels.eval.numerics.oracle import strict_precision, timed_precision
from rag_kernels.eval.problem import load_module


def compile_something(payload: dict[str, Any]) -> None:
    """Have torch.compile build what it needs once on a machine, whatever it compiles. `payload`: threads."""
    torch.set_num_threads(payload["threads"])
    with torch.no_grad():
        make("compile", torch.nn.Softmax(dim=-1), ())(torch.ones(64, 64))


def compile_problem(payload: dict[str, Any]) -> None:
    """Compile as the reference worker will. `payload`: problem, device, threads, tf32, lock.

    Only what its tensors take is needed of the device, and its turn while they are made.
    """
    torch.set_num_threads(payload["threads"])
    strict_precision()
    fp, device = payload["problem"], torch.device(payload["device"])
    units, locks = payload["lock"]
    torch.ones(1, device=device)  # a GPU's context takes no turn
    with torch.no_grad():
        with DeviceLock(units, Path(locks)).shared(), device:
            module = load_module(fp.problem.name, fp.problem.source, device=str(device))
            model = module.Model(*module.get_init_inputs()).to(device)
            inputs = [v.to(device) if isinstance(v, torch.Tensor) else v for v in module.get_inputs()]
        model.requires_grad_(False)
        with timed_precision(tf32=payload["tf32"]):
            compile_ahead(model, inputs, step=fp.step is not None)
