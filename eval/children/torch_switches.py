"""Switches of torch that change how library operators compute. Goes out: what they are now, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def switches() -> dict[str, Any]:
    """Return switches of torch that change how library operators compute."""
    backends = torch.backends
    known: dict[str, Callable[[], Any]] = {
        "matmul precision": torch.get_float32_matmul_precision,
        "matmul.allow_tf32": lambda: backends.cuda.matmul.allow_tf32,
        "cudnn.allow_tf32": lambda: backends.cudnn.allow_tf32,
        "fp32_precision": lambda: getattr(backends, "fp32_precision", None),
        "cudnn.benchmark": lambda: backends.cudnn.benchmark,
        "mkldnn": lambda: backends.mkldnn.enabled,
        "flush denormal": lambda: torch.tensor(1e-40).mul(1.0).item() == 0.0,
        "threads": torch.get_num_threads,
    }
    return {name: _state(read) for name, read in known.items()}


def _state(read: Callable[[], Any]) -> Any:
    """Return a switch; torch refuses to read its older ones once a newer one contradicts them."""
    try:
        return read()
    except RuntimeError:
        return "contradicted"
