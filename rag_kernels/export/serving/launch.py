"""One call of a loaded kernel: outputs made on the device of its tensors, then the call in destination-passing style.

Comes in: the function of a library, and arguments that are served. Goes out: tensors. Exported packages carry this file
with `served.py` and `torch_operator.py`: these import nothing else of ours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from rag_kernels.export.serving.served import ALIGNED_BYTES, Served, Sizes, placed

if TYPE_CHECKING:
    import torch

    from rag_kernels.export.serving.torch_operator import Backward


CUDA_NAMES = ("cuda", "cublas", "cudnn", "cusolver", "cufft", "cusparse", "memory")  # in PyTorch's errors of a device


class KernelRefused(ValueError):
    """The kernel itself raised: its own checks are narrower than what it was seen to take."""


def refused(error: Exception, backend: str) -> KernelRefused:
    """Return an error of a kernel as its refusal; raises the error itself where no check of a kernel raised it.

    On a GPU a RuntimeError that speaks of CUDA is a launch that failed, no memory, or the fault of an earlier kernel,
    after which nothing may run. A kernel's own checks raise others (`RK_CHECK` a ValueError), as PyTorch does where a
    composed candidate asks for a shape that a tensor cannot take.
    """
    of_the_device = isinstance(error, RuntimeError) and (
        type(error) is not RuntimeError or any(name in str(error).lower() for name in CUDA_NAMES)
    )
    if isinstance(error, MemoryError) or (backend == "cuda" and of_the_device):
        raise error
    return KernelRefused(f"The kernel itself refuses the call: {error}")


class Launch:
    """A kernel of the tier `kernel` with its constants. `function` gives the loaded one, on the device in use.

    `backward` is one for its gradients, which are recomputed without.
    """

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
        backward: Backward | None = None,
    ) -> None:
        import torch

        self.backward = backward
        self.name, self.served, self.functional, self.backend = name, served, functional, served.backend
        self.constants, self.function, self.any_alignment = tuple(constants), function, any_alignment
        self.dtypes: list[torch.dtype] = [getattr(torch, output.dtype) for output in served.outputs]
        self.loaded: dict[int | None, Callable[..., Any]] = {}  # by device
        self.like = self._like()
        self.empty, self.empty_like, self.dense = torch.empty, torch.empty_like, torch.contiguous_format

    def _like(self) -> int | None:
        """Return which argument has the type and the sizes of the one output: it is quicker made like a tensor."""
        if len(self.served.outputs) != 1:
            return None
        [output] = self.served.outputs
        made = output.dtype, tuple(output.shape), tuple(output.free)
        arguments = self.served.arguments
        alike = (i for i in self.served.tensors if (arguments[i].dtype, *map(tuple, arguments[i][2::2])) == made)
        return next(alike, None)

    def run(self, values: Sequence[Any], sizes: Sequence[Sizes]) -> Any:
        """Return the outputs, of these sizes, for arguments that are served."""
        tensors = self.served.tensors
        device = values[tensors[0]].device if tensors else None
        index = None if device is None else device.index
        if device is not None and index is not None and device.type == "cuda":
            import torch

            if index != torch.cuda.current_device():
                with torch.cuda.device(device):
                    return self.run(values, sizes)
        function = self.loaded.get(index) or self._load(index)
        given = self._placed(values, tensors)
        if self.like is not None:
            result = self.empty_like(given[self.like], memory_format=self.dense)
            self._call(function, given, (result,))
            return result
        device = device or self.backend
        results = [self.empty(shape, dtype=d, device=device) for shape, d in zip(sizes, self.dtypes, strict=True)]
        self._call(function, given, results)
        return results[0] if len(results) == 1 else tuple(results)

    def _call(self, function: Callable[..., Any], given: Sequence[Any], results: Sequence[Any]) -> None:
        try:
            function(*given, *self.constants, *results)
        except Exception as error:  # of whatever kind the kernel names
            raise refused(error, self.backend) from error

    def _load(self, index: int | None) -> Callable[..., Any]:
        function = self.loaded[index] = self.function()
        return function

    def _placed(self, values: Sequence[Any], tensors: Sequence[int]) -> Sequence[Any]:
        """Return the same values where all tensors lie as a kernel wants them."""
        aligned = not self.any_alignment
        for i in tensors:
            v = values[i]
            if not v.is_contiguous() or v.is_neg() or v.is_conj() or (aligned and v.data_ptr() % ALIGNED_BYTES):
                return [placed(v, self.any_alignment) if j in tensors else v for j, v in enumerate(values)]
        return values
