"""IMPALA: V-trace targets from clipped ratios of two policies, and the loss's three parts."""

import torch
import torch.nn as nn
import torch.nn.functional as F

T, B, A = 20, 32768, 18


class Model(nn.Module):
    def __init__(self, gamma):
        super().__init__()
        self.gamma = gamma

    def forward(self, logits, behaviour, action, reward, value, boot):
        logp = F.log_softmax(logits, -1)
        target = logp.gather(-1, action.unsqueeze(-1)).squeeze(-1)
        rho = torch.exp(target - behaviour)
        clipped, c = rho.clamp(max=1.0), rho.clamp(max=1.0)
        following = torch.cat((value[1:], boot[None]))
        delta = clipped * (reward + self.gamma * following - value)
        carry = torch.zeros_like(boot)
        out = []
        for t in reversed(range(reward.shape[0])):
            carry = delta[t] + self.gamma * c[t] * carry
            out.append(carry)
        vs = torch.stack(out[::-1]) + value
        ahead = torch.cat((vs[1:], boot[None]))
        adv = clipped * (reward + self.gamma * ahead - value)
        entropy = -(logp.exp() * logp).sum(-1)
        return -(target * adv).mean() + 0.5 * (vs - value).pow(2).mean() - 0.01 * entropy.mean(), vs


def get_inputs():
    logits = torch.randn(T, B, A)
    action = torch.randint(0, A, (T, B))
    behaviour = F.log_softmax(logits + 0.1 * torch.randn(T, B, A), -1).gather(-1, action.unsqueeze(-1)).squeeze(-1)
    return [logits, behaviour, action, torch.randn(T, B), torch.randn(T, B), torch.randn(B)]


def get_init_inputs():
    return [0.99]
