"""A problem's steps with attention and chained products as steps of their own, as far as they are recognised.

Comes in: a problem, by how a walk over it begins, and the rules by operator name. Goes out: its steps.
"""

from __future__ import annotations

from collections.abc import Callable

from rag_kernels.eval.records import FunctionalProblem
from rag_kernels.offline.fusion.attention.chained import ChainRecogniser, factors_of, find_chains, joined
from rag_kernels.offline.fusion.attention.recognition import AttentionRecogniser, find_sites
from rag_kernels.offline.fusion.attention.result import as_read, in_place
from rag_kernels.offline.lowering.lower import Lowering, Rule
from rag_kernels.offline.lowering.steps import Lowered


def lowered_with_attention(
    fp: FunctionalProblem, begin: Callable[[frozenset[str]], Lowering], rules: dict[str, Rule], *, chained: bool
) -> Lowered:
    """Return the problem's steps with what is recognised as one step each; `chained` products, too.

    Each walk is begun anew, with the names of factors that are not stored for several products to read.
    """
    sites, chains = list(find_sites(fp)), list(find_chains(fp)) if chained else []
    while sites or chains:
        attention = AttentionRecogniser.of(sites, rules)
        products = ChainRecogniser(chains, attention.rules())
        lowered = begin(factors_of(fp, chains)).run(products.rules())
        left, of_chains = attention.left(lowered), products.left(lowered)
        if not left and not of_chains:
            return joined(as_read(in_place(lowered)))
        sites = [site for site in sites if site not in left]
        chains = [chain for chain in chains if chain not in of_chains]
    return begin(frozenset()).run(rules)
