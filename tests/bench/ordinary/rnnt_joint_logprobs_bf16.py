"""A transducer's joint network: an encoder's frame and a predictor's label are added, tanh, a product with the
vocabulary, and of its log softmax the blank's and the next label's, bf16."""

import torch
import torch.nn as nn

BATCH = 8
FRAMES = 100
LABELS = 24
WIDTH = 512
VOCABULARY = 1024


class Model(nn.Module):
    def __init__(self, width, vocabulary):
        super().__init__()
        b = torch.bfloat16
        self.encode = nn.Linear(width, width, dtype=b)
        self.predict = nn.Linear(width, width, bias=False, dtype=b)
        self.out = nn.Linear(width, vocabulary, dtype=b)

    def forward(self, frames, labels, following):
        joint = torch.tanh(self.encode(frames)[:, :, None] + self.predict(labels)[:, None])
        logp = torch.log_softmax(self.out(joint).float(), -1)
        blank = logp[..., 0]
        index = following[:, None, :, None].expand(-1, frames.shape[1], -1, -1)
        return blank, logp.gather(-1, index).squeeze(-1)


def get_inputs():
    return [
        torch.randn(BATCH, FRAMES, WIDTH, dtype=torch.bfloat16),
        torch.randn(BATCH, LABELS, WIDTH, dtype=torch.bfloat16),
        torch.randint(1, VOCABULARY, (BATCH, LABELS)),
    ]


def get_init_inputs():
    return [WIDTH, VOCABULARY]
