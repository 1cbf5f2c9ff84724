"""SimPO: length-normalised log-probabilities of chosen and rejected answers, margin loss, from bf16 logits."""

import torch
import torch.nn.functional as F
from torch import nn

BATCH, SEQ, VOCAB = 4, 511, 32064


class Model(nn.Module):
    def logp(self, logits, labels):
        keep = labels >= 0
        safe = labels.clamp(min=0)
        token = torch.log_softmax(logits.float(), -1).gather(-1, safe[..., None]).squeeze(-1)
        return (token * keep).sum(-1) / keep.sum(-1).clamp(min=1)

    def forward(self, chosen, rejected, chosen_labels, rejected_labels):
        a, b = self.logp(chosen, chosen_labels), self.logp(rejected, rejected_labels)
        logits = 2.5 * (a - b) - 1.4
        return -F.logsigmoid(logits).mean(), (a > b).float().mean(), a, b


def get_inputs():
    two = [torch.randn(BATCH, SEQ, VOCAB, dtype=torch.bfloat16) for _ in range(2)]
    labels = [torch.randint(-VOCAB // 4, VOCAB, (BATCH, SEQ)) for _ in range(2)]
    return [*two, *labels]


def get_init_inputs():
    return []
