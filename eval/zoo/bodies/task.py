"""A problem of the zoo with an honest body for it, and pieces that bodies share.

Comes in: nothing. Goes out: `Task`, and loops over rows.
"""

from __future__ import annotations

from dataclasses import dataclass

from rag_kernels.eval.zoo.problems import PROBLEMS


@dataclass(frozen=True, slots=True)
class Task:
    """One problem. `body` computes it honestly from the parameters in `signature`."""

    name: str
    signature: str
    body: str

    @property
    def problem(self) -> str:
        return PROBLEMS[self.name]

    @property
    def names(self) -> str:
        """The parameters' names, as a call needs them."""
        return ", ".join(parameter.split()[-1] for parameter in self.signature.split(", "))


ROWS = "const int64_t n = x.size(-1), rows = x.numel() / n;\n"
EACH_ROW = ROWS + ("for (int64_t r = 0; r < rows; ++r) {\n  const float* a = x.data + r * n;\n")
SOFTMAX_OF_KEPT = """\
  float* y = out.data + r * n;
  float top = -INFINITY, total = 0;
  for (int64_t i = 0; i < n; ++i) top = std::max(top, kept(i));
  for (int64_t i = 0; i < n; ++i) total += y[i] = expf(kept(i) - top);
  for (int64_t i = 0; i < n; ++i) y[i] /= total;
}"""
