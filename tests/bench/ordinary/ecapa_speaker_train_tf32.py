"""A speaker encoder's block: a dilated Res2Net convolution with batch norms, squeeze and excitation, attentive
statistics, cross entropy, trained, TF32 allowed."""

import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH = 32
MELS = 80
CHANNELS = 256
STEPS = 300
SPEAKERS = 1000


class Model(nn.Module):
    def __init__(self, mels, channels, speakers):
        super().__init__()
        part = channels // 4
        self.first = nn.Conv1d(mels, channels, 5, padding=2)
        self.bn = nn.BatchNorm1d(channels)
        self.convs = nn.ModuleList([nn.Conv1d(part, part, 3, padding=2, dilation=2) for _ in range(3)])
        self.norms = nn.ModuleList([nn.BatchNorm1d(part) for _ in range(3)])
        self.squeeze = nn.Linear(channels, 64)
        self.excite = nn.Linear(64, channels)
        self.attend = nn.Conv1d(channels, channels, 1)
        self.head = nn.Linear(2 * channels, speakers)

    def forward(self, x, label):
        h = self.bn(F.relu(self.first(x)))
        parts = list(h.chunk(4, dim=1))
        out = [parts[0]]
        for part, conv, norm in zip(parts[1:], self.convs, self.norms, strict=True):
            out.append(norm(F.relu(conv(part + out[-1] if len(out) > 1 else part))))
        y = torch.cat(out, dim=1)
        gate = torch.sigmoid(self.excite(F.relu(self.squeeze(y.mean(-1)))))
        y = h + y * gate[..., None]
        a = torch.softmax(self.attend(torch.tanh(y)), dim=-1)
        mean = (a * y).sum(-1)
        spread = ((a * y.square()).sum(-1) - mean.square()).clamp(min=1e-5).sqrt()
        return F.cross_entropy(self.head(torch.cat([mean, spread], dim=1)), label, label_smoothing=0.1)


def get_inputs():
    return [torch.randn(BATCH, MELS, STEPS), torch.randint(0, SPEAKERS, (BATCH,))]


def get_init_inputs():
    return [MELS, CHANNELS, SPEAKERS]
