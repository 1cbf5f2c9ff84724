"""A kernel with a free size and one for its gradients, as attempts that passed, and what is right."""

from __future__ import annotations

from dataclasses import replace

import torch
from factories import attempt, passed, problem

from rag_kernels.archive.records import Attempt
from rag_kernels.eval.records import Candidate, Contract, Problem, ServedTensor, TensorArgument, TensorSpec
from rag_kernels.ingest.functional.gradients import backward_problem

PROBLEM = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(features, dtype=torch.float64))
        self.rate = 0.5

    def forward(self, x):
        return torch.tanh(x * self.weight) * self.rate, x + self.weight


def get_inputs():
    return [torch.randn(8, 6, dtype=torch.float64)]


def get_init_inputs():
    return [6]
"""


CPP = """
#include "rag_kernel.h"
#include <cmath>
typedef rk::Tensor<const double> In;
void scaled(In x, In weight, double rate, rk::Tensor<double> out, rk::Tensor<double> sum) {
  const int64_t n = weight.numel();
  for (int64_t i = 0; i < x.numel(); ++i) {
    out.data[i] = std::tanh(x.data[i] * weight.data[i % n]) * rate;
    sum.data[i] = x.data[i] + weight.data[i % n];
  }
}
RK_EXPORT(forward, scaled)
"""


FUNCTIONAL = """
import torch


def module_fn(x, weight, *, rate=0.5):
    return torch.tanh(x * weight) * rate, x + weight
"""


BACKWARD = """
import torch


def module_fn(g, h, x, weight, *, rate=0.5):
    slope = rate * g * (1 - torch.tanh(x * weight) ** 2)
    return slope * weight + h, (slope * x + h).sum(0)
"""


BACKWARD_CPP = """
#include "rag_kernel.h"
#include <cmath>
typedef rk::Tensor<const double> In;
void pulled(In g, In h, In x, In weight, double rate, rk::Tensor<double> dx, rk::Tensor<double> dweight) {
  RK_CHECK(x.data[0] != 77.0, "no 77");
  const int64_t n = weight.numel();
  for (int64_t i = 0; i < n; ++i) dweight.data[i] = 0;
  for (int64_t i = 0; i < x.numel(); ++i) {
    const double t = std::tanh(x.data[i] * weight.data[i % n]), slope = rate * g.data[i] * (1 - t * t);
    dx.data[i] = slope * weight.data[i % n] + h.data[i];
    dweight.data[i % n] += slope * x.data[i] + h.data[i];
  }
}
RK_EXPORT(forward, pulled)
"""


def scaled_pair() -> tuple[Attempt, Attempt]:
    """Of any number of rows, as the judge's contracts say it; the backward of the verified ones."""
    x, weight = TensorSpec((8, 6), "float64"), TensorSpec((6,), "float64")
    p = replace(
        problem("tanh"),
        problem=Problem("scaled", PROBLEM),
        source=FUNCTIONAL,
        arguments=(TensorArgument("x", "input", x, "0"), TensorArgument("weight", "parameter", weight, "weight")),
        constants=(("rate", 0.5),),
        outputs=(x, x),
    )
    tensors = ServedTensor("x", "float64", ("N", "6")), ServedTensor("weight", "float64", ("6",))
    served = Contract(tensors, (), "element", (("N", "6"), ("N", "6")))
    made = attempt(p=p, candidate=Candidate(CPP, "kernel", "cpu"), verdict=replace(passed(), contract=served))
    pulled = replace(
        p,
        problem=backward_problem(p.problem),
        source=BACKWARD,
        arguments=(
            *(TensorArgument(name, "input", x, str(i)) for i, name in enumerate(["g", "h", "x"])),
            TensorArgument("weight", "parameter", weight, "forward_model.weight"),
        ),
        outputs=(x, weight),
    )
    return made, attempt(p=pulled, candidate=Candidate(BACKWARD_CPP, "kernel", "cpu"), verdict=passed())


def drawn(rows: int = 8, graded: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    x, weight = torch.randn(rows, 6, dtype=torch.float64), torch.rand(6, dtype=torch.float64)
    return x.requires_grad_(graded), weight.requires_grad_(graded)


def expected(x: torch.Tensor, weight: torch.Tensor, rate: float = 0.5) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tanh(x * weight) * rate, x + weight
