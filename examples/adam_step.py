"""One Adam update; the step number is a Python int, and there are three outputs."""

import torch
import torch.nn as nn

ROWS = 1024
COLUMNS = 1024
LEARNING_RATE = 1e-3
BETA1 = 0.9
BETA2 = 0.999
EPS = 1e-8
STEP = 10


class Model(nn.Module):
    def __init__(self, learning_rate: float, beta1: float, beta2: float, eps: float) -> None:
        super().__init__()
        self.learning_rate = learning_rate
        self.beta1 = beta1
        self.beta2 = beta2
        self.eps = eps

    def forward(self, weight: torch.Tensor, grad: torch.Tensor, m: torch.Tensor, v: torch.Tensor, step: int):
        m = self.beta1 * m + (1 - self.beta1) * grad
        v = self.beta2 * v + (1 - self.beta2) * grad * grad
        m_hat = m / (1 - self.beta1**step)
        v_hat = v / (1 - self.beta2**step)
        return weight - self.learning_rate * m_hat / (torch.sqrt(v_hat) + self.eps), m, v


def get_inputs():
    weight, grad, m = (torch.randn(ROWS, COLUMNS) for _ in range(3))
    return [weight, grad, m, torch.rand(ROWS, COLUMNS), STEP]


def get_init_inputs():
    return [LEARNING_RATE, BETA1, BETA2, EPS]
