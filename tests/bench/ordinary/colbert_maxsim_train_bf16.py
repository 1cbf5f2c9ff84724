"""ColBERT's late interaction over in-batch documents and its cross entropy, trained, bf16."""

import torch
import torch.nn as nn
import torch.nn.functional as F

QUERIES = 32
QUERY_TOKENS = 32
DOCUMENTS = 64
DOCUMENT_TOKENS = 180
WIDTH = 768
DIM = 128


class Model(nn.Module):
    def __init__(self, width, dim):
        super().__init__()
        self.project = nn.Linear(width, dim, bias=False, dtype=torch.bfloat16)

    def forward(self, queries, documents, mask, labels):
        q = F.normalize(self.project(queries), dim=-1)
        d = F.normalize(self.project(documents), dim=-1)
        sim = torch.einsum("qid,njd->qnij", q, d)
        sim = sim.masked_fill(~mask[None, :, None, :], -1e4)
        scores = sim.amax(dim=-1).float().sum(dim=-1)
        return F.cross_entropy(scores / 0.5, labels)


def get_inputs():
    lengths = torch.randint(60, DOCUMENT_TOKENS, (DOCUMENTS, 1))
    return [
        torch.randn(QUERIES, QUERY_TOKENS, WIDTH, dtype=torch.bfloat16),
        torch.randn(DOCUMENTS, DOCUMENT_TOKENS, WIDTH, dtype=torch.bfloat16),
        torch.arange(DOCUMENT_TOKENS)[None, :] < lengths,
        torch.randint(0, DOCUMENTS, (QUERIES,)),
    ]


def get_init_inputs():
    return [WIDTH, DIM]
