"""Multi-gate mixture of experts for click and conversion: embeddings, six experts, a gate for each task, two
towers, the sum of their binary cross entropies, trained, TF32 allowed."""

import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH = 8192
FIELDS = 24
IDS = 200000
WIDTH = 16
EXPERTS = 6
HIDDEN = 256
TOWER = 64


class Model(nn.Module):
    def __init__(self, fields, ids, width, experts, hidden, tower):
        super().__init__()
        self.embed = nn.Embedding(ids, width)
        flat = fields * width
        self.e1 = nn.Parameter(torch.randn(experts, flat, hidden) * flat**-0.5)
        self.b1 = nn.Parameter(torch.zeros(experts, 1, hidden))
        self.e2 = nn.Parameter(torch.randn(experts, hidden, tower) * hidden**-0.5)
        self.b2 = nn.Parameter(torch.zeros(experts, 1, tower))
        self.gates = nn.ModuleList([nn.Linear(flat, experts) for _ in range(2)])
        self.towers = nn.ModuleList(
            [nn.Sequential(nn.Linear(tower, tower), nn.ReLU(), nn.Linear(tower, 1)) for _ in range(2)]
        )

    def forward(self, ids, click, conversion):
        x = self.embed(ids).flatten(1)
        h = torch.relu(torch.matmul(x, self.e1) + self.b1)
        h = torch.relu(torch.bmm(h, self.e2) + self.b2)
        logits = []
        for gate, tower in zip(self.gates, self.towers, strict=True):
            g = torch.softmax(gate(x), dim=-1)
            mix = torch.einsum("be,ebt->bt", g, h)
            logits.append(tower(mix).squeeze(-1))
        ctr = torch.sigmoid(logits[0])
        ctcvr = ctr * torch.sigmoid(logits[1])
        loss = F.binary_cross_entropy_with_logits(logits[0], click)
        ctcvr = ctcvr.clamp(1e-6, 1 - 1e-6)
        return loss - (conversion * torch.log(ctcvr) + (1 - conversion) * torch.log(1 - ctcvr)).mean()


def get_inputs():
    click = (torch.rand(BATCH) < 0.2).float()
    return [
        torch.randint(0, IDS, (BATCH, FIELDS)),
        click,
        click * (torch.rand(BATCH) < 0.2).float(),
    ]


def get_init_inputs():
    return [FIELDS, IDS, WIDTH, EXPERTS, HIDDEN, TOWER]
