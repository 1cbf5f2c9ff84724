"""Dtypes that a rule reads from a graph node.

Comes in: a graph node and the `Lowering` that knows its operands. Goes out: names of dtypes.
"""

from __future__ import annotations

from rag_kernels.eval.records import Node, Ref
from rag_kernels.eval.records import Value as Argument
from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.ir.dtypes import ITEMSIZE, arithmetic
from rag_kernels.offline.lowering.lower import Lowering


def graph_dtype(lowering: Lowering, argument: Argument) -> str:
    """Return the dtype that a tensor of the graph has there; nothing for a number."""
    if not isinstance(argument, Ref) or argument.name in lowering.scalars:
        return ""
    entry = lowering.env[argument.name]
    return lowering.specs[entry.buffer].dtype if entry.buffer else entry.dtype


def out_dtype(node: Node) -> str:
    """Return the dtype in which the node's first output is computed.

    Raises Unfusable for one that kernels do not have.
    """
    dtype = node.outputs[0].dtype
    if dtype not in ITEMSIZE:
        raise ir.Unfusable(f"dtype {dtype}")
    return arithmetic(dtype)


def operand_dtype(lowering: Lowering, node: Node) -> str:
    """Return the dtype in which a number among the operands takes part."""
    names = [a.name for a in node.args if isinstance(a, Ref) and a.name not in lowering.scalars]
    dtypes = [lowering.value(Ref(n)).dtype for n in names]
    numbers = [a for a in node.args if isinstance(a, float)]
    floats = [d for d in dtypes if d.startswith("float")]
    if set(dtypes) == {"bool"} and any(type(a) is int for a in node.args):
        return "int64"
    return floats[0] if floats else "float32" if numbers or not dtypes else dtypes[0]
