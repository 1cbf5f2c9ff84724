"""Times ways to ask whether a module is still what a kernel serves, in one process, in turns.

    python tests/bench/guard_costs.py

The contract of an exported module asks type, dtype, layout, device and sizes of each (`export/serving/served.py`), of
many first by torch's own check of all. Other ways look cheaper and are not kept: what `.data =` changes has no version,
and may have the same address, so identity, version and address together are not sound; `is_set_to` is sound beside a
dtype, and dearer; the tree of guards of torch.compile says yes to a transposed parameter of a dict in PyTorch 2.11.
Of the attributes of parts each is asked, or the version of them all (`held.version_of_dicts`); modes of torch by
themselves, or by the check of tensors, which says no where one is on, or by torch's guard of its whole state. Prints
microseconds: of twelve parameters, then of six parts with two numbers each, and of the modes.
"""

from __future__ import annotations

import timeit
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import torch
from torch import nn
from torch._C._dynamo import guards

from rag_kernels.export.serving import held
from rag_kernels.export.serving.guard import Lines
from rag_kernels.export.serving.served import tensors_like

COUNT, CALLS, TURNS = 12, 60, 400
TYPE, DTYPE, LAYOUT = (
    "type(v{i}) is not P and type(v{i}) is not T",
    "v{i}.dtype is not f32",
    "v{i}.layout is not strided",
)
ASKED = {
    "it is read from its module": (),
    "type, dtype, layout, is_cpu, sizes: what is asked of few": (
        TYPE,
        DTYPE,
        LAYOUT,
        "not v{i}.is_cpu",
        "v{i}.shape != size",
    ),
    "the same by one attrgetter each": (TYPE, "get(v{i}) != want"),
    "identity, version, address: not sound": ("v{i} is not h{i}", "v{i}._version", "not v{i}.data_ptr()"),
    "identity, is_set_to, dtype": ("v{i} is not h{i}", "not v{i}.is_set_to(alias{i})", DTYPE),
    "identity, dtype, is_cpu, sizes, is_contiguous": (
        "v{i} is not h{i}",
        DTYPE,
        "not v{i}.is_cpu",
        "v{i}.shape != size",
        "not v{i}.is_contiguous()",
    ),
}


def names() -> dict[str, Any]:
    held = [nn.Parameter(torch.rand(16)) for _ in range(COUNT)]
    known = {"P": nn.Parameter, "T": torch.Tensor, "f32": torch.float32, "strided": torch.strided, "size": (16,)}
    known |= {"get": attrgetter("dtype", "layout", "is_cpu", "shape"), "at": {str(i): p for i, p in enumerate(held)}}
    known |= {"want": (torch.float32, torch.strided, True, torch.Size([16]))}
    known |= {f"h{i}": p for i, p in enumerate(held)} | {f"alias{i}": p.detach() for i, p in enumerate(held)}
    return known


def function(asked: tuple[str, ...], known: dict[str, Any]) -> Callable[[], bool]:
    lines = [f"v{i} = at['{i}']" for i in range(COUNT)]
    lines += [f"if {condition.format(i=i)}: return False" for i in range(COUNT) for condition in asked]
    exec("def guard():\n    " + "\n    ".join([*lines, "return True"]), known)
    made: Callable[[], bool] = known["guard"]
    assert made()
    return made


def at_once(known: dict[str, Any]) -> Callable[[], bool]:
    """Ask torch's own check of all, which is what is asked of many."""
    check = tensors_like(list(known["at"].values()))
    assert check is not None, "this PyTorch has no check of tensors that tells them apart"
    reads = [f"v{i} = at['{i}']" for i in range(COUNT)]
    known["check"] = check
    exec("\n    ".join(["def guard():", *reads, f"return check({', '.join(f'v{i}' for i in range(COUNT))})"]), known)
    made: Callable[[], bool] = known["guard"]
    assert made()
    return made


class Part(nn.Module):
    """Has two numbers, as a convolution has more."""

    def __init__(self) -> None:
        super().__init__()
        self.features, self.rate = 16, 0.5

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.features * self.rate


def attributes(*, by_version: bool) -> Callable[[], bool]:
    """Ask six parts whether an attribute, a part or a hook is another one."""
    module, version = nn.Sequential(*[Part() for _ in range(6)]), held.version_of_dicts
    held.version_of_dicts = version if by_version else lambda: None  # type: ignore[assignment]
    lines = Lines()
    held.Held(module, []).looks(module).guarded(lines)
    held.version_of_dicts = version
    made: Callable[[], bool] = lines.function("", "True")
    assert made()
    return made


def modes() -> bool:
    """Ask for autocast, transforms and a trace."""
    c = torch._C
    return not (c._is_any_autocast_enabled() or c._are_functorch_transforms_active() or c._is_tracing())


def swapped_data_shows() -> tuple[bool, bool]:
    """Return whether a parameter's version or address tell that its content was transposed by `.data =`."""
    one = nn.Parameter(torch.rand(4, 4))
    version, address = one._version, one.data_ptr()
    one.data = one.data.t()
    return one._version != version, one.data_ptr() != address


def main() -> None:
    torch.set_num_threads(1)
    made = {told: function(asked, names()) for told, asked in ASKED.items()}
    made["torch's own check of all: what is asked of many"] = at_once(names())
    by_tensor = len(made)
    made["attributes of parts: each"] = attributes(by_version=False)
    made["attributes of parts: the version of all of a part, which is asked"] = attributes(by_version=True)
    made["modes: by themselves; the check of tensors asks them too"] = modes
    made["modes: torch's guard of its state"] = guards.GlobalStateGuard().check
    least = dict.fromkeys(made, float("inf"))
    for _ in range(TURNS):
        for told, one in made.items():
            least[told] = min(least[told], timeit.timeit(one, number=CALLS) / CALLS * 1e6)
    for number, (told, us) in enumerate(least.items()):
        a_tensor = f"{1000 * us / COUNT:4.0f} ns a tensor" if number < by_tensor else ""
        print(f"{us:6.2f} us  {a_tensor:16}  {told}")
    print("version, address tell of a transposed .data:", *swapped_data_shows())


if __name__ == "__main__":
    main()
