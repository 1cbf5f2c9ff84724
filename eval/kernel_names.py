"""Whose kernel is it? Names as profilers show them, of libraries and of torch.compile."""

from __future__ import annotations

import re

OWN = "(own code)"
# Device kernels of PyTorch and NVIDIA's libraries.
_GPU_LIBRARY = re.compile(
    r"^(void )?(at::|at_cuda_detail|cub::|thrust::|cutlass|cudnn|cublas|ampere_|sm\d\d_|nvjet|gemm|gemv|splitK|"
    r"cask_|implicit_convolve|flash_|fmha|pytorch_flash|magma|native|vectorized_|elementwise_kernel|volta_|turing_|"
    r"(void )?(dot_kernel|reduce_1Block|cublasLt|convolve|winograd|dgrad|wgrad|xmma|internal::|nchwToNhwc|nhwcToNchw))"
)
_COMPILED = re.compile(r"^(triton_|graph_\d|.*inductor|CompiledFxGraph|Torch-Compiled|cpp_fused)", re.IGNORECASE)


def is_library(name: str, *, on_gpu: bool) -> bool:
    """Return a kernel (GPU) or operator (CPU) that PyTorch or a vendor's library brings."""
    if not on_gpu:
        return name.startswith(("aten::", "torchvision::", "mkldnn::", "onednn::"))
    return _GPU_LIBRARY.match(name) is not None


def is_compiled(name: str) -> bool:
    """Return a kernel that torch.compile wrote."""
    return _COMPILED.match(name) is not None
