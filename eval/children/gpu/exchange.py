"""What goes between the reference worker and a candidate's worker on one GPU: memory that both of them map.

Whole draws go out through it, and a call's outputs come back; what is checked is a copy that the reference worker alone
has. Nothing that says what is right is ever put there, and it is emptied before another candidate may read it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from rag_kernels.eval.buffers.shared_arena import layout
from rag_kernels.eval.children.gpu import shared_memory as gpu_shared_memory
from rag_kernels.eval.children.gpu.buffers import digest
from rag_kernels.eval.records import TensorSpec


class Exchange:
    """One end of it: `open` it on the reference's side, `join` it on a candidate's."""

    def __init__(self, content: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> None:
        self._content, self._outputs = content, outputs
        self.memory: torch.Tensor | None = None

    def open(self) -> tuple[int, list[int]]:
        """Empty it; its size, and the first time, when it is made, its descriptor."""
        made: list[int] = []
        if self.memory is None:
            fd, self.memory = gpu_shared_memory.create(max(layout(self._content)[1], layout(self._outputs)[1]))
            made = [fd]
        self.memory.zero_()
        return len(self.memory), made

    def join(self, fd: int, size: int) -> None:
        self.memory = gpu_shared_memory.opened(fd, size)

    def offer(self, draw: Sequence[torch.Tensor]) -> None:
        """Lay out a draw: flat bytes of each tensor."""
        for place, mine in zip(self._views(self._content), draw, strict=True):
            place.reshape(-1).view(torch.uint8).copy_(mine)

    def offered(self) -> list[torch.Tensor]:
        """Return a copy of the draw that is laid out, as flat bytes."""
        return [t.reshape(-1).view(torch.uint8).clone() for t in self._views(self._content)]

    def handed(self) -> list[torch.Tensor]:
        """Return where the outputs are handed over."""
        return self._views(self._outputs)

    def _views(self, specs: Sequence[TensorSpec]) -> list[torch.Tensor]:
        assert self.memory is not None, "the judge has it opened or joined first"
        return gpu_shared_memory.views(self.memory, specs)


class KeptOutputs:
    """Copies of outputs that were handed over, by number. One lies here until the next comes, or, kept, until it was
    looked up for its check."""

    def __init__(self) -> None:
        self._outputs: dict[int, list[torch.Tensor]] = {}
        self._kept: set[int] = set()
        self._count = 0

    def put(self, handed: Sequence[torch.Tensor], *, keep: bool) -> tuple[int, str]:
        """Copy them; their number, and the fingerprint of the copies."""
        self._outputs = {number: outputs for number, outputs in self._outputs.items() if number in self._kept}
        self._count += 1
        self._outputs[self._count] = [t.clone() for t in handed]
        if keep:
            self._kept.add(self._count)
        return self._count, digest(self._outputs[self._count])

    def clear(self) -> None:
        """Clear it for the next candidate. Numbers do not come again."""
        self._outputs.clear()
        self._kept.clear()

    def look_up(self, number: int) -> list[torch.Tensor]:
        self._kept.discard(number)
        return self._outputs[number]
