"""The numbers that a kernel receives, and names in C that stay clear of keywords and of generated names.

Comes in: a FunctionalProblem. Goes out: its numbers in the order of the kernel contract.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from rag_kernels.eval.records import FunctionalProblem, Scalar, ScalarArgument, TensorArgument


@dataclass(frozen=True, slots=True)
class Number:
    """A scalar parameter: its C type, its name in C, and the Python expression that passes it."""

    name: str
    ctype: str
    python: str

    @property
    def is_operand(self) -> bool:
        """Return whether arithmetic may read it: what is a place or a size by its name is equal to others by chance."""
        return not STRUCTURAL.fullmatch(self.python)


STRUCTURAL = re.compile(
    r"(dims?|dim0|dim1|start|end|step|index|start_dim|end_dim|kernel_size|stride|padding|dilation|output_padding|groups|"
    r"num_groups|chunks|sections|split_sizes?|diagonal|repeats|shifts|pad|num_classes|k|minlength|dimension|size)"
    r"(_\d+)?(\[\d+\])?"
)
"""Keywords of PyTorch that say where or how many; constants are named after them."""

PIECE = "@"  # between a buffer's name and the number of one of its pieces
# Of generated loops; `tests/test_offline_names.py` finds one that is missing.
GENERATED_NAMES = re.compile(
    r"[a-z]+\d+|[a-z]+\d+_\w+|(l|of)_\w+|[A-Z]\w*|\w+_(v\d*|v\d*_kept|p|p_start|data|tile\d*(_element|_held)?)|[a-eg-lnp-qstuvz]|"
    r"multiply\w*|"
    r"(above|at|await|close|cluster|column|copy|first|from|half|handed|high|keep|kept|lane|left|low|mbarrier|next|part|"
    r"phase|put|quad|rest|right|rk|row|second|steps|take|taps|tile|tma|wgmma|wide)_\w+|"
    r"at|by|by_device|down|hi|in|kn|lo|to|tx|ty|up|z_|across|active|adding|aligned|all|along|arrived|band|bar|bars|base|batches|before|"
    r"begin|beside|best|bits|block|blocks|bring|built|bytes|chunk|cluster|column|columns|copied|copy|count|depth|"
    r"counters?|descriptor|device|done|each|edge|elements|empty|end|enter|factor|failed|fetch|finish|first|fit|float_at|fits|fitted|found|from|"
    r"full|gather|grid|group|halves|held|high|hold|in_shared|inner|inside|is_cluster|item|items|kept|lane|lanes|"
    r"last|later|least|leave|left|len|length|lines|look|low|meet|meeting|merge|met|mine|more|most|multiple_of_1024|"
    r"line|name|near|far|near_row|far_row|needed|now|number|once|other|own|packed|panel|part|partial|parts|parts_of|place|place_of|places|post|posted|"
    r"processors|publish|put|quads|raised|rank|release|rest|result|right|ring|round|row|rows|scratch|share|shared|shares|"
    r"shift|show|shown|single|size|slot|slots|small|spread|staged|start|step|steps|store|stream|stride|strip|sum|"
    r"sums|take|taken|tall|target|team|teams|term|threads|tile|tile_of_sums|tiles|time|top|turns|unpacked|vectors|"
    r"warp|warps|which|whole|word|"
    r"begin_\w+|[qkv]_(?:at|empty|full)|[mor]|arrivals|asked|fitting|four|free|give|head|heads|it|join|joined|keep|keys|kk|"
    r"leader|leading|major|map_\w+|mask|mine_of|minor|most_blocks|outside|parity|phase|qs|qw|shrink|softmax|split|splits|st|"
    r"add|ks|quad|weigh|"
    r"tiles_of_keys|times|together|total|until|wanted|wide|pitch|reads|sizes|strides|extreme|"
    r"begins|bits|board|counted|fill|gathered|given|it|longest|nans|of_lane|ends|exists|is_long|long_ones|many|mine_now|owner|past|segment|segments|shape|tail|turn|walk|walker|"
    r"walkers|bring_tile|stage|known|back|there|split_depth|pixel|image|padded|above|below|channels|encode|pixels|swizzle|extents|images|"
    r"ahead|early|exchanged|one|several|channel|even|odd|slice|chunks?|plane|filters?|half|spot|tap|gone|pair|pieces?|room|theirs|words|(filters|pixels)_of"
)
KEYWORDS = frozenset(
    "auto bool break case catch char class const continue default delete do double else enum extern false float for "
    "goto if inline int long namespace new operator or and not private public register return short signed sizeof "
    "static struct switch template this throw true try typedef typename union unsigned using virtual void volatile "
    "while xor abs exp log floor ceil sqrt pow sin cos tan gamma rk std forward".split()
)


def whole_of(name: str) -> str:
    """Return the buffer of which a name stands for a piece, or is the name."""
    return name.partition(PIECE)[0]


@cache
def c_name(name: str) -> str:
    """Return a name for C that is neither a keyword nor a name that generated loops use."""
    name = whole_of(name)
    return name + "_arg" if GENERATED_NAMES.fullmatch(name) or name in KEYWORDS else name


def start_name(pointer: str) -> str:
    """Return the C name of the number that says where a buffer's piece begins."""
    return f"{pointer}_start"


def numbers(fp: FunctionalProblem) -> list[tuple[Number, Scalar]]:
    """Return the numbers of the call in contract order, each with its value: scalar arguments, then constants.

    A constant that is a tuple gives one number for each of its elements.
    """
    kinds = {bool: "bool", int: "int64_t", float: "double"}
    flat: list[tuple[str, str, Scalar]] = [
        (a.name, a.name, a.value) for a in fp.arguments if isinstance(a, ScalarArgument)
    ]
    for name, value in fp.constants:
        if isinstance(value, tuple):
            flat += [(f"{name}_{i}", f"{name}[{i}]", v) for i, v in enumerate(value)]
        else:
            flat.append((name, name, value))
    out: list[tuple[Number, Scalar]] = []
    for name, python, value in flat:
        if type(value) in kinds:
            taken = {n.name for n, _ in out} | {a.name for a in fp.arguments if isinstance(a, TensorArgument)}
            name = c_name(name)
            while name in taken:
                name += "_"
            out.append((Number(name, kinds[type(value)], python), value))
    return out
