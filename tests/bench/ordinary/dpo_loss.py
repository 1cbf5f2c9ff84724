"""Direct preference optimisation: log probabilities of chosen and rejected tokens under policy and reference."""

import torch
import torch.nn.functional as F
from torch import nn

BATCH, SEQ, VOCAB = 4, 256, 32000


class Model(nn.Module):
    def logps(self, logits, labels, mask):
        logp = torch.log_softmax(logits.float(), dim=-1)
        picked = torch.gather(logp, 2, labels.unsqueeze(-1)).squeeze(-1)
        return (picked * mask).sum(-1)

    def forward(self, policy_w, policy_l, ref_w, ref_l, labels_w, labels_l, mask):
        pi = self.logps(policy_w, labels_w, mask) - self.logps(policy_l, labels_l, mask)
        ref = self.logps(ref_w, labels_w, mask) - self.logps(ref_l, labels_l, mask)
        return -F.logsigmoid(0.1 * (pi - ref)).mean()


def get_inputs():
    logits = [torch.randn(BATCH, SEQ, VOCAB, dtype=torch.bfloat16) for _ in range(4)]
    labels = [torch.randint(0, VOCAB, (BATCH, SEQ)) for _ in range(2)]
    return [*logits, *labels, (torch.rand(BATCH, SEQ) > 0.1).float()]


def get_init_inputs():
    return []
