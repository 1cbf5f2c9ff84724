"""Kernels made of the pieces of `rag_tma.h` and `rag_mma.h` (tests/pieces), each with inputs and what PyTorch makes of
them.

Run on a machine with a Hopper GPU, it builds and calls them all, split ones by NVRTC too:

    python tests/support/contract_pieces.py
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rag_kernels.eval.build.compile import BuildError, build, toolchain

if TYPE_CHECKING:
    from torch import Tensor

FOLDER = Path(__file__).parents[1] / "pieces"
ON_AMPERE = ("product_int8", "product_mma", "product_split_tf32")  # sm_80 has all that these take
ON_BLACKWELL = ("product_tcgen05",)  # sm_100a alone has what it takes: compiled, and run by nobody so far
PIECES = tuple(sorted({file.stem for file in FOLDER.glob("*.cu")} - {*ON_BLACKWELL}))


@dataclass(frozen=True, slots=True)
class Case:
    """Hold inputs, a poisoned output, the expected result, and the error that is allowed."""

    inputs: tuple[Tensor, ...]
    output: Tensor
    expected: Tensor
    allowed: float


def source(name: str) -> str:
    return (FOLDER / f"{name}.cu").read_text()


def cases(device: str) -> dict[str, Callable[[], list[Case]]]:
    """Return by piece what it is tried on; sizes are not the tile's, and some hang over its edges."""
    import torch

    torch.manual_seed(0)
    f32, bf16, f16 = torch.float32, torch.bfloat16, torch.float16

    def drawn(*shape: int, dtype: Any = f32) -> Tensor:
        return torch.randn(*shape, device=device).to(dtype)

    def empty(*shape: int, dtype: Any = f32) -> Tensor:
        value = 77 if dtype == torch.int32 else float("nan")
        return torch.full(shape, value, dtype=dtype, device=device)

    def product(x: Tensor, w: Tensor, allowed: float) -> Case:
        exact = x.double() @ w.double()
        return Case((x, w), empty(*exact.shape), exact, allowed)

    def transposed(x: Tensor, w: Tensor, allowed: float) -> Case:
        exact = x.double() @ w.double().t()
        return Case((x, w), empty(*exact.shape), exact, allowed)

    def int8() -> list[Case]:
        x, w = (torch.randint(-128, 128, (n, 96), dtype=torch.int8, device=device) for n in (48, 24))
        return [Case((x, w), empty(48, 24, dtype=torch.int32), x.double() @ w.double().t(), 0)]

    def same(x: Tensor) -> Case:
        return Case((x,), empty(*x.shape, dtype=x.dtype), x, 0)

    def rows(count: int, columns: int) -> Case:
        x = drawn(count, columns)
        return Case((x,), empty(count), x.double().sum(-1), 1e-3)

    def spread() -> list[Case]:
        x = drawn(8, 32)
        return [Case((x,), empty(2, 8, 32), torch.stack((x, x)), 0)]

    return {
        "bulk_copy": lambda: [same(drawn(1024 * parts)) for parts in (1, 6, 97)],
        "cluster_sum": lambda: [rows(5, 1003), rows(1, 17)],
        "multicast": spread,
        "product_int8": int8,
        "product_mma": lambda: [product(drawn(48, 80, dtype=bf16), drawn(80, 32, dtype=bf16), 1e-3)],
        "product_split_tf32": lambda: [transposed(drawn(48, 512), drawn(40, 512), 1e-4)],
        "product_wgmma": lambda: [
            transposed(drawn(m, k, dtype=bf16), drawn(n, k, dtype=bf16), 5e-3)
            for m, n, k in ((64, 128, 64), (200, 264, 512))
        ],
        "product_wgmma_lanes": lambda: [product(drawn(128, 256, dtype=f16), drawn(256, 192, dtype=f16), 5e-3)],
        "tma_copy": lambda: [same(drawn(75, 200, dtype=bf16)), same(drawn(32, 64, dtype=bf16))],
    }


def build_pieces(names: tuple[str, ...], arch: str, cache: Path) -> dict[str, Path | BuildError]:
    """Return the libraries of pieces for an architecture, or what the compiler said."""
    built = build([(source(name), "cuda") for name in names], tools=toolchain(arch), cache=cache)
    return {
        name: made if isinstance(made, BuildError) else made.library for name, made in zip(names, built, strict=True)
    }


def worst(name: str, library: Path, device: str) -> tuple[float, float]:
    """Call a piece on all its cases; return the greatest error and the allowed one."""
    import torch
    import tvm_ffi

    forward = tvm_ffi.load_module(str(library)).forward
    greatest, allowed = 0.0, 0.0
    for case in cases(device)[name]():
        forward(*case.inputs, case.output)
        torch.cuda.synchronize()
        error = (case.output.double() - case.expected.double()).abs()
        greatest = max(greatest, float("inf") if not bool(torch.isfinite(error).all()) else float(error.max()))
        allowed = max(allowed, case.allowed)
    return greatest, allowed


def main() -> None:
    with tempfile.TemporaryDirectory() as cache:
        for name, library in build_pieces(PIECES, "sm_90", Path(cache)).items():
            if isinstance(library, BuildError):
                print(f"{name}: {library.reason}\n{library.log}", flush=True)
                continue
            try:
                greatest, allowed = worst(name, library, "cuda")
                print(
                    f"{name}: {'ok' if greatest <= allowed else 'WRONG'} error {greatest:.3g} of {allowed}", flush=True
                )
            except Exception as error:  # the next piece may still work
                print(f"{name}: {type(error).__name__} {error}", flush=True)


if __name__ == "__main__":
    main()
