"""Products of fp16 that a CPU's library is asked for, as products of fp32.

Comes in: a problem's graph. Goes out: the same function, in which the factors of such a product become fp32 before it
and its result fp16 after it. Without fp16 units PyTorch's fp16 products take 4 times (`linear`) to 80 times (`matmul`,
convolutions) as long as its fp32 ones on a CPU, casts included; those of bf16 do not, and stay as they are. Products
that are generated read fp16 themselves.
"""

from __future__ import annotations

from dataclasses import replace

from rag_kernels.eval.records import FunctionalProblem, Node, Ref, TensorSpec
from rag_kernels.eval.traits.aten import base_name
from rag_kernels.offline.graph.rewrites import NewNodes, live
from rag_kernels.offline.graph.subgraph_match import refs_of, specs_of
from rag_kernels.offline.graph.written_places import renamed
from rag_kernels.offline.lowering.which_products import ATTENTION, PRODUCTS, factors_of, likely_faster

TO = "aten.to.dtype"
SLOW, WIDE = "float16", "float32"
WIDENED = PRODUCTS.keys() - {ATTENTION, "_scaled_mm"}


def with_wide_products(fp: FunctionalProblem) -> FunctionalProblem:
    """Return the problem with fp16 products that the library would compute in fp32; itself if there are none."""
    specs = specs_of(fp)
    wanted = [node for node in fp.nodes if _is_slow(node, specs)]
    if not wanted:
        return fp
    new = NewNodes({*specs, *(node.name for node in fp.nodes)})
    wide: dict[str, Ref] = {}  # each factor is cast once
    for node in fp.nodes:
        if node not in wanted:
            new.made.append(node)
            continue
        for name in dict.fromkeys(refs_of(node)):
            if name not in wide:
                wide[name] = Ref(new.name_like(f"{name}_wide"))
                new.made.append(_cast(wide[name].name, Ref(name), WIDE, specs[name]))
        product, (spec,) = new.name_like(f"{node.name}_wide"), node.outputs
        new.made.append(replace(renamed(node, wide), name=product, outputs=(replace(spec, dtype=WIDE),)))
        new.made.append(_cast(node.name, Ref(product), SLOW, spec))
    return live(fp, new.made)


def _is_slow(node: Node, specs: dict[str, TensorSpec]) -> bool:
    """Return whether a node is a product of fp16 tensors alone that stays with the library."""
    if base_name(node.op) not in WIDENED or node.kwargs:
        return False
    given = [specs.get(name) for name in refs_of(node)]
    if not all(spec and spec.dtype == SLOW for spec in (*given, *node.outputs)):
        return False
    shapes = [specs[factor.name].shape for factor in factors_of(node) if isinstance(factor, Ref)]
    return not likely_faster(node, shapes, "cpu", half=True)


def _cast(name: str, value: Ref, dtype: str, spec: TensorSpec) -> Node:
    return Node(name, TO, (value, f"torch.{dtype}"), (), (replace(spec, dtype=dtype),))
