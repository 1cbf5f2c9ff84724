"""A vision tower's patch merger: RMS norm, 2 x 2 neighbours side by side, two linear layers with GELU, scattered into
the text's embeddings, bf16."""

import torch
import torch.nn as nn
import torch.nn.functional as F

IMAGES = 8
GRID = 32
WIDTH = 1280
TEXT_WIDTH = 3584
TOKENS = 4096


class Model(nn.Module):
    def __init__(self, width, text_width):
        super().__init__()
        self.norm = nn.RMSNorm(width, eps=1e-6, dtype=torch.bfloat16)
        self.fc1 = nn.Linear(4 * width, 4 * width, dtype=torch.bfloat16)
        self.fc2 = nn.Linear(4 * width, text_width, dtype=torch.bfloat16)

    def forward(self, patches, embeds, image_mask):
        n, h, w, c = patches.shape
        x = self.norm(patches)
        x = x.view(n, h // 2, 2, w // 2, 2, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, 4 * c)
        x = self.fc2(F.gelu(self.fc1(x)))
        place = (image_mask.long().cumsum(0) - 1).clamp(min=0)
        return torch.where(image_mask.unsqueeze(-1), x[place], embeds)


def get_inputs():
    patches = torch.randn(IMAGES, GRID, GRID, WIDTH, dtype=torch.bfloat16)
    embeds = torch.randn(TOKENS, TEXT_WIDTH, dtype=torch.bfloat16)
    mask = torch.arange(TOKENS) % 2 == 1
    return [patches, embeds, mask]


def get_init_inputs():
    return [WIDTH, TEXT_WIDTH]
