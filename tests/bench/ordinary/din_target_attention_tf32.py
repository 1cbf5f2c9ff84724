"""Deep Interest Network: the candidate item against the user's history, a small MLP with Dice-like activation for each
pair, masked weighted sum, click probability, TF32 allowed."""

import torch
import torch.nn as nn

BATCH = 4096
HISTORY = 100
ITEMS = 500000
WIDTH = 64
HIDDEN = 80


class Model(nn.Module):
    def __init__(self, items, width, hidden):
        super().__init__()
        self.items = nn.Embedding(items, width)
        self.a1 = nn.Linear(4 * width, hidden)
        self.a2 = nn.Linear(hidden, hidden // 2)
        self.a3 = nn.Linear(hidden // 2, 1)
        self.prelu = nn.PReLU()
        self.top = nn.Sequential(
            nn.Linear(3 * width, 200), nn.PReLU(), nn.Linear(200, 80), nn.PReLU(), nn.Linear(80, 1)
        )

    def forward(self, candidate, history, length):
        c = self.items(candidate)
        h = self.items(history)
        q = c[:, None, :].expand_as(h)
        pair = torch.cat([q, h, q - h, q * h], dim=-1)
        score = self.a3(torch.sigmoid(self.a2(self.prelu(self.a1(pair))))).squeeze(-1)
        mask = torch.arange(h.shape[1], device=h.device)[None, :] < length[:, None]
        score = torch.where(mask, score, torch.zeros_like(score))
        interest = torch.bmm(score[:, None, :], h).squeeze(1)
        return torch.sigmoid(self.top(torch.cat([interest, c, interest * c], dim=-1))).squeeze(-1)


def get_inputs():
    return [
        torch.randint(0, ITEMS, (BATCH,)),
        torch.randint(0, ITEMS, (BATCH, HISTORY)),
        torch.randint(1, HISTORY, (BATCH,)),
    ]


def get_init_inputs():
    return [ITEMS, WIDTH, HIDDEN]
