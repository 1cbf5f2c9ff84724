"""The format `gpu-mode`: a submission to GPU MODE's leaderboards that imports torch alone.

Comes in: an attempt and a path. Goes out: a file with its directives and `custom_kernel`, which builds with torch's own
loader and launches on the default queue.
A problem's data are the arguments of the functional call, in its order, in whatever tuples and dictionaries; tensors
that follow, of the outputs' sizes, are written to.
"""

from __future__ import annotations

from rag_kernels.archive.records import Attempt
from rag_kernels.eval.errors import ProblemError
from rag_kernels.export.forms.module_file import summary
from rag_kernels.export.forms.torch_op_package import name_of
from rag_kernels.export.package import WITH_COMPOSED, TextFile
from rag_kernels.export.plain.calls import call_text
from rag_kernels.export.plain.texts import LETTERS

MOST_BYTES = 1_000_000
TEXT = """\
#!POPCORN leaderboard {name}
#!POPCORN gpus {gpu}
# {summary}
# The leaderboard's name is the problem's here: give yours with `popcorn submit --leaderboard`, or change it above.

import torch

from task import input_t, output_t

{call}


def custom_kernel(data: input_t) -> output_t:
    values = [value for value in torch.utils._pytree.tree_leaves(data) if value is not None]
    count = len(rk_kernel.arguments)
    return rk_kernel(values[:count], into=values[count:])
"""
GPUS = ("B200", "H100", "A100", "L4", "T4", "MI300")


def gpu_mode_text(attempt: Attempt) -> str:
    """Return the text of the file."""
    return TEXT.format(
        name=name_of(attempt),
        gpu=next((gpu for gpu in GPUS if gpu in attempt.judged.device.name), "H100"),
        summary=summary(attempt),
        call=call_text(attempt, default_queue=True),
    )


def refuse(text: str) -> None:
    """Raise ProblemError for a file that GPU MODE does not take."""
    if LETTERS in text.lower():
        line = next(line for line in text.splitlines() if LETTERS in line.lower())
        raise ProblemError(
            f"GPU MODE takes no file with the letters '{LETTERS}', and this one has: {line.strip()[:80]}"
        )
    if len(text.encode()) > MOST_BYTES:
        raise ProblemError(f"GPU MODE takes files of at most {MOST_BYTES:,} bytes, and this one has {len(text):,}.")


PACKAGE = TextFile(
    text=gpu_mode_text,
    suffix=".py",
    comment="#",
    loaded_by="GPU MODE's `eval.py`",
    tiers=WITH_COMPOSED,
    refuse=refuse,
)
