"""FiBiNET: fields of a recommender weighed by squeeze and excitation, pairwise bilinear interactions, a deep head,
in fp16."""

import torch
import torch.nn as nn

BATCH = 512
FIELDS = 20
WIDTH = 32


class Model(nn.Module):
    def __init__(self, fields, width):
        super().__init__()
        left, right = torch.triu_indices(fields, fields, 1)
        self.register_buffer("left", left)
        self.register_buffer("right", right)
        self.squeeze = nn.Linear(fields, fields // 4, bias=False)
        self.excite = nn.Linear(fields // 4, fields, bias=False)
        self.bilinear = nn.Linear(width, width, bias=False)
        self.head = nn.Linear(len(left) * 2, 64)
        self.out = nn.Linear(64, 1)
        self.half()

    def pairs(self, e):
        turned = self.bilinear(e)
        return (turned[:, self.left] * e[:, self.right]).sum(-1)

    def forward(self, e):
        weights = torch.relu(self.excite(torch.relu(self.squeeze(e.mean(-1)))))
        both = torch.cat([self.pairs(e), self.pairs(e * weights[..., None])], 1)
        return torch.sigmoid(self.out(torch.relu(self.head(both)))).squeeze(-1)


def get_inputs():
    return [torch.randn(BATCH, FIELDS, WIDTH, dtype=torch.float16)]


def get_init_inputs():
    return [FIELDS, WIDTH]
