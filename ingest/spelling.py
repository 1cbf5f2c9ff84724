"""How ATen operators are spelled in Python: tables only, read by `ingest.emit`."""

INFIX = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "pow": "**", "matmul": "@", "eq": "==", "ne": "!=", "lt": "<",
    "le": "<=", "gt": ">", "ge": ">=", "bitwise_and": "&", "bitwise_or": "|", "bitwise_xor": "^",
}  # fmt: skip
PREFIX = {"neg": "-", "bitwise_not": "~"}
# Functions whose Python parameters bear the schema's names (self becomes the first positional argument).
F_SAME = {
    "relu", "leaky_relu", "gelu", "silu", "elu", "selu", "celu", "softplus", "hardtanh", "hardswish", "hardsigmoid",
    "mish", "relu6", "glu", "prelu", "threshold", "softshrink", "hardshrink", "conv1d", "conv2d", "conv3d", "linear",
    "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "max_pool1d", "max_pool2d", "max_pool3d",
    "avg_pool1d", "avg_pool2d", "avg_pool3d", "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d",
    "softmax", "log_softmax", "scaled_dot_product_attention", "pad", "cosine_similarity", "pairwise_distance",
    "pixel_shuffle", "pixel_unshuffle", "bilinear", "one_hot", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss",
    "binary_cross_entropy", "binary_cross_entropy_with_logits", "kl_div", "triplet_margin_loss", "nll_loss",
    "hinge_embedding_loss", "margin_ranking_loss", "poisson_nll_loss", "soft_margin_loss", "layer_norm", "rms_norm",
    "group_norm",
}  # fmt: skip
# Functions with other names or another order: schema names in Python's order, and Python's names.
F_OTHER: dict[str, tuple[str, tuple[tuple[str, str], ...]]] = {
    "batch_norm": (
        "F.batch_norm",
        (("input", ""), ("running_mean", ""), ("running_var", ""), ("weight", "weight"), ("bias", "bias"),
         ("training", "training"), ("eps", "eps")),
    ),
    "instance_norm": (
        "F.instance_norm",
        (("input", ""), ("running_mean", "running_mean"), ("running_var", "running_var"), ("weight", "weight"),
         ("bias", "bias"), ("use_input_stats", "use_input_stats"), ("eps", "eps")),
    ),
    "embedding": ("F.embedding", (("indices", ""), ("weight", ""), ("padding_idx", "padding_idx"))),
    "dropout": ("F.dropout", (("input", ""), ("p", "p"), ("train", "training"))),
    "cross_entropy_loss": (
        "F.cross_entropy",
        (("self", ""), ("target", ""), ("weight", "weight"), ("ignore_index", "ignore_index"),
         ("reduction", "reduction"), ("label_smoothing", "label_smoothing")),
    ),
    "log_sigmoid": ("F.logsigmoid", (("self", ""),)),
}  # fmt: skip
METHODS = {
    "reshape": "reshape", "permute": "permute", "transpose": "transpose", "unsqueeze": "unsqueeze",
    "squeeze": "squeeze", "expand": "expand", "expand_as": "expand_as", "to": "to", "repeat": "repeat",
    "unflatten": "unflatten", "numpy_T": "t", "unfold": "unfold",
}  # fmt: skip
LAYOUT = {
    *METHODS, "slice", "select", "flatten", "cat", "stack", "split", "split_with_sizes", "chunk", "narrow", "roll",
    "flip", "index", "pad", "zeros", "ones", "full", "empty", "arange", "eye", "linspace", "zeros_like", "ones_like",
    "tril", "triu", "movedim", "unbind", "repeat_interleave", "tile", "randn", "rand", "new_zeros", "new_ones",
    "full_like", "broadcast_to", "diagonal", "meshgrid", "broadcast_tensors", "lstm", "gru", "rnn_tanh", "rnn_relu",
    "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "tensor_split", "nll_loss", "glu",
}  # fmt: skip
OPERAND_NAMES = {
    "add": "offset", "sub": "offset", "rsub": "minuend", "mul": "scale", "div": "divisor", "pow": "exponent",
    "lt": "threshold", "le": "threshold", "gt": "threshold", "ge": "threshold", "eq": "compared", "ne": "compared",
    "remainder": "modulus", "floor_divide": "divisor",
}  # fmt: skip
RENAMED = {"min": "min_value", "max": "max_value", "lambd": "threshold", "dim": "dim", "p": "p"}
SHAPES = {"size", "shape", "normalized_shape", "output_size", "sizes", "split_size", "dtype", "equation", "path"}
ALWAYS = {"eps", "negative_slope"}
REDUCTIONS = {0: "none", 1: "mean", 2: "sum"}
FACTORIES = {
    "zeros", "ones", "full", "empty", "arange", "eye", "linspace", "randn", "rand", "randint", "randperm",
    "tril_indices", "triu_indices", "scalar_tensor",
}  # fmt: skip
PER_AXIS = {"stride", "padding", "dilation", "kernel_size", "output_padding"}
# Arguments other than tensors that are clear without their names.
POSITIONAL = {
    "equation", "size", "end", "normalized_shape", "num_groups", "split_size", "split_sizes", "chunks", "sections",
    "repeats", "num_classes",
}  # fmt: skip
RECURRENT_ORDER = (
    "input", "hx", "params", "has_biases", "num_layers", "dropout", "train", "bidirectional", "batch_first",
)  # fmt: skip
