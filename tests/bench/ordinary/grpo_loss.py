"""GRPO: advantages within groups, clipped ratios of token log probabilities, the k3 estimate of the divergence."""

import torch
from torch import nn

GROUPS, SIZE, SEQ, LOW, HIGH, BETA = 8, 8, 1024, 0.2, 0.28, 0.04


class Model(nn.Module):
    def forward(self, logp, old, ref, reward, mask):
        r = reward.view(GROUPS, SIZE)
        advantage = ((r - r.mean(1, keepdim=True)) / (r.std(1, keepdim=True) + 1e-4)).view(-1, 1)
        ratio = torch.exp(logp - old)
        gain = torch.minimum(ratio * advantage, ratio.clamp(1 - LOW, 1 + HIGH) * advantage)
        gap = ref - logp
        loss = -(gain - BETA * (torch.exp(gap) - gap - 1))
        clipped = ((ratio < 1 - LOW) & (advantage < 0)) | ((ratio > 1 + HIGH) & (advantage > 0))
        count = mask.sum().clamp(min=1)
        return (
            (loss * mask).sum() / count,
            (clipped * mask).sum() / count,
            ((loss * mask).sum(1) / mask.sum(1).clamp(min=1)),
        )


def get_inputs():
    base = -torch.rand(GROUPS * SIZE, SEQ) * 4
    near = [base + 0.1 * torch.randn_like(base) for _ in range(2)]
    return [base, *near, torch.rand(GROUPS * SIZE), (torch.rand(GROUPS * SIZE, SEQ) < 0.8).float()]


def get_init_inputs():
    return []
