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
LATE_BLOCKS, LATE_THREADS, LATE_NS = 32, 512, 1_000_000
LATE_ARCH = (9, 0)  # from which on a launch may be programmatic
# Copies bytes (from, to, how many) after so many nanoseconds, in which the next kernel on the stream may begin already.
COME_LATE = """
.version 7.8
.target sm_90
.address_size 64
.visible .entry come_late(.param .u64 from, .param .u64 to, .param .u64 bytes, .param .u64 pause) {
  .reg .pred %p;
  .reg .b16 %byte;
  .reg .b32 %n;
  .reg .b64 %from, %to, %bytes, %pause, %begun, %now, %at, %step, %a;
  griddepcontrol.launch_dependents;
  ld.param.u64 %from, [from];
  ld.param.u64 %to, [to];
  ld.param.u64 %bytes, [bytes];
  ld.param.u64 %pause, [pause];
  cvta.to.global.u64 %from, %from;
  cvta.to.global.u64 %to, %to;
  mov.u64 %begun, %globaltimer;
waiting:
  mov.u64 %now, %globaltimer;
  sub.s64 %now, %now, %begun;
  setp.lt.u64 %p, %now, %pause;
  @%p bra waiting;
  mov.u32 %n, %ctaid.x;
  mul.wide.u32 %at, %n, 512;
  mov.u32 %n, %tid.x;
  cvt.u64.u32 %a, %n;
  add.s64 %at, %at, %a;
  mov.u32 %n, %nctaid.x;
  mul.wide.u32 %step, %n, 512;
copying:
  setp.ge.u64 %p, %at, %bytes;
  @%p bra done;
  add.s64 %a, %from, %at;
  ld.global.u8 %byte, [%a];
  add.s64 %a, %to, %at;
  st.global.u8 [%a], %byte;
  add.s64 %at, %at, %step;
  bra copying;
done:
  ret;
}
"""

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
    keep_nothing_cached()
    _flush_buffer().zero_()


def keep_nothing_cached() -> None:
    """Set no part of the L2 cache aside for what kernels ask to stay there."""
    runtime = _runtime()
    if runtime is not None:
        runtime.cudaDeviceSetLimit(PERSISTING_L2_LIMIT, ctypes.c_size_t(0))
        runtime.cudaCtxResetPersistingL2Cache()


def dirty_shared_memory() -> None:
    """Leave NaNs in the shared memory of every multiprocessor, as the tiles of a matrix product."""
    torch.mm(_nan_matrix(), _nan_matrix())


def come_late(to: torch.Tensor, kept: torch.Tensor) -> None:
    """Queue a content on the current stream, from a kernel that lets the next one begin before it is there."""
    cuda, kernel = _late_kernel()
    if kernel is not None and to.numel():
        values = (kept.data_ptr(), to.data_ptr(), to.numel() * to.element_size(), LATE_NS)
        held = [ctypes.c_uint64(value) for value in values]
        given = (ctypes.c_void_p * len(held))(*(ctypes.addressof(value) for value in held))
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        if cuda.cuLaunchKernel(kernel, LATE_BLOCKS, 1, 1, LATE_THREADS, 1, 1, 0, stream, given, None) == 0:
            return
    to.copy_(kept)


@functools.cache
def _late_kernel() -> tuple[Any, ctypes.c_void_p | None]:
    """Return the driver and `come_late` there; no kernel where the GPU has no programmatic launches."""
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() < LATE_ARCH:
        return None, None
    cuda, module, kernel = driver(), ctypes.c_void_p(), ctypes.c_void_p()
    failed = cuda.cuModuleLoadData(ctypes.byref(module), COME_LATE.encode())
    failed = failed or cuda.cuModuleGetFunction(ctypes.byref(kernel), module, b"come_late")
    return cuda, None if failed else kernel


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


def clear_error() -> int:
    """Return what went wrong last in the runtime that torch has loaded, and forget it: 0 where nothing did."""
    runtime = _runtime()
    return int(runtime.cudaGetLastError()) if runtime is not None else 0


def held_bytes() -> int:
    """Return how much of the device's memory is taken when all work has ended, by all programs together."""
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    return total - free


def driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


@functools.cache
def _runtime() -> Any:
    """Return the CUDA runtime that torch has loaded, or None."""
    version = (torch.version.cuda or "").split(".")[0]
    with suppress(OSError):
        return ctypes.CDLL(f"libcudart.so.{version}")
    return None
