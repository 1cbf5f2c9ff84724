"""Problems from the bodies of a constructor and a forward."""

from __future__ import annotations

from rag_kernels.eval.records import Problem

HEAD = "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n"


def problem(init: str, forward: str, inputs: str, *, given: str = "x", constants: str = "", args: str = "") -> Problem:
    """A problem from the bodies of its parts."""
    indent = "\n        "
    return Problem(
        "case",
        f"{HEAD}{constants}\n\nclass Model(nn.Module):\n    def __init__(self{', ' + args if args else ''}):\n"
        f"        super().__init__()\n        {init.replace(chr(10), indent)}\n\n"
        f"    def forward(self, {given}):\n        {forward.replace(chr(10), indent)}\n\n"
        f"def get_inputs():\n    return [{inputs}]\n\ndef get_init_inputs():\n    return [{args}]\n",
    )
