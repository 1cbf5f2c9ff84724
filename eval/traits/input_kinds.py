"""Names of the kinds of inputs and of precision, for the judge, which does not import torch."""

from __future__ import annotations

# Kinds that go beyond what the problem's own inputs look like (`eval.children.reference.draw_maker` makes them).
CONSTANT_ROWS = "constant rows"
AT_CONSTANTS = "at constants"  # on the thresholds and bounds that stand in the problem, and right beside them
# Where the module takes but a part of the numbers: on the ends of that part and right beside them, or on one of both.
ENDS, ONE_END = "ends of its range", (", the lower", ", the upper")
EDGES = "edges"  # all that counts lies at the very end, and at the beginning
# Of problems with such operators alone: where exponentials go to nothing; rows of which the largest is far below zero;
# factors whose products are subnormal; whole numbers, quotients of which are exact. As far below zero as floats go,
# where nothing is computed before the largest is chosen; rows of the least number, as masks leave them.
LOW, DEEP, FADING, WHOLE = "low", "deep", "fading", "whole numbers"
DEEPEST, MASKED = "deepest", "masked rows"
MASKED_SPIKES = "spikes beside masked places"  # in one row, which a look at either may part
# One element of a row above the others, by as much as their exponentials still count; rows close to one of a few;
# rows of which the elements that a sample takes are others than the rest; what overflows fp16; just below an overflow
# of exponentials; as large as floats go.
CREST, CLUSTERS, PIVOTS, OVERFLOW, BRINK, HUGE = "crest", "clusters", "pivots", "overflow", "brink", "huge"
# Rows of which one element is far above all others, anywhere from an exponential's underflow to its overflow; rows that
# are up to some hundred times as far from zero as they are spread.
ALOFT, LEVELS = "one far above the others", "rows at any level"
CLIMB = "rows that climb once"  # by as much as an exponential takes, but not a sum of them
SORTED_ROWS = "sorted rows"  # up or down: each element is a new largest, or none is; half but for two neighbours
EVERY = "large at every so many places"  # as lanes and threads share a row out, or in one block of it
TWINS = "rows alike but for one"  # element, each row and the next
# Of what is computed element by element: inputs that were searched for, whose results are close to zero though they are
# not, or nearly overflow.
ROOTS, PEAKS = "results close to zero", "results close to an overflow"
NEXT_TO_ZERO = "results next to zero"  # as near to it as numbers come
SEARCHED = (ROOTS, PEAKS, NEXT_TO_ZERO)
# What the problem has as one value throughout or as a run (ones, places in order), but for a few elements.
IRREGULAR = "irregular"
# What the problem has in order: indices that ascend, of which a few do not, and bounds at even distances.
DISORDER = "irregular order"
# Whole numbers in order, or all alike, of which those within lie otherwise: ends and order stay, or the sum.
UNEVEN = "uneven steps"
# What a module keeps in buffers, nearly: a hole in a mask, a few numbers in each other's places.
KEPT = "buffers nearly as they are"
# Of sums over a part of the places: a line of numbers ten million times as large as all others, which are to be as
# exact behind it as before.
BURST, FAR_BURST = "after a burst", "after a far burst"  # a million million times as large once more
BURSTS = (BURST, FAR_BURST)
# Rows of kinds of their own, a spike or all below zero beside ordinary ones: what is tried under other circumstances,
# at other sizes and by other teams of threads, where a kind each would be too many.
MIXED = "rows of several kinds"
# One content, parameters as the module begins with them, and its lines in another order: what is kept by a sum of them.
BEGUN, OTHER_ROWS, OTHER_COLUMNS = "lines in order", "rows in another order", "columns in another order"
# The same, each number but for digits that who looks at half of it, or whether it is near, takes for the same: so a
# step of training moves parameters.
OTHER_DIGITS = tuple(f"other lower {part} of numbers" for part in ("halves", "thirds", "quarters"))
# The same with a few numbers beside which a sum loses all others; and these as the others are less.
FEW_HUGE, BESIDE_HUGE = "a few huge numbers", "others beside a few huge numbers"
ONE_OTHER = "one other number"  # of each tensor
MOVED = (OTHER_ROWS, OTHER_COLUMNS, *OTHER_DIGITS, BESIDE_HUGE, ONE_OTHER)
LINES = (BEGUN, FEW_HUGE, *MOVED)
# Places that a problem draws at random, in order but for a few neighbours, as those of sorted or unique things are.
NEARLY = "nearly in order"
# What is given for several arguments at once, as the problem draws it or with lines of zeros among it.
ONE_TWICE, ONE_TWICE_ZEROS = "one tensor for two arguments", "one tensor for two arguments, with lines of zeros"
TWICE = (ONE_TWICE, ONE_TWICE_ZEROS)
# Parameters as training may leave them: several times as large and of either sign; those of one dimension, as slopes,
# gates and temperatures are, above or below where they begin.
LARGE_PARAMETERS, RAISED, LOWERED = "large parameters", "raised parameters", "lowered parameters"
FAR_PARAMETERS = (LARGE_PARAMETERS, RAISED, LOWERED)
# Of several operands of what is computed element by element: whole numbers from one to four of either sign; one that is
# far larger than the others, of which another is zero, one or a half.
SMALL_WHOLE, FAR_APART = "small whole operands", "operands far apart"
# Powers of two, in some lines one throughout: what is exact behind quotients and means of such is met by steps.
POWERS = "powers of two"
# A few digits anywhere up to 2^62, so that products are exact and every angle is known.
FAR_ANGLES = "angles far from zero"
# Lines that differ in two neighbours, by which sums, checksums and polynomials of a line stay as they are.
SAME_SUMS = "lines of the same sums"
OF_ITS_SIDE = ", of the problem's own sign"  # behind a kind: where the module is not sound on both sides of zero
OF_ITS_RANGE = ", from the problem's own least to its greatest"  # behind a kind: where it is not sound beyond
# Of what is done again and again with one operand: lines that belong to one of two sides, and hardly to the other, so
# that what goes from one to the other takes many steps.
SIDES = "two sides"
HARDLY_JOINED = "two sides, hardly joined"  # with next to nothing from one to the other
LATE = "what comes late"  # of such, too: one direction that a start hardly has grows twice as fast as all others
# Operands that make up for each other: a small one and large ones, taken in turn; one that cancels a large one; zero
# beside others far below it; what is weighed by little and as much larger. Lines of any size that there are numbers of.
FAR_TOGETHER, CANCELLING, BELOW_ZERO = "factors far together", "operands that cancel", "operands below a zero"
OUTWEIGHED, ANY_SIZE, FAINT_SIZE = "values that outweigh", "lines of any size", "lines of any faint size"
BALANCED = (FAR_TOGETHER, CANCELLING, BELOW_ZERO, OUTWEIGHED)
SIZES = (ANY_SIZE, FAINT_SIZE)
# Inputs beside each other: the first or the last one faint and the others zero; all their lines nearly one line.
FIRST_FAINT, LAST_FAINT, NEARLY_ALIKE = (
    "the first faint, others zero",
    "the last faint, others zero",
    "lines nearly alike",
)
BESIDE = (FIRST_FAINT, LAST_FAINT, NEARLY_ALIKE)
# Inputs of one number, which a problem may have made a constant: a temperature, the number of a step. So many times.
SINGLES = {f"single numbers, {times} times": times for times in (0.005, 0.5, 2.0)}
# What has something of numbers that a candidate names: those of a moderate size, and all.
NAMED_NUMBERS, FAR_NAMED_NUMBERS = "numbers of its own", "far numbers of its own"
NAMED = (NAMED_NUMBERS, FAR_NAMED_NUMBERS)
# What a module that has learnt makes of inputs and targets: one agrees with the other, by much; or all targets are
# the greater of two values, or the lesser.
AGREE, GREATER, LESSER = "inputs that agree", "inputs that agree, the greater", "inputs that agree, the lesser"
AGREEING = (AGREE, GREATER, LESSER)
# Far numbers where a mask leaves them out, as padding may hold anything: by its truths, or by what is not true.
HIDDEN = {"far where a mask is true": True, "far where a mask is not": False}
# What a fitted model leaves: an argument next to what is computed beside it, by so much of its size. Lines next to
# those of another tensor; rows that are orthonormal, as some losses want them.
FITTED = {"fitted": 1e-2, "fitted closely": 3e-5}
NEXT_TO_LINES = "lines next to others"
ORTHONORMAL = {"orthonormal lines": 3e-4, "orthonormal lines, closely": 2e-5}  # but for so much of their size
STEEP = "smooth and steep rows"
WAYS = LONG_WAYS, LONG_CHAIN = ("long ways", "a long chain")  # through a square, of what is done again and again
TAILS = "tails of both sides"  # of what goes to nothing on one of them, and is exact there
SPECIAL = (
    EDGES,
    AT_CONSTANTS,
    ENDS,
    LOW,
    DEEP,
    DEEPEST,
    MASKED,
    MASKED_SPIKES,
    CREST,
    ALOFT,
    LEVELS,
    CLIMB,
    CLUSTERS,
    PIVOTS,
    SORTED_ROWS,
    TWINS,
    EVERY,
    STEEP,
    *FITTED,
    NEXT_TO_LINES,
    *ORTHONORMAL,
    *WAYS,
    ROOTS,
    PEAKS,
    NEXT_TO_ZERO,
    BRINK,
    HUGE,
    IRREGULAR,
    DISORDER,
    NEARLY,
    UNEVEN,
    KEPT,
    *BURSTS,
    FADING,
    WHOLE,
    "faint",
    "spread",
    "shifted",
    "far",
    "spikes",
    "rare spikes",
    CONSTANT_ROWS,
    "ties",
    "large",
    "tiny",
    "small",
    "negative",
    "positive",
    "one spike",
    "sparse",
    *FAR_PARAMETERS,
    SMALL_WHOLE,
    POWERS,
    FAR_ANGLES,
    FAR_APART,
    SAME_SUMS,
    SIDES,
    HARDLY_JOINED,
    LATE,
    *BALANCED,
    *SIZES,
    *BESIDE,
    *AGREEING,
    *HIDDEN,
    *SINGLES,
    TAILS,
)
INTEGERS = frozenset({"int8", "int16", "int32", "int64", "uint8", "uint16", "uint32"})
WIDE = "wide integers"  # of either sign, or all that what reads them as indices allows
# Of what problems draw as integers: few values that come again and again, the least and the greatest among them;
# targets that a loss is to leave out; indices that count from the end where the problem draws none.
REPEATED, IGNORED, FROM_END = "repeated integers", "ignored targets", "indices from the end"
ALIKE = "one integer throughout"  # truth values are all true then
UNTRUE = "no truth at all"  # of truth values
PADDED = "masks of runs"  # where masks are drawn: each line begins with a run that is masked, or is not, as padding is
WIDEST = "widest integers"  # as wide as their dtype, where nothing reads them as indices: no float holds all of them
MULTIPLES = "next to multiples"  # within what the problem draws: of what it is divided by, and one beside
ENDS_TOGETHER = "integers at both ends"  # of what the problem draws: each part at one
STRIDED = "integers that are multiples"  # of a power of two, beyond what the problem draws
ONE_APART = "one integer far from the others"  # of each line, half of which are in order but for it
INTEGER_KINDS = (
    STRIDED,
    ENDS_TOGETHER,
    ONE_APART,
    WIDE,
    WIDEST,
    REPEATED,
    MULTIPLES,
    ALIKE,
    UNTRUE,
    PADDED,
    IGNORED,
    FROM_END,
)
# Products that are exact (`eval.numerics.exactness_probe`): of one factor, of the others, of what a softmax weighs.
PROBE, OTHER_PROBE, WEIGHED_PROBE = "probe", "probe of the other factors", "probe of what is weighed"
PROBES = (PROBE, OTHER_PROBE, WEIGHED_PROBE)
OUT_OF_RANGE = "indices out of range"  # a few: a call that is to be refused, and leave nothing for later ones
INFINITE = "infinite"  # throughout: a call that nobody compares, of which later ones may find nothing
NON_FINITE = "non-finite"  # NaN and infinity here and there, where the module says something of them
# Relative errors of an exactness probe: fp32 in any order of summation stays below the first; TF32, fp16 and bf16 are
# above the second, bf16 above the third.
STRICT, SPLIT, SEVEN_BITS = 2.0**-18, 2.0**-15, 2.0**-10


def precision_class(error: float, products: int = 1) -> str:
    """Name the precision that a probe's relative error shows, where so many products may have followed one another."""
    if error < STRICT:
        return "strict"
    if error < SPLIT:
        return "split-precision"
    return "tf32" if error < SEVEN_BITS * max(1, products) else "bf16"
