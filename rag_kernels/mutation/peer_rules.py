"""By what rules other evaluators call a kernel right: the rule of comparison alone, as their sources have it.

Comes in: outputs of a kernel and of PyTorch. Goes out: whether the evaluator would accept them. None of their code is
here, and none of their other defences are: static checks, timing, watching for reused memory.

- KernelBench v0 and v0.1: five draws of `get_inputs`, one module, `torch.allclose` with atol = rtol = 1e-2
  (https://scalingintelligence.stanford.edu/blogs/kernelbenchv01/).
- KernelBench, main branch: the same with 1e-4 in fp32 and 1e-2 in fp16 and bf16 (`get_tolerance_for_precision` of
  ScalingIntelligence/KernelBench, `src/kernelbench/eval.py`, pull request 80).
- robust-kbench: five draws for each of a task's settings, the kernel before and after PyTorch, `allclose` with atol =
  rtol = 1e-5 (defaults of `correct_cuda_kernel` of SakanaAI/robust-kbench, `robust_kbench/primitives/evaluate.py`). Its
  200 KernelBench tasks have one setting, as here.
- KernelBench-Verified (arXiv 2607.16241): one module, the inputs as they are, times 3, times 0.01 and negated; 1e-3 in
  fp32, 1e-2 in 16 bits.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Rule:
    """Tolerances, relative and absolute alike, and whether it looks at the scaled draws instead of five own ones."""

    fp32: float
    sixteen_bits: float
    scaled: bool = False
    twice: bool = False

    def accepts(self, got: list[torch.Tensor], reference: list[torch.Tensor]) -> bool:
        """Return whether every output is near enough; NaN is near nothing, as with `torch.allclose`."""
        return all(self._near(a, b) for a, b in zip(got, reference, strict=True))

    def _near(self, got: torch.Tensor, reference: torch.Tensor) -> bool:
        tolerance = self.sixteen_bits if reference.dtype in (torch.float16, torch.bfloat16) else self.fp32
        a, b = (t.double() if t.dtype == torch.bool else t for t in (got, reference))
        return torch.allclose(b, a, atol=tolerance, rtol=tolerance)


RULES = {
    "KernelBench v0.1": Rule(1e-2, 1e-2),
    "KernelBench": Rule(1e-4, 1e-2),
    "robust-kbench": Rule(1e-5, 1e-5, twice=True),
    "KernelBench-Verified": Rule(1e-3, 1e-2, scaled=True),
}
