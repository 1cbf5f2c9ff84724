"""The vocabulary of descriptions: one name for each operator, and the family it belongs to.

Comes in: any spelling of an operator (`aten.native_layer_norm`, `nn.LayerNorm`, "layer norm", "LN"). Goes out:
the one word that descriptions and queries share (`layer_norm`) and its families (`norm`). Plain data and
look-ups; knows nothing of graphs, models or archives.

These words are no columns of `eval.traits.aten`: they name modules, idioms and free text as well (`swiglu`,
`hinge_loss`), and one word stands for many operators. Those that are operators have a row there. Trained models and
archives hold these words, so none is renamed.
"""

import re
from functools import cache

# Families in the order of weight: the operator of the earliest family is the one a kernel is built around.
FAMILIES: dict[str, str] = {
    "attention": "attention scaled_dot_product_attention multi_head_attention",
    "recurrent": "lstm gru rnn",
    "conv_transpose": "conv_transpose1d conv_transpose2d conv_transpose3d",
    "conv": "conv1d conv2d conv3d unfold fold",
    "matmul": "matmul linear bmm einsum outer",
    "loss": "cross_entropy mse_loss l1_loss nll_loss kl_div smooth_l1_loss hinge_loss triplet_margin_loss"
    " binary_cross_entropy cosine_embedding_loss",
    "scan": "cumsum cumprod cummax cummin logcumsumexp",
    "norm": "layer_norm rms_norm batch_norm instance_norm group_norm l2_norm l1_norm frobenius_norm"
    " local_response_norm",
    "pool": "max_pool1d max_pool2d max_pool3d avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d"
    " adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d",
    "sort": "sort topk argsort median",
    "softmax": "softmax log_softmax",
    "reduction": "sum mean max min amax amin prod argmax argmin logsumexp var std vector_norm any all count_nonzero",
    "embedding": "embedding gather index_select scatter index scatter_add one_hot",
    "activation": "relu gelu silu mish sigmoid tanh softplus softsign elu selu celu leaky_relu prelu hardtanh"
    " hardswish hardsigmoid relu6 logsigmoid hardshrink softshrink tanhshrink threshold glu swiglu",
    "resample": "interpolate pixel_shuffle pixel_unshuffle grid_sample",
    "random": "dropout rand",
    "pointwise": "add sub mul div pow exp log sqrt rsqrt abs neg clamp maximum minimum where masked_fill erf sin cos"
    " square reciprocal sign floor round expm1 log1p lerp addcmul addcdiv compare logical remainder cosine_similarity",
    "layout": "cat stack pad flip roll tril triu diag transpose permute split chunk repeat",
}

# Operators that only rename or re-view a tensor: a description looks straight through them.
TRANSPARENT = frozenset(
    """view reshape contiguous getitem clone detach unsqueeze squeeze expand expandas to type float half double
    bfloat16 long int bool flatten unflatten alias identity viewas reshapeas tensor lifttensor liftfreshcopy
    lifttensorcopy liftfresh copy select slice narrow numel size dim shape zeroslike oneslike zeros ones full fulllike
    empty emptylike arange scalartensor assertmetadata tolist item unbind dtype device tocopy tupleitem
    checkpoint nulltocopy newzeros newones data cuda cpu typeas asstrided""".split()
)

# Other spellings, squashed to lower case without underscores, for each operator. A family's own words are known.
SPELLINGS: dict[str, str] = {
    "scaled_dot_product_attention": "sdpa scaleddotproductflashattention scaleddotproductflashattentionforcpu"
    " scaleddotproductefficientattention scaleddotproductattentionmath",
    "multi_head_attention": "multiheadattention multiheadattentionforward nativemultiheadattention mha",
    "matmul": "mm mv dot vdot gemm gemv chainmatmul tensordot addmv",
    "linear": "addmm fullyconnected dense fc baddbmm bilinear",
    "outer": "ger",
    "bmm": "batchedmatmul",
    "lstm": "lstmcell",
    "gru": "grucell",
    "rnn": "rnntanh rnnrelu rnncell rnntanhcell",
    "layer_norm": "nativelayernorm ln layernormalization",
    "rms_norm": "rms fusedrmsnorm rmsnormalization",
    "batch_norm": "nativebatchnorm batchnorm1d batchnorm2d batchnorm3d bn nativebatchnormlegit"
    " nativebatchnormlegitfunctional batchnormwithupdate cudnnbatchnorm batchnormalization",
    "instance_norm": "instancenorm1d instancenorm2d instancenorm3d",
    "group_norm": "nativegroupnorm gn",
    "vector_norm": "norm linalgvectornorm linalgnorm",
    "l2_norm": "normalize",
    "local_response_norm": "lrn",
    "max_pool1d": "maxpool1dwithindices",
    "max_pool2d": "maxpool2dwithindices maxpool",
    "max_pool3d": "maxpool3dwithindices",
    "avg_pool2d": "avgpool averagepool",
    "softmax": "safesoftmax softmaxint",
    "cross_entropy": "crossentropyloss",
    "nll_loss": "nllloss2d nlllossnd nlllossforward",
    "kl_div": "kldivloss",
    "smooth_l1_loss": "huberloss huber",
    "triplet_margin_loss": "tripletloss tripletmarginwithdistanceloss",
    "hinge_loss": "hingeembeddingloss multimarginloss marginrankingloss hinge",
    "binary_cross_entropy": "bceloss bcewithlogitsloss binarycrossentropywithlogits bce",
    "mse_loss": "mse",
    "l1_loss": "mae",
    "silu": "swish",
    "leaky_relu": "lrelu",
    "elu": "elubackward",
    "amax": "globalmax",
    "var": "varmean varcorrection",
    "std": "stdmean",
    "add": "iadd radd sum2 residual",
    "sub": "subtract rsub isub",
    "mul": "multiply imul scale",
    "div": "divide truedivide floordivide idiv",
    "pow": "powtensorscalar power",
    "neg": "negative",
    "clamp": "clip clampmin clampmax",
    "maximum": "fmax",
    "minimum": "fmin",
    "remainder": "fmod",
    "masked_fill": "maskedfill",
    "compare": "gt lt ge le eq ne greater less equal",
    "logical": "logicalnot logicaland logicalor bitwiseand bitwiseor bitwisenot isnan isinf",
    "abs": "absolute",
    "transpose": "t mt movedim swapaxes adjoint numpyt",
    "cat": "concat concatenate",
    "pad": "constantpadnd reflectionpad2d replicationpad2d zeropad2d",
    "repeat": "tile repeatinterleave",
    "split": "splitwithsizes tensorsplit",
    "diag": "diagembed diagonal",
    "interpolate": "upsample upsamplenearest2d upsamplebilinear2d upsamplenearest3d upsamplebicubic2d",
    "dropout": "dropout1d dropout2d dropout3d alphadropout featuredropout nativedropout",
    "rand": "randlike randn randnlike bernoulli",
    "index": "indexput indexputimpl take",
    "scatter": "scatterreduce scattersrc",
    "embedding": "embeddingbag",
}


def squash(name: str) -> str:
    """Return a spelling in lower case, without underscores, spaces and dashes."""
    return re.sub(r"[\s_\-]+", "", name.lower())


@cache
def _tables() -> tuple[dict[str, str], dict[str, str]]:
    """Return squashed spelling -> operator, and operator -> family."""
    family_of = {op: family for family, ops in FAMILIES.items() for op in ops.split()}
    spellings = {squash(op): op for op in family_of}
    for op, others in SPELLINGS.items():
        spellings |= {other: op for other in others.split()}
    return spellings, family_of


def operator(name: str) -> str | None:
    """Return the one word for an operator, or None for one that only re-views its input.

    An unknown operator keeps its own name in lower case, so that two problems that use it still share a word.
    """
    key = squash(name)
    if key in TRANSPARENT:
        return None
    return _tables()[0].get(key) or name.strip("_").lower()


def is_known(name: str) -> bool:
    """Return whether this spelling names an operator of the vocabulary."""
    return squash(name) in _tables()[0]


def family(op: str) -> str:
    """Return the family of an operator word, and of a family its own name; what has none is `other`."""
    return op if op in FAMILIES else _tables()[1].get(op, "other")


def main_operator(ops: list[str]) -> str | None:
    """Return the operator that a kernel for these is built around: first of the heaviest family present."""
    order = {name: place for place, name in enumerate(FAMILIES)}
    return min(ops, key=lambda op: order.get(family(op), len(order)), default=None)


# Free text to the same words; longer phrases first. `\1` is the number of spatial dimensions.
_PHRASES: tuple[tuple[str, str], ...] = (
    (r"transposed? conv(?:olution)?s? ?([123])d", r"conv_transpose\1d"),
    (r"transposed? ([123])d conv(?:olution)?s?", r"conv_transpose\1d"),
    (r"conv(?:olution)?s? ?([123])d transposed?", r"conv_transpose\1d"),
    (r"([123])d transposed? conv(?:olution)?s?", r"conv_transpose\1d"),
    (r"conv(?:olution)? ?transposed? ?([123])d", r"conv_transpose\1d"),
    (r"transposed? conv(?:olution)?s?|deconv(?:olution)?s?|conv ?transpose", "conv_transpose"),
    (
        r"(?:depth ?wise|grouped) conv(?:olution)?s? ?([123])d|(?:depth ?wise|grouped) ([123])d conv(?:olution)?s?",
        r"conv\1\2d grouped",
    ),
    (r"depth ?wise(?: separable)? conv(?:olution)?s?", "conv2d grouped"),
    (r"([123])d conv(?:olution)?s?|conv(?:olution)?s? ?([123])d", r"conv\1\2d"),
    (r"point ?wise conv(?:olution)?s?|1x1 conv(?:olution)?s?", "conv2d"),
    (r"conv(?:olution)?s?|convolutional", "conv"),
    (r"scaled dot product(?: attention)?|flash attention", "scaled_dot_product_attention attention"),
    (r"multi ?head attention", "multi_head_attention attention"),
    (r"self attention|causal attention", "attention"),
    (r"batch(?:ed)? mat(?:rix)? ?mul(?:tiplication|tiply)?", "bmm matmul"),
    (r"mat(?:rix)? ?mul(?:tiplication|tiply)?s?|matrix product|matrix vector|gemm|gemv", "matmul linear"),
    (r"fully connected|dense layer|linear layer", "linear matmul"),
    (r"global (?:average|avg) ?pool(?:ing)?", "adaptive_avg_pool2d pool"),
    (r"adaptive (max|avg|average) ?pool(?:ing)? ?([123])d", r"adaptive_\1_pool\2d"),
    (r"(max|avg|average) ?pool(?:ing)? ?([123])d", r"\1_pool\2d"),
    (r"([123])d (max|avg|average) ?pool(?:ing)?", r"\2_pool\1d"),
    (r"(max|avg|average) ?pool(?:ing)?", r"\1_pool2d pool"),
    (r"(max|min) reduction", r"\1 reduction"),
    (r"cumulative max(?:imum)?|running max(?:imum)?", "cummax scan"),
    (r"index of the (max|min)(?:imum)?", r"arg\1"),
    (r"square ?root", "sqrt"),
    (r"absolute value", "abs"),
    (r"negated?|negation", "neg"),
    (r"variance", "var"),
    (r"standard deviation", "std"),
    (r"(?:upper) triang(?:ular|le)", "triu"),
    (r"(?:lower) triang(?:ular|le)", "tril"),
    (r"product reduction", "prod"),
    (r"top ?k", "topk"),
    (r"mask(?:ed|ing)?(?: fill)?", "masked_fill"),
    (r"pixel (un)?shuffle", r"pixel_\1shuffle"),
    (r"binary cross ?entropy(?: loss)?", "binary_cross_entropy loss"),
    (r"triplet(?: margin)? loss", "triplet_margin_loss loss"),
    (r"smooth l1(?: loss)?|huber(?: loss)?", "smooth_l1_loss loss"),
    (r"l1 loss|mean absolute error", "l1_loss loss"),
    (r"upsampl(?:e|ing)|interpolation", "interpolate"),
    (r"pool(?:ing)?", "pool"),
    (r"(layer|batch|instance|group|rms) ?norm(?:alization|alisation)?s?([123]d)?", r"\1_norm"),
    (r"root mean square(?: norm(?:alization|alisation)?)?", "rms_norm"),
    (r"frobenius ?norm(?:alization|alisation)?", "frobenius_norm vector_norm"),
    (r"(l1|l2) ?norm(?:alization|alisation)?", r"\1_norm"),
    (r"cosine ?similarity(?: ?loss)?", "cosine_similarity loss"),
    (r"normali[sz]ation|normali[sz]e|norm", "norm"),
    (r"log ?soft ?max", "log_softmax"),
    (r"soft ?max", "softmax"),
    (r"log ?sum ?exp", "logsumexp"),
    (r"cross ?entropy", "cross_entropy loss"),
    (r"mean squared error", "mse_loss loss"),
    (r"(?:kl|kullback leibler) ?div(?:ergence)?", "kl_div loss"),
    (r"(mse|hinge|kl ?div) ?loss", r"\1 loss"),
    (r"prefix sum|cumulative sum|running sum|cum ?sum", "cumsum scan"),
    (r"cumulative product|prefix product|cum ?prod", "cumprod scan"),
    (r"arg ?(max|min)", r"arg\1"),
    (r"leaky ?relu", "leaky_relu"),
    (r"hard ?(swish|tanh|sigmoid)", r"hard\1"),
    (r"soft ?(plus|sign)", r"soft\1"),
    (r"swi ?glu", "swiglu silu mul"),
    (r"residual(?: add(?:ition)?)?|skip connection|bias add|bias", "add"),
    (r"scaling|scaled|scale|times|multiplication|multiplied", "mul"),
    (r"addition|plus|adding", "add"),
    (r"subtraction|minus|subtract", "sub"),
    (r"division|divided|dividing", "div"),
    (r"clamping|clipping|clamped|clipped", "clamp"),
    (r"summation|row ?sum|column ?sum", "sum reduction"),
    (r"average|averaging", "mean"),
    (r"reductions?|reduce", "reduction"),
    (r"activations?|nonlinearit(?:y|ies)", "activation"),
    (r"element ?wise|point ?wise", "pointwise"),
    (r"squared?", "pow"),
    (r"concatenation", "cat"),
    (r"half precision|fp ?16|half", "float16"),
    (r"single precision|fp ?32", "float32"),
    (r"double precision|fp ?64", "float64"),
    (r"bf ?16", "bfloat16"),
    (r"e4m3(?:fn)?", "float8_e4m3fn"),
    (r"e5m2", "float8_e5m2"),
    (r"([1-6])d tensors?", r"rank\1"),
)
_FILLER = frozenset(
    "a an and the of with over by for from to in into on its then followed after before fused fuse fusing fusion"
    " kernel kernels layer layers operation op ops function module model compute computes apply applies applied"
    " using use that which is are tensor tensors input inputs output outputs along dimension dim fast faster cuda cpp"
    " implementation network block".split()
)


@cache
def _phrase_patterns() -> tuple[tuple[re.Pattern[str], str], ...]:
    return tuple((re.compile(rf"\b(?:{pattern})\b"), words) for pattern, words in _PHRASES)


def words_of(text: str) -> list[str]:
    """Return free text as the words of descriptions, in the order of the text, without words that have no
    meaning here.
    """
    return list(dict.fromkeys(word for words in phrases_of(text) for word in words))


def phrases_of(text: str) -> list[tuple[str, ...]]:
    """Return free text as phrases, in its order: each is a word of descriptions, with others that may stand for it."""
    rest = re.sub(r"[-/_,+.:;()>]+", " ", text.lower())
    rest = re.sub(r"\s+", " ", rest)
    found: dict[int, list[str]] = {}
    for pattern, words in _phrase_patterns():
        while match := pattern.search(rest):
            expanded = match.expand(words.replace("average", "avg")).replace("average", "avg").split()
            found.setdefault(match.start(), []).extend(expanded)
            rest = rest[: match.start()] + " " * (match.end() - match.start()) + rest[match.end() :]
    for match in re.finditer(r"\S+", rest):
        if match.group() not in _FILLER:
            found.setdefault(match.start(), []).append(operator(match.group()) or match.group())
    return [tuple(word if word in FAMILIES else operator(word) or word for word in found[at]) for at in sorted(found)]
