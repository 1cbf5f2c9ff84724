"""How ATen operators are spelled in Python: tables only, read by `ingest.graphs.emit`.

What is a plain yes or no of an operator (`in_functional`, `names_device`, `literal_numbers`) stands in
`eval.traits.aten`. Here, by the same names, is the text of those that Python writes in another way: only `emit` needs
it, and a column of it in that table would be empty nine times in ten. Arguments go by the names of their schemas.
"""

from rag_kernels.eval.traits.aten import operator

INFIX = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "div": "/",
    "pow": "**",
    "matmul": "@",
    "eq": "==",
    "ne": "!=",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
    "bitwise_and": "&",
    "bitwise_or": "|",
    "bitwise_xor": "^",
}
PREFIX = {"neg": "-", "bitwise_not": "~"}
# Functions with other names or another order: schema names in Python's order, and Python's names.
F_OTHER: dict[str, tuple[str, tuple[tuple[str, str], ...]]] = {
    "batch_norm": (
        "F.batch_norm",
        (
            ("input", ""),
            ("running_mean", ""),
            ("running_var", ""),
            ("weight", "weight"),
            ("bias", "bias"),
            ("training", "training"),
            ("eps", "eps"),
        ),
    ),
    "instance_norm": (
        "F.instance_norm",
        (
            ("input", ""),
            ("running_mean", "running_mean"),
            ("running_var", "running_var"),
            ("weight", "weight"),
            ("bias", "bias"),
            ("use_input_stats", "use_input_stats"),
            ("eps", "eps"),
        ),
    ),
    "embedding": ("F.embedding", (("indices", ""), ("weight", ""), ("padding_idx", "padding_idx"))),
    "dropout": ("F.dropout", (("input", ""), ("p", "p"), ("train", "training"))),
    "cross_entropy_loss": (
        "F.cross_entropy",
        (
            ("self", ""),
            ("target", ""),
            ("weight", "weight"),
            ("ignore_index", "ignore_index"),
            ("reduction", "reduction"),
            ("label_smoothing", "label_smoothing"),
        ),
    ),
    "log_sigmoid": ("F.logsigmoid", (("self", ""),)),
}
METHODS = {
    "reshape": "reshape",
    "permute": "permute",
    "transpose": "transpose",
    "unsqueeze": "unsqueeze",
    "squeeze": "squeeze",
    "expand": "expand",
    "expand_as": "expand_as",
    "to": "to",
    "repeat": "repeat",
    "unflatten": "unflatten",
    "numpy_T": "t",
    "unfold": "unfold",
}
OPERAND_NAMES = {
    "add": "offset",
    "sub": "offset",
    "rsub": "minuend",
    "mul": "scale",
    "div": "divisor",
    "pow": "exponent",
    "lt": "threshold",
    "le": "threshold",
    "gt": "threshold",
    "ge": "threshold",
    "eq": "compared",
    "ne": "compared",
    "remainder": "modulus",
    "floor_divide": "divisor",
}
RENAMED = {"min": "min_value", "max": "max_value", "lambd": "threshold", "dim": "dim", "p": "p"}
SHAPES = {"size", "shape", "normalized_shape", "output_size", "sizes", "split_size", "dtype", "equation", "path"}
ALWAYS = {"eps", "negative_slope"}
REDUCTIONS = {0: "none", 1: "mean", 2: "sum"}
PER_AXIS = {"stride", "padding", "dilation", "kernel_size", "output_padding"}
# Arguments other than tensors that are clear without their names.
POSITIONAL = {
    "equation",
    "size",
    "end",
    "normalized_shape",
    "num_groups",
    "split_size",
    "split_sizes",
    "chunks",
    "sections",
    "repeats",
    "num_classes",
}
RECURRENT_ORDER = (
    "input",
    "hx",
    "params",
    "has_biases",
    "num_layers",
    "dropout",
    "train",
    "bidirectional",
    "batch_first",
)


def stays_in_call(op: str, argument: str) -> bool:
    """Return whether an argument's numbers are sizes and places, which stay in the call: no keyword holds them."""
    return operator(op).literal_numbers or argument in SHAPES
