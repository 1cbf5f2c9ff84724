"""What a worker does on a GPU around a call: bands of a known pattern around each tensor, and emptied caches."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import itertools
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

import torch

from rag_kernels.eval.buffers.call_content import Splice, copies
from rag_kernels.eval.records import TensorSpec

BAND_BYTES = 4096
BAND = 0xC3
SMALL = 1 << 20  # bytes of a copy
PERSISTING_L2_LIMIT = 6  # cudaLimitPersistingL2CacheSize

Job = tuple[torch.Tensor, Sequence[torch.Tensor], Splice, TensorSpec]


class Banded:
    """A tensor on the GPU like `form`, between two bands that nobody may write to."""

    def __init__(self, form: torch.Tensor, device: torch.device) -> None:
        self._bytes = form.numel() * form.element_size()
        self._raw = torch.full((self._bytes + 2 * BAND_BYTES,), BAND, dtype=torch.uint8, device=device)
        inner = self._raw[BAND_BYTES : BAND_BYTES + self._bytes]
        self.tensor = inner.view(form.dtype).reshape(form.shape)

    def intact(self) -> bool:
        before, after = self._raw[:BAND_BYTES], self._raw[BAND_BYTES + self._bytes :]
        return bool((before == BAND).all()) and bool((after == BAND).all())


def compose_all(jobs: Iterable[Job]) -> None:
    """Compose many tensors, as `buffers.call_content.compose` does one.

    Small copies go together: asking for one takes longer than making it.
    """
    for together in itertools.zip_longest(*(copies(*job) for job in jobs), fillvalue=()):
        pairs = [pair for step in together for pair in step]
        small = [(to, source) for to, source in pairs if to.numel() <= SMALL]
        for to, source in pairs:
            if to.numel() > SMALL:
                to.copy_(source)
        if small:
            torch._foreach_copy_([to for to, _ in small], [source for _, source in small])


def flush_caches() -> None:
    """Let nothing of the inputs be in the L2 cache, also nothing that a kernel asked to stay there."""
    runtime = _runtime()
    if runtime is not None:
        runtime.cudaDeviceSetLimit(PERSISTING_L2_LIMIT, ctypes.c_size_t(0))
        runtime.cudaCtxResetPersistingL2Cache()
    _flush_buffer().zero_()


def dirty_shared_memory() -> None:
    """Leave NaNs in the shared memory of every multiprocessor, as the tiles of a matrix product."""
    torch.mm(_nan_matrix(), _nan_matrix())


def answers(device: torch.device) -> bool:
    """Return whether work can go on here.

    After an assertion or a bad access on a GPU nothing more works in the process.
    """
    try:
        if device.type == "cuda":
            torch.cuda.synchronize()
    except RuntimeError:
        return False
    return True


def digest(tensors: Sequence[Any]) -> str:
    """Return what `eval.buffers.output_snapshot.digest` makes of the bytes, made where the tensors are."""
    made = hashlib.blake2b(digest_size=16)
    for tensor in tensors:
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or not tensor.numel():
            continue
        raw = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
        raw = raw.clone() if raw.storage_offset() % 8 else raw
        words = raw[: len(raw) // 8 * 8].view(torch.int64)
        made.update(int(words.sum()).to_bytes(8, "little", signed=True))
        made.update(bytes(raw[len(words) * 8 :].tolist()))
        made.update(bytes(raw[:: max(1, len(raw) // 64)][:64].tolist()))
    return made.hexdigest()


@functools.cache
def _nan_matrix() -> torch.Tensor:
    return torch.full((2048, 2048), float("nan"), device="cuda")


@functools.cache
def _flush_buffer() -> torch.Tensor:
    size = 2 * int(torch.cuda.get_device_properties(0).L2_cache_size)
    return torch.empty(max(size, 64 << 20), dtype=torch.uint8, device="cuda")


@functools.cache
def _runtime() -> Any:
    """Return the CUDA runtime that torch has loaded, or None."""
    version = (torch.version.cuda or "").split(".")[0]
    with suppress(OSError):
        return ctypes.CDLL(f"libcudart.so.{version}")
    return None
