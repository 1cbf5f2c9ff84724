"""Check and make one call of a kernel: files for GPU MODE and KernelBench carry this text, which imports torch alone.

An argument is (name, dtype, shape), with free sizes by name ("N", "2*N"); a number has no dtype, and its value for a
shape. An output is (dtype, shape), with "2*N-1" and "(N+1)//2" among its sizes too.
"""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch

ALIGNED_BYTES = 64  # as PyTorch allocates; a kernel that was not tried at other places gets a copy there


class NotVerified(ValueError):
    """A call is not one for which the kernel was verified; the message says what differs."""


class Call:
    """A kernel with the calls for which it was verified; `function` takes arguments and outputs."""

    def __init__(
        self,
        function: Callable[..., Any],
        arguments: Sequence[tuple[str, Any, Any]],
        outputs: Sequence[tuple[Any, Any]] | None,  # None: the function allocates and returns them
        constants: Any,
        device: str,
        any_alignment: bool,
    ) -> None:
        self.function, self.arguments, self.outputs = function, arguments, outputs
        self.constants, self.device, self.any_alignment = constants, device, any_alignment
        self.known: dict[Any, list[tuple[int, ...]]] = {}

    def __call__(self, values: Sequence[Any], into: Sequence[torch.Tensor] = ()) -> Any:
        """Return the kernel's result, written to `into` if that is given; raises NotVerified."""
        key = tuple([(v.shape, v.dtype, v.device) if isinstance(v, torch.Tensor) else (type(v), v) for v in values])
        sizes = self.known.get(key)
        if sizes is None:
            sizes = self.known[key] = self.sizes_of(values)
        given = [self.placed(v) if isinstance(v, torch.Tensor) else v for v in values]
        where = next((v.device for v in given if isinstance(v, torch.Tensor)), torch.device(self.device))
        other = where.type == "cuda" and where.index != torch.cuda.current_device()
        with torch.cuda.device(where) if other else contextlib.nullcontext():
            if self.outputs is None:
                with torch.no_grad():
                    return self.told(lambda: self.function(*given, **self.constants))
            made = [torch.empty(s, dtype=d, device=where) for s, (d, _) in zip(sizes, self.outputs, strict=True)]
            if len(into) == len(made) and all(map(self.alike, into, made)):
                made = list(into)
            self.told(lambda: self.function(*given, *self.constants, *made))
        return made[0] if len(made) == 1 else tuple(made)

    def told(self, call: Callable[[], Any]) -> Any:
        """Return what the kernel does; raises NotVerified for whatever it raises: its own checks may be narrower."""
        try:
            return call()
        except Exception as error:
            raise NotVerified(f"The kernel itself refuses the call: {error}") from error

    def sizes_of(self, values: Sequence[Any]) -> list[tuple[int, ...]]:
        """Return the sizes of the outputs."""
        if len(values) != len(self.arguments):
            raise NotVerified(f"It got {len(values)} arguments, and takes {len(self.arguments)}.")
        bound: dict[str, int] = {}
        places = {value.device for value in values if isinstance(value, torch.Tensor)}
        if len(places) > 1:
            raise NotVerified(f"Its tensors are on {', '.join(sorted(map(str, places)))}, and must be on one device.")
        for (name, dtype, shape), value in zip(self.arguments, values, strict=True):
            if dtype is None:
                if type(value) is not type(shape) or value != shape:
                    raise NotVerified(f"{name} is {value!r}, and was verified as {shape!r}.")
                continue
            told = f"{name} was verified as {dtype} of {shape} on {self.device}"
            if not isinstance(value, torch.Tensor):
                raise NotVerified(f"{told}, and is a {type(value).__name__}.")
            fits = value.dtype == dtype and value.device.type == self.device and value.dim() == len(shape)
            if not fits or not all(has == self.size(s, bound, has) for s, has in zip(shape, value.shape, strict=True)):
                raise NotVerified(f"{told}, and is {value.dtype} of {tuple(value.shape)} on {value.device}.")
            if not 0 < value.numel() < 2**31:
                raise NotVerified(f"{told}; none of no, or of 2**31, elements was tried.")
        sizes = [tuple(self.size(s, bound, 0) for s in shape) for _, shape in self.outputs or ()]
        for made, (_, shape) in zip(sizes, self.outputs or (), strict=True):
            if any(size < 1 and isinstance(told, str) for size, told in zip(made, shape, strict=True)):
                raise NotVerified(f"An output would be of {made}; none of no elements was tried.")
        return sizes

    def size(self, size: int | str, bound: dict[str, int], has: int) -> int:
        """Return a size; one by name is what the first argument with the name makes of it."""
        if isinstance(size, int):
            return size
        whole, _, parts = size.partition("//")
        whole = whole.strip("()")
        multiple, sign, more = whole.partition("-") if "-" in whole else whole.partition("+")
        factor, _, name = multiple.rpartition("*")
        times = int(factor or 1)
        return (times * bound.setdefault(name, has // times) + int(f"{sign}{more or 0}")) // int(parts or 1)

    def placed(self, value: torch.Tensor) -> torch.Tensor:
        """Return a tensor as the kernel takes it: contiguous, and where it was tried."""
        value = value.detach().resolve_conj().resolve_neg().contiguous()
        return value if self.any_alignment or value.data_ptr() % ALIGNED_BYTES == 0 else value.clone()

    def alike(self, given: torch.Tensor, made: torch.Tensor) -> bool:
        """Return whether an output that the caller made can be written to."""
        return given.shape == made.shape and given.dtype == made.dtype and given.is_contiguous()
