"""KTO: log-probabilities of completions from bf16 logits, the KL baseline, losses of both kinds."""

import torch
from torch import nn

BATCH, SEQ, VOCAB = 8, 512, 32000


class Model(nn.Module):
    def forward(self, logits, labels, mask, reference, kl, desirable):
        x = logits.float()
        token = x.gather(-1, labels[..., None]).squeeze(-1) - torch.logsumexp(x, -1)
        policy = (token * mask).sum(-1)
        ratio = policy - reference
        base = kl.mean().clamp(min=0)
        good = 1.0 - torch.sigmoid(0.1 * (ratio - base))
        bad = 1.0 - torch.sigmoid(0.1 * (base - ratio))
        loss = torch.where(desirable, good, 1.33 * bad)
        return loss.mean(), 0.1 * ratio.detach(), policy


def get_inputs():
    logits = torch.randn(BATCH, SEQ, VOCAB, dtype=torch.bfloat16)
    labels = torch.randint(0, VOCAB, (BATCH, SEQ))
    mask = (torch.arange(SEQ)[None, :] > 100).float().expand(BATCH, SEQ).contiguous()
    return [logits, labels, mask, -4000 + 10 * torch.randn(BATCH), torch.randn(BATCH), torch.rand(BATCH) > 0.5]


def get_init_inputs():
    return []
