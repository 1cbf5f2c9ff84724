"""A `__global__` function in parts, so that nothing has to look for them in its text.

Comes in: parameters, and lines that use them. Goes out: the text, and what it is but for names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from rag_kernels.offline.codegen.reduction_levels import indent
from rag_kernels.offline.codegen.symbols import renamed


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a kernel: its C type and name, and the argument by which it is called; "" is the launch's own."""

    ctype: str
    name: str
    argument: str = ""

    @property
    def declared(self) -> str:
        """Return the parameter as C declares it."""
        return f"{self.ctype} {self.name}"


PARTS = (
    Parameter("int", "parts"),
    Parameter("float* __restrict__", "partial"),
    Parameter("int* __restrict__", "arrived"),
)
"""Parameters of a product whose depth is split among blocks."""


def declared(parameters: Sequence[Parameter]) -> str:
    """Return a list of parameters as C declares it."""
    return ", ".join(p.declared for p in parameters)


def arguments_of(parameters: Sequence[Parameter]) -> list[str]:
    """Return the arguments of these parameters, but for those that are the launch's own."""
    return [p.argument for p in parameters if p.argument]


def constexprs(constants: Mapping[str, str], kind: str = "int64_t") -> list[str]:
    """Return the declarations of sizes that are numbers."""
    return [f"constexpr {kind} {name} = {value};" for name, value in constants.items()]


@dataclass(frozen=True, slots=True)
class KernelText:
    """One kernel. `head` is what stands before its name, `constants` are the names of sizes that are numbers in it."""

    notes: tuple[str, ...]
    head: str
    name: str
    parameters: Sequence[Parameter]
    body: Sequence[str]
    constants: Sequence[str] = ()

    def lines(self) -> list[str]:
        """Return the function with its notes."""
        return [*self.notes, f"{self.head}{self.name}({declared(self.parameters)}) {{", *indent(self.body), "}"]

    def unnamed(self) -> str:
        """Return the text with numbers in place of the kernel's own names, in the order of its parameters.

        Of two regions that are alike but for sizes it is one text: which sizes tell them apart, only their texts show.
        """
        places = {p.name: f"@{i}" for i, p in enumerate(self.parameters)}
        places |= {name: f"@{i}c" for i, name in enumerate(self.constants)}

        def place(name: str) -> str:
            """Return the place of a name, or of a vector that was loaded: `x_v1_kept` is of `x_p`."""
            base, made, rest = name.partition("_v")
            loaded = made and f"{base}_p" in places
            return places.get(name) or (f"{places[f'{base}_p']}{made}{rest}" if loaded else name)

        return renamed(replace(self, notes=(), name="@").lines(), place)
