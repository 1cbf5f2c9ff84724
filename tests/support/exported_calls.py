"""Calls of exported modules, with what they warned of."""

from __future__ import annotations

import warnings
from typing import Any

import torch

from rag_kernels.export.drop_in import KernelNotUsed


def called(module: Any, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, list[str]]:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        result = module(*args, **kwargs)
    return result, [str(w.message) for w in seen if w.category is KernelNotUsed]
