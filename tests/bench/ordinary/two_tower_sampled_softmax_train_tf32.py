"""Two towers for retrieval: embedding bags and MLPs of users and items, unit vectors, in-batch softmax with the items'
log-frequency taken off and duplicates masked, trained, TF32 allowed."""

import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH = 4096
HISTORY = 50
ITEMS = 1000000
USERS = 200000
WIDTH = 64
OUT = 64


class Model(nn.Module):
    def __init__(self, users, items, width, out):
        super().__init__()
        self.user = nn.Embedding(users, width)
        self.item = nn.Embedding(items, width)
        self.user_mlp = nn.Sequential(nn.Linear(2 * width, 256), nn.ReLU(), nn.Linear(256, out))
        self.item_mlp = nn.Sequential(nn.Linear(width, 256), nn.ReLU(), nn.Linear(256, out))

    def forward(self, user, history, mask, item, log_q):
        h = (self.item(history) * mask[..., None]).sum(1) / mask.sum(1, keepdim=True).clamp(min=1)
        u = F.normalize(self.user_mlp(torch.cat([self.user(user), h], dim=-1)), dim=-1)
        i = F.normalize(self.item_mlp(self.item(item)), dim=-1)
        logits = u @ i.t() / 0.05 - log_q[None, :]
        same = item[None, :] == item[:, None]
        eye = torch.eye(item.shape[0], dtype=torch.bool, device=item.device)
        logits = logits.masked_fill(same & ~eye, -1e4)
        return F.cross_entropy(logits, torch.arange(item.shape[0], device=item.device))


def get_inputs():
    return [
        torch.randint(0, USERS, (BATCH,)),
        torch.randint(0, ITEMS, (BATCH, HISTORY)),
        (torch.rand(BATCH, HISTORY) < 0.7).float(),
        torch.randint(0, ITEMS, (BATCH,)),
        -9 - 3 * torch.rand(BATCH),
    ]


def get_init_inputs():
    return [USERS, ITEMS, WIDTH, OUT]
