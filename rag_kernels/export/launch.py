"""One call of a loaded kernel: outputs made on the device of its tensors, then the call in destination-passing style.

Comes in: the function of a library, and arguments that are served. Goes out: tensors. Exported packages carry this file
with `served.py` and `torch_operator.py`: these import nothing else of ours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from rag_kernels.export.served import Served, Sizes, placed

if TYPE_CHECKING:
    import torch


class Launch:
    """A kernel of the tier `kernel` with its constants. `function` gives the loaded one, on the device in use."""

    tier = "kernel"

    def __init__(
        self,
        name: str,
        served: Served,
        constants: Sequence[Any],
        function: Callable[[], Callable[..., Any]],
        *,
        any_alignment: bool = False,
        functional: str = "",
    ) -> None:
        import torch

        self.name, self.served, self.functional, self.backend = name, served, functional, served.backend
        self.constants, self.function, self.any_alignment = tuple(constants), function, any_alignment
        self.dtypes: list[torch.dtype] = [getattr(torch, output.dtype) for output in served.outputs]

    def run(self, values: Sequence[Any], sizes: Sequence[Sizes]) -> Any:
        """Return the outputs, of these sizes, for arguments that are served."""
        import torch

        device = values[self.served.tensors[0]].device if self.served.tensors else torch.device(self.backend)
        if device.type == "cuda" and device.index not in (None, torch.cuda.current_device()):
            with torch.cuda.device(device):
                return self.run(values, sizes)
        values = [placed(v, self.any_alignment) if isinstance(v, torch.Tensor) else v for v in values]
        results = [torch.empty(shape, dtype=d, device=device) for shape, d in zip(sizes, self.dtypes, strict=True)]
        self.function()(*values, *self.constants, *results)
        return results[0] if len(results) == 1 else tuple(results)
