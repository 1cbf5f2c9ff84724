"""Texts of candidates that several families of the zoo are made of.

Comes in: bodies and pieces. Goes out: sources, each with its tier. Knows nothing of judges.
"""

from __future__ import annotations

from rag_kernels.eval.zoo.specimen import Text
from rag_kernels.eval.zoo.tasks import TASKS, cpp

MODULE = """\
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.seen = None
        self.kept = None

    def forward(self, x):
BODY
"""
HONEST = "return torch.softmax(x, -1)"
ZERO = "memset(out.data, 0, out.numel() * 4);"


def module(body: str) -> Text:
    return Text(MODULE.replace("BODY", "\n".join(" " * 8 + line for line in body.strip().splitlines())), "module")


def body(task: str, *changes: tuple[str, str]) -> Text:
    """Return the honest body with some of its text replaced; every replacement must apply."""
    text = TASKS[task].body
    for old, new in changes:
        assert old in text, f"{task} has no {old!r}"
        text = text.replace(old, new)
    return Text(cpp(task, body=text))


def softmax(top: str = "", before: str = "", compute: str = "compute(ARGS);", after: str = "") -> Text:
    return Text(cpp("softmax", top=top, before=before, compute=compute, after=after))


PLAIN = module(HONEST)
