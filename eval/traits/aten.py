"""What an ATen operator is: one record an operator, in one table, for every folder.

Comes in: an operator's name, `add` or the overload `aten.add.Tensor` that a graph has. Goes out: its `Operator`.

A trait says one thing and who asks for it. Two that seem the same are two because their users must not move together:
`free` is the judge's word on calls, `view` the offline writer's, and `no_bytes` counts for features that archives hold.
An operator without a row is plain arithmetic with no other trait; one in a row without traits is so too, and is known
to a table elsewhere: of loops (`offline/lowering`), of Python's spelling (`ingest/graphs/spelling.py`) or of words for
retrieval (`ingest/description/vocabulary.py`). Plain data: knows nothing of torch, which a test holds it against.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from rag_kernels.eval.records import Scalar

Cost = Literal["arithmetic", "layout", "factory", "product", "recurrent"]
Along = Literal["first", "rows", "columns"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """The traits of one operator; each default is what holds for most."""

    name: str = ""

    # What a call does with memory and arithmetic.
    cost: Cost = "arithmetic"  # how features count it: one operation an element, nothing, or multiply-adds
    free: bool = False  # moves nothing or only makes room: no work when the judge compares numbers of calls
    view: bool = False  # one tensor that lies in its first argument: the offline writer passes it on for nothing
    pieces: bool = False  # several tensors that lie in its first argument
    no_bytes: bool = False  # its results take no memory of their own when a graph's working set is counted
    light: bool = False  # cheap though more than one expression: no archived kernel is called for it alone
    exact: bool = False  # rounds nothing: its results are values of its operands
    reads_in_part: bool = False  # may be right without reading all of its input: bytes are no bound for its time

    # What its arguments mean.
    commutative: str = ""  # the overload whose two operands may change places
    dims: tuple[int, ...] = ()  # positions of dimensions, which may count from the end
    places: Literal["", "along", "whole"] = ""  # it takes (tensor, dimension, places), or (tensor, places)
    defaults: tuple[tuple[int, Scalar], ...] = ()  # of positions that recorded calls may leave out
    added: int | None = None  # position of the operand of a product that is added to it
    one_hot: tuple[tuple[int, Along], ...] = ()  # operands of a product to probe, and the sides that outputs are on
    weights_one_hot: tuple[tuple[int, Along], ...] = ()  # the same of a second product within the operator
    transposes: Literal["", "matrix", "adjoint", "dims"] = ""  # the last two dimensions, or those that it is given
    random_if: tuple[str, ...] = ()  # arguments all of which must be set for it to draw random numbers
    tells_equals_apart: bool = False  # its result says which one of equal elements it took
    takes_first: bool = False  # of equal elements, as its documentation says
    last_write_stays: bool = False  # of what it writes to one place one value stays, and which is not defined
    parts_inputs: bool = False  # its numbers are thresholds or bounds: it computes differently on their two sides
    evenly: bool = False  # between two numbers, into equal parts, next to whose inner bounds rounding decides
    elementwise: bool = False  # each element of its result comes of the elements at the same place
    jumps: bool = False  # its result moves by a step where its operand passes a number
    turns: bool = False  # it goes once round where an operand passes zero, and the other one is on one side of it
    fades: bool = False  # has a side on which its result goes to nothing, or to its argument, and is exact there
    near: bool = False  # each element of its result is a sum over places near to its own
    parted: bool = False  # each is a sum over a part of the places: those before it, or of its segment
    largest: bool = False  # looks for the largest, or smallest, of many
    class_numbers: bool = False  # a loss whose second argument holds class numbers, one of which it leaves out

    # How it is recorded.
    alias_of: str = ""  # the operator of which this is another name
    keeps_name: bool = False  # an alias that recorded graphs keep, since keys of archived graphs have it
    leaves: str = ""  # in place: the operator for what it leaves behind, where that is not its name without `_`
    same_value: bool = False  # its result is its first argument, as far as values go
    reshape: bool = False  # recorded as `reshape`
    cast: bool = False  # recorded as `to` a dtype
    idle_if_same: bool = False  # does nothing where its result has the form of its argument
    dropout: bool = False  # does nothing at a rate of zero or out of training
    effect_only: bool = False  # is no part of a graph of values

    # How it is written in Python.
    in_functional: bool = False  # torch.nn.functional has it by this name, with the schema's names of parameters
    names_device: bool = False  # makes a tensor from nothing, so that the call must say where
    literal_numbers: bool = False  # its numbers are sizes and places: they stay in the call, no keyword holds them
    sized: bool = False  # of a problem's text: its numbers are the sizes that a smaller problem shrinks


_LAYOUT = Operator(cost="layout", literal_numbers=True)
_NO_BYTES = replace(_LAYOUT, no_bytes=True)
_VIEW = replace(_NO_BYTES, free=True, view=True)
_FACTORY = Operator(cost="factory", literal_numbers=True)
_DEVICE_FACTORY = replace(_FACTORY, names_device=True)
_FUNCTION = Operator(in_functional=True)
_REDUCTION = Operator(dims=(1,))
_INDEX_OF_LARGEST = replace(_REDUCTION, tells_equals_apart=True, takes_first=True, largest=True)
_PRODUCT = Operator(cost="product")
_MATRIX_PRODUCT = replace(_PRODUCT, one_hot=((1, "columns"), (0, "rows")))
_ATTENTION = replace(
    _PRODUCT, random_if=("dropout_p",), one_hot=((1, "rows"), (0, "rows")), weights_one_hot=((2, "columns"),)
)
_ADDED_TO_PRODUCT = replace(_PRODUCT, added=0)
_NORM_DEFAULTS: tuple[tuple[int, Scalar], ...] = ((2, None), (3, None), (4, 1e-05))

EXACT_OF_WHOLE = frozenset(
    "add sub rsub mul square neg abs relu sum cumsum matmul mm bmm mv linear addmm baddbmm maximum minimum amax amin "
    "clamp clamp_min clamp_max where floor ceil round trunc sign eq ne lt le gt ge".split()
)
"""What is exact of a few small whole numbers, in whatever order it is computed, by base name."""

OF_DIFFERENCES = frozenset("sub rsub mse_loss l1_loss smooth_l1_loss huber_loss dist".split())
"""What is of two operands by how far they are apart, which a fitted model makes small, by base name."""

ORDERING = frozenset("argsort kthvalue median mode msort nanmedian nanquantile quantile sort topk unique".split())
"""What puts elements in order, or takes some by their order, by base name."""

NO_PLACES = frozenset(
    "abs absolute add alias all amax amin any argmax argmin argsort bitwise_and bitwise_not bitwise_or bitwise_xor "
    "broadcast_to cat clamp clamp_max clamp_min clone contiguous cummax cummin cumprod cumsum detach eq expand flatten "
    "flip ge getitem gt isin kthvalue le logical_and logical_not logical_or logical_xor lt max maximum mean median min "
    "minimum mul ne neg permute prod remainder reshape rsub select sign slice sort split squeeze stack sub sum t to "
    "topk transpose unbind unsqueeze view where __and__ __or__ __xor__ _to_copy _unsafe_view".split()
)
"""What takes no whole numbers for places, by base name: a bad place would end all work on a GPU."""

TAKES_TURNED = frozenset("linear matmul mm bmm addmm baddbmm".split())
"""Products whose factors may lie in memory in either order of their dimensions, by base name."""

_ELEMENTWISE: tuple[tuple[str, Operator], ...] = (
    # Arithmetic, element by element.
    ("acos asin atan cos cosh sin sinh tan tanh erf log log10 log2", Operator()),
    ("exp expm1 log1p", Operator(fades=True)),
    ("reciprocal rsqrt sqrt square sigmoid div lerp addcdiv addcmul", Operator()),
    ("floor_divide remainder", Operator(jumps=True)),
    ("eq ne lt le gt ge", Operator(parts_inputs=True, jumps=True)),
    ("isnan logical_and logical_not logical_or bitwise_and bitwise_not bitwise_or", Operator()),
    ("bitwise_xor log_sigmoid log_sigmoid_forward bitwise_left_shift bitwise_right_shift", Operator()),
    ("atan2", Operator(turns=True)),
    ("isinf isfinite", Operator()),
    ("logical_xor acosh asinh atanh erfc erfinv deg2rad rad2deg sinc special_entr special_ndtr logit", Operator()),
    ("i0 special_i0e special_i1 special_i1e special_log_ndtr", Operator()),
    ("special_xlogy special_xlog1py", Operator()),
    ("exp2", Operator(fades=True)),
    ("fmod heaviside", Operator(jumps=True)),
    ("lgamma hypot ldexp logaddexp logaddexp2 xlogy float_power isclose signbit", Operator()),
    ("copysign fmax fmin nan_to_num", Operator(exact=True)),
    ("add", Operator(light=True, commutative="Tensor")),
    ("sub rsub pow", Operator(light=True)),
    ("mul", Operator(commutative="Tensor")),
    ("maximum minimum", Operator(exact=True, commutative="default")),
    ("abs neg", Operator(exact=True)),
    ("sign sgn floor ceil round trunc", Operator(exact=True, jumps=True)),
    ("clamp_max", Operator(parts_inputs=True)),
    ("clamp_min", Operator(exact=True, parts_inputs=True)),
    ("clamp", Operator(exact=True, light=True, parts_inputs=True)),
    ("masked_fill", Operator(cost="layout", exact=True)),
    ("where", Operator(cost="layout", exact=True, parts_inputs=True)),
    # Activations.
    ("threshold hardshrink", replace(_FUNCTION, parts_inputs=True, jumps=True)),
    ("silu relu6 celu prelu softshrink hardsigmoid hardswish", _FUNCTION),
    ("relu", replace(_FUNCTION, exact=True)),
    ("elu gelu mish selu", replace(_FUNCTION, light=True)),
    ("softplus", replace(_FUNCTION, light=True, fades=True)),
    ("hardtanh", replace(_FUNCTION, light=True, exact=True, parts_inputs=True)),
    ("leaky_relu", replace(_FUNCTION, light=True, defaults=((1, 0.01),))),
    # Gradients of what has a bend.
    ("threshold_backward hardtanh_backward hardshrink_backward", Operator(parts_inputs=True, jumps=True)),
    ("leaky_relu_backward", Operator(jumps=True)),
    ("softshrink_backward hardsigmoid_backward hardswish_backward elu_backward", Operator(jumps=True)),
    ("_prelu_kernel_backward", Operator(jumps=True)),
)
_ROWS: tuple[tuple[str, Operator], ...] = (
    *((names, replace(row, elementwise=True)) for names, row in _ELEMENTWISE),
    ("glu", replace(_FUNCTION, literal_numbers=True)),
    ("rrelu", Operator(random_if=("training",))),
    ("dropout feature_dropout alpha_dropout feature_alpha_dropout", Operator(dropout=True)),
    # Reductions, scans, orders.
    ("any all prod norm linalg_vector_norm frobenius_norm count_nonzero dist", Operator()),
    ("aminmax", Operator(exact=True)),
    ("sum mean var std var_mean std_mean cumprod", _REDUCTION),
    ("cumsum", replace(_REDUCTION, parted=True)),
    ("logsumexp", replace(_REDUCTION, largest=True)),
    ("amax amin", replace(_REDUCTION, exact=True, largest=True)),
    ("max min", replace(_REDUCTION, exact=True, tells_equals_apart=True, takes_first=True, largest=True)),
    ("argmax argmin", replace(_INDEX_OF_LARGEST, reads_in_part=True)),
    ("softmax log_softmax", replace(_REDUCTION, in_functional=True, largest=True)),
    ("_softmax _log_softmax _safe_softmax", Operator(largest=True)),
    ("logcumsumexp", Operator(largest=True, parted=True)),
    ("quantile", Operator()),
    ("cummax cummin argsort median mode msort kthvalue", Operator(tells_equals_apart=True)),
    ("sort", Operator(exact=True, tells_equals_apart=True)),
    ("topk", Operator(exact=True, reads_in_part=True, tells_equals_apart=True, largest=True)),
    # Normalisations, losses, pooling.
    ("batch_norm instance_norm", Operator()),
    ("cross_entropy_loss nll_loss2d nll_loss_forward", Operator(class_numbers=True)),
    ("layer_norm group_norm", replace(_FUNCTION, defaults=_NORM_DEFAULTS)),
    ("rms_norm cosine_similarity pairwise_distance", _FUNCTION),
    ("mse_loss l1_loss smooth_l1_loss huber_loss kl_div binary_cross_entropy_with_logits", _FUNCTION),
    ("binary_cross_entropy triplet_margin_loss hinge_embedding_loss margin_ranking_loss", _FUNCTION),
    ("poisson_nll_loss soft_margin_loss", _FUNCTION),
    ("avg_pool1d avg_pool2d avg_pool3d", replace(_FUNCTION, near=True)),
    ("nll_loss_nd", Operator(class_numbers=True)),
    ("cosine_embedding_loss adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d", Operator()),
    ("nll_loss", replace(_FUNCTION, literal_numbers=True, class_numbers=True)),
    ("adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d", replace(_FUNCTION, literal_numbers=True)),
    ("max_pool1d max_pool2d max_pool3d", replace(_FUNCTION, reads_in_part=True, largest=True)),
    ("max_pool2d_with_indices max_pool3d_with_indices", Operator(exact=True, largest=True)),
    # Products: matrices, convolutions, attention, recurrent layers.
    ("matmul mm bmm", _MATRIX_PRODUCT),
    ("mv dot vdot inner einsum tensordot chain_matmul linalg_multi_dot", _PRODUCT),
    ("outer", Operator()),
    ("linear", replace(_PRODUCT, in_functional=True, added=2, one_hot=((1, "rows"), (0, "rows")))),
    ("addmm baddbmm", replace(_ADDED_TO_PRODUCT, one_hot=((2, "columns"), (1, "rows")))),
    ("addbmm addmv", _ADDED_TO_PRODUCT),
    ("_scaled_mm", replace(_PRODUCT, added=4)),
    ("convolution", replace(_PRODUCT, added=2, near=True)),
    ("conv1d conv2d conv3d", replace(_PRODUCT, in_functional=True, one_hot=((1, "first"),), near=True)),
    ("conv_transpose1d conv_transpose2d conv_transpose3d", replace(_PRODUCT, in_functional=True, near=True)),
    ("bilinear", replace(_PRODUCT, in_functional=True)),
    ("scaled_dot_product_attention", replace(_ATTENTION, in_functional=True)),
    ("_scaled_dot_product_flash_attention_for_cpu", _ATTENTION),
    ("lstm gru rnn_tanh rnn_relu", Operator(cost="recurrent", literal_numbers=True, random_if=("dropout", "train"))),
    # Views.
    ("squeeze unsqueeze unflatten movedim", _VIEW),
    ("select slice narrow", replace(_VIEW, reads_in_part=True)),
    ("expand expand_as flatten", replace(_VIEW, idle_if_same=True)),
    ("reshape", replace(_VIEW, idle_if_same=True, reshape=True)),
    ("permute", replace(_VIEW, transposes="dims")),
    ("transpose swapdims", replace(_VIEW, transposes="dims", dims=(1, 2))),
    ("swapaxes", replace(_VIEW, transposes="dims")),
    ("reshape_as view_as ravel", _VIEW),
    ("numpy_T", replace(_NO_BYTES, free=True, transposes="matrix")),
    ("broadcast_to", replace(_NO_BYTES, idle_if_same=True)),
    ("broadcast_tensors diagonal", _NO_BYTES),
    ("chunk split unbind", replace(_NO_BYTES, free=True, pieces=True, reads_in_part=True)),
    ("split_with_sizes", replace(_NO_BYTES, pieces=True)),
    ("getitem", Operator(cost="layout", no_bytes=True, free=True, reads_in_part=True)),
    # Views that recording replaces; where one stays (`mT` of a batch), archived features count it as arithmetic.
    ("view", Operator(free=True, view=True, reshape=True, idle_if_same=True)),
    ("_unsafe_view", Operator(view=True, reshape=True, idle_if_same=True)),
    ("view_copy _reshape_alias", Operator(reshape=True, idle_if_same=True)),
    ("t", Operator(free=True, view=True, transposes="matrix")),
    ("mT", Operator(view=True, transposes="matrix")),
    ("mH", Operator(transposes="adjoint")),
    ("view_as_complex view_as_real", Operator(view=True, no_bytes=True)),
    ("alias contiguous", Operator(free=True, view=True, same_value=True)),
    ("detach", Operator(free=True, view=True, same_value=True, exact=True)),
    # Copies and casts.
    ("clone", Operator(free=True, same_value=True, exact=True)),
    ("lift lift_fresh_copy resolve_conj", Operator(same_value=True)),
    ("lift_fresh", Operator(same_value=True, exact=True)),
    ("to", replace(_LAYOUT, free=True, light=True, cast=True, idle_if_same=True)),
    ("_to_copy", Operator(free=True, exact=True, cast=True, idle_if_same=True)),
    ("type_as", Operator(cast=True, idle_if_same=True)),
    # Other layouts, gathers, scatters.
    ("cat stack flip roll repeat", replace(_LAYOUT, exact=True)),
    ("fft_fftshift fft_ifftshift", replace(_LAYOUT, exact=True)),
    ("tile repeat_interleave meshgrid", _LAYOUT),
    ("unfold", replace(_LAYOUT, near=True)),
    ("tril triu", replace(_LAYOUT, reads_in_part=True, parted=True)),
    ("pad", replace(_LAYOUT, in_functional=True)),
    ("one_hot pixel_shuffle pixel_unshuffle", Operator(cost="layout", in_functional=True)),
    ("constant_pad_nd", Operator(exact=True)),
    ("index", replace(_LAYOUT, exact=True, reads_in_part=True)),
    ("index_select gather", Operator(cost="layout", exact=True, reads_in_part=True, places="along")),
    ("embedding", Operator(cost="layout", exact=True, reads_in_part=True, places="whole")),
    ("take", Operator(reads_in_part=True, places="whole")),
    ("take_along_dim masked_select", Operator(reads_in_part=True)),
    ("scatter", Operator(reads_in_part=True, last_write_stays=True, places="along")),
    ("index_copy", Operator(last_write_stays=True, places="along")),
    ("index_put _unsafe_index_put put masked_scatter", Operator(last_write_stays=True)),
    ("tensor_split", Operator(literal_numbers=True)),
    ("scatter_add scatter_reduce index_add index_reduce", Operator(places="along", parted=True)),
    ("index_fill", Operator(places="along")),
    ("embedding_dense_backward diag diff _weight_norm trace renorm cdist cross linalg_cross", Operator()),
    ("max_pool2d_with_indices_backward max_pool3d_with_indices_backward", Operator(jumps=True)),
    ("avg_pool2d_backward avg_pool3d_backward", Operator()),
    ("_adaptive_avg_pool2d_backward _adaptive_avg_pool3d_backward", Operator()),
    ("max_unpool2d max_unpool3d", Operator()),
    ("histc", Operator(parts_inputs=True, jumps=True, evenly=True)),
    ("bincount im2col col2im affine_grid_generator", Operator()),
    ("segment_reduce", Operator(parted=True)),
    ("embedding_bag _embedding_bag", Operator(reads_in_part=True, parted=True)),
    ("searchsorted bucketize", Operator(reads_in_part=True, jumps=True)),
    ("grid_sampler grid_sampler_2d grid_sampler_3d", Operator(reads_in_part=True)),
    ("fill zero copy slice_scatter select_scatter", Operator(cost="layout", exact=True)),
    ("upsample_nearest1d upsample_nearest2d upsample_nearest3d", Operator(exact=True)),
    ("upsample_linear1d upsample_bilinear2d upsample_trilinear3d upsample_bicubic2d", Operator()),
    # Tensors from nothing, or from a tensor's form.
    ("empty full ones zeros", replace(_DEVICE_FACTORY, free=True, sized=True)),
    ("arange rand randn", replace(_DEVICE_FACTORY, sized=True)),
    ("eye linspace", _DEVICE_FACTORY),
    ("randint", Operator(cost="factory", names_device=True, sized=True)),
    ("randperm scalar_tensor tril_indices triu_indices", Operator(cost="factory", names_device=True)),
    ("new_ones new_zeros", _FACTORY),
    ("full_like ones_like zeros_like", replace(_FACTORY, free=True)),
    ("empty_like new_empty", Operator(cost="factory", free=True)),
    ("rand_like", Operator(cost="factory", sized=True)),
    ("randn_like new_full", Operator(cost="factory")),
    ("empty_strided", Operator(free=True)),  # only composed candidates call it
    ("tensor", Operator(cost="layout")),
    # In place.
    ("copy_ relu_ clamp_ masked_fill_", Operator(exact=True)),
    ("fill_", Operator(exact=True, leaves="full_like")),
    ("zero_", Operator(exact=True, leaves="zeros_like")),
    # Checks and sizes.
    ("_assert_async _assert_scalar _assert_tensor_metadata sym_size sym_stride sym_numel", Operator(effect_only=True)),
    # Other names.
    ("absolute", Operator(alias_of="abs")),
    ("negative", Operator(alias_of="neg")),
    ("multiply", Operator(alias_of="mul")),
    ("divide true_divide", Operator(alias_of="div")),
    ("subtract", Operator(alias_of="sub")),
    ("clip", Operator(alias_of="clamp")),
    ("greater", Operator(alias_of="gt")),
    ("greater_equal", Operator(alias_of="ge")),
    ("less", Operator(alias_of="lt")),
    ("less_equal", Operator(alias_of="le")),
    ("not_equal", Operator(alias_of="ne")),
    ("concat concatenate", Operator(alias_of="cat")),
    ("unsafe_chunk", Operator(alias_of="chunk")),
    ("unsafe_split", Operator(alias_of="split")),
    ("unsafe_split_with_sizes", Operator(alias_of="split_with_sizes")),
    ("special_expit", Operator(alias_of="sigmoid")),
    ("special_log1p", Operator(alias_of="log1p")),
    ("special_expm1", Operator(alias_of="expm1")),
    ("arctan", Operator(alias_of="atan", keeps_name=True)),
    ("special_erf", Operator(alias_of="erf", keeps_name=True)),
    ("special_exp2", Operator(alias_of="exp2")),
    ("special_erfc", Operator(alias_of="erfc")),
    ("special_erfinv", Operator(alias_of="erfinv")),
    ("special_gammaln", Operator(alias_of="lgamma")),
    ("special_i0", Operator(alias_of="i0")),
    ("special_logit", Operator(alias_of="logit")),
    ("special_sinc", Operator(alias_of="sinc")),
    ("arccosh", Operator(alias_of="acosh")),
    ("arcsinh", Operator(alias_of="asinh")),
    ("arctanh", Operator(alias_of="atanh")),
    ("__and__", Operator(alias_of="bitwise_and", keeps_name=True)),
    ("__or__", Operator(alias_of="bitwise_or", keeps_name=True)),
    ("__xor__", Operator(alias_of="bitwise_xor")),
    ("moveaxis", Operator(alias_of="movedim", keeps_name=True)),
)

OPERATORS: dict[str, Operator] = {name: replace(row, name=name) for names, row in _ROWS for name in names.split()}


def base_name(op: str) -> str:
    """Return the operator of an overload: `add` of `aten.add.Tensor`, `tensor` of `torch.tensor`, else the name."""
    return op.split(".")[1] if "." in op else op


def operator(op: str) -> Operator:
    """Return what is known of an operator or overload; without a row, it is plain arithmetic."""
    name = base_name(op)
    return OPERATORS.get(name) or Operator(name=name)


def names(having: Callable[[Operator], bool]) -> frozenset[str]:
    """Return the names of all operators with a trait: `names(lambda op: op.exact)`."""
    return frozenset(name for name, op in OPERATORS.items() if having(op))
