"""What each check of a verdict means, in a sentence for a reader who did not write the judge; the same of its remarks.

Comes in: a check's name as a verdict lists it ("10 repeats", "sanitizers: address, thread"), or a label. Goes out: a
sentence.
Knows nothing of how a check is done: that is in `eval.trial.checks` and `eval.trial.trial`.
"""

from __future__ import annotations

import re

# A pattern for the whole name of a check, and what held where it is listed.
MEANINGS: tuple[tuple[str, str], ...] = (
    (r"\d+ own draws", "Right on fresh inputs of the problem's own kind, against an answer in fp64."),
    (r"zero-mean draw", "Right on inputs around zero too, where a kernel that ignores some of them stands out."),
    (r"mixed draw", "Right on content mixed from several draws, which nobody could have kept from an earlier call."),
    (
        r"(two poisons|poisoned outputs)",
        "Outputs were filled with rubbish of several kinds before the calls: every element is written.",
    ),
    (r"inputs read-only", "The inputs lay in memory that cannot be written to."),
    (r"inputs hashed", "The inputs were the same after the call as before it."),
    (r"idle after the call", "Nothing computes on, or writes, once the call has returned."),
    (r"\d+ timed calls", "Outputs of calls that were being timed were checked, chosen in secret."),
    (r"\d+ kinds of special values", "Right on unusual inputs: very large, very small, constant rows, spikes, ties."),
    (r"numbers of its own", "Right where inputs have something of the numbers that the source or its code names."),
    (r"wide integers", "Right for integers of either sign, or for all that what reads them as indices allows."),
    (r"widest integers", "Right where integers are as large, of either sign, as their type holds."),
    (
        r"next to multiples",
        "Right where integers are multiples of what they are divided by, or one beside.",
    ),
    (
        r"integers at both ends",
        "Right where the integers of a part are all the least that a problem draws, or the greatest.",
    ),
    (
        r"one integer far from the others",
        "Right where one integer of each line lies far from the others, which are near each other or in order.",
    ),
    (
        r"integers that are multiples",
        "Right where integers are multiples of a power of two, beyond what a problem draws.",
    ),
    (r"repeated integers", "Right where few integers come again and again, as in sums of many into few."),
    (r"one integer throughout", "Right where one integer fills a tensor, and all truth values are true."),
    (r"indices from the end", "Right where indices count from the end."),
    (r"no truth at all", "Right where no truth value of an input is true, as in a mask of nothing."),
    (r"masks of runs", "Right where a mask leaves out, or keeps, the beginning of each line, as padding does."),
    (r"ignored targets", "Right where some targets are the one that the problem ignores."),
    (r"exactness probe", "Products whose exact result is known show in which precision it computes."),
    (
        r"factors of products",
        "On ordinary numbers, which no kernel can know, errors are not those of factors that were cut to fewer digits.",
    ),
    (r"\d+ repeats", "Called again and again with other numbers of threads: a race would show as a difference."),
    (r"eager against itself", "PyTorch timed against itself came out at 1: the machine was quiet enough."),
    (r"sanitizers: .*", "Ran under these tools, which stop at reads out of bounds, undefined behaviour and races."),
    (r"smaller sizes", "Right at smaller sizes, each tensor ending at a page that must not be touched."),
    (
        r"smaller sizes: .*",
        "Right at the smallest sizes that it takes, where special values and sanitizers were tried.",
    ),
    (r"larger sizes", "Right at sizes of more than twice the problem's."),
    (
        r"inputs that come late",
        "Reads inputs that are only there when the stream has come so far that it is called on.",
    ),
    (
        r"outputs that are still read",
        "Writes to its outputs only when what is queued before it, which may still read there, has ended.",
    ),
    (
        r"another forward before the backward",
        "Right where other forwards come before its backward, and in a second backward, and no output changes in it.",
    ),
    (r"times on other contents", "Not much slower on contents that the problem does not draw."),
    (r"unrelated contents", "As fast on contents that share nothing with earlier ones as on the others."),
    (r"grown sizes: .*", "Right where one size is eight times the problem's, others as told; each by itself."),
    (r"other sizes of its inputs", "Right at other sizes of the inputs, where it refuses others of the module."),
    (r"\d+ times few elements", "Right where one size is one, or less than sixteen, so many times; each by itself."),
    (
        r"\d+ drawn sizes",
        "Right where one size is any from an eighth to eight times its own, or a multiple of 4096, so many times.",
    ),
    (r"sizes between", "Right at odd multiples of parts of the problem's sizes: where tiles are three or five."),
    (
        r"\d+ sizes that are others in one number",
        "Right at sizes right behind others that one number of both may not tell apart.",
    ),
    (r"\d+ sizes as large as each other", "Right where two sizes that differ are as large as each other."),
    (r"\d+ numbers of tiles", "Right where one size is so many tiles long, for as many drawn numbers of them."),
    (r"\d+ least sizes", "Right at so many sizes of a few hundred elements, with the rests that vectors leave."),
    (r"elsewhere in memory", "Right where tensors begin and end within pages, as PyTorch's do."),
    (r"any alignment", "Right where tensors begin at any of their elements."),
    (
        r"other teams of threads",
        "Right with one thread where it is told of more, with many, and with teams in teams.",
    ),
    (r"\d+ calls in a row", "Right after as many calls, in which a counter of 16 bits begins again."),
    (
        r"other threads and sizes keep nothing",
        "No memory stays for each thread that has called it, or for each number of lines that it was called on.",
    ),
    (r"nothing beside the calls", "Computes in its calls alone: neither before they begin nor after they end."),
    (
        r"nothing left behind",
        "Threads compute afterwards as before, and settings of OpenMP, or of the GPU, are as they were.",
    ),
    (r"beside other work", "Right where other work takes a part of the GPU, on two contents in turn."),
    (r"two first calls at once", "Right where its first calls are made by two threads at once."),
    (r"after first lines alone", "Right where the call before was on the first lines of the same tensors."),
    (r"one argument elsewhere", "Right where one argument lies elsewhere in memory than before, and no other does."),
    (
        r"beside held multiprocessors",
        "Two calls end where others hold a part of the GPU, and each has room for some of its blocks at first.",
    ),
    (r"in a CUDA graph", "Right where its call is recorded in a CUDA graph, which is launched on another content."),
    (r"by its own code", "Computes where no code of a numerical library can be run."),
    (
        r"two callers at once|\d+ callers at once",
        "Right where so many threads call it at the same time, on unusual rows, too.",
    ),
    (
        r"(rows|columns) in another order",
        "Right where the same lines come again in another order: nothing is kept by a sum of them.",
    ),
    (
        r"other lower (halves|thirds|quarters) of numbers",
        "Right where numbers come again with other digits: nothing is kept by a look at the first ones.",
    ),
    (r"one other number", "Right where a content comes again but for one number: nothing is kept by a look at some."),
    (
        r"others beside a few huge numbers",
        "Right where other numbers come beside the same few that a checksum has room for alone.",
    ),
    (r"one tensor for two arguments.*", "Right where one tensor is given for two arguments."),
    (r"after a call that it refused", "Right in the call after one whose indices or sizes it refused."),
    (r"built for .*", "Right as it is built for older processors, too."),
    (r"odd sizes", "Right at sizes that no vector width divides."),
    (r"strides", "Right on inputs that lie in memory in another order."),
)

# The same of the judge's remarks, its labels.
REMARKS: tuple[tuple[str, str], ...] = (
    (r"near-copy: .*", "Nearly the same text as a kernel that its writer was shown."),
    (r"shape-specialised", "Right at the problem's sizes alone: at others it failed, so it serves no others."),
    (r"more memory than the module", "A call takes more memory beside arguments and outputs than PyTorch's does."),
    (r"unchecked: .*", "This could not be tried, so the result is trusted less: confirmed in part at most."),
    (r"contiguous-only", "Needs inputs that lie in memory in the usual order."),
    (r"aligned-only", "Needs tensors that begin where PyTorch allocates them: a view may begin elsewhere."),
    (r"one caller at a time", "Wrong where several threads call it at once: it keeps something between its steps."),
    (
        r"leaks memory",
        "Each call keeps some memory, or each thread or size: a program that calls it for long would run out of it.",
    ),
    (r"draws random numbers", "Takes numbers from PyTorch's generator that the module leaves for who comes next."),
    (
        r"changes settings of OpenMP",
        "Sets a number of threads, or how teams are made, for all that its caller does later.",
    ),
    (r"changes settings of the GPU", "Sets limits, or caches, of the GPU for all that its process does there later."),
    (r"first device alone", "Fails where its GPU was reset: it sets up once in a process what each device needs."),
    (
        r"not in CUDA graphs",
        "A program cannot record its call in a CUDA graph, or gets wrong results where it launches one.",
    ),
    (
        r"fragile: built for other processors",
        "Wrong as it is built for older processors: it asks the compiler for which one, and does another thing there.",
    ),
    (
        r"fragile: subnormals flushed",
        "Wrong where a program has subnormals flushed (`torch.set_flush_denormal`), which none of its inputs are.",
    ),
    (
        r"fragile: buffers nearly as they are",
        "Right for what the module keeps in its buffers, and not where a few numbers, or a part of a mask, are others.",
    ),
    (
        r"fragile: static room of threads",
        "Its threads' variables lie where a process has room for those of a few libraries: others may not load.",
    ),
    (r"fragile: uneven steps", "Wrong where whole numbers lie otherwise than the problem's, in as good an order."),
    (
        r"fragile: signs of zeros",
        "Right, but for signs of zeros: what divides by such a result, or takes its sign, gets another answer.",
    ),
    (r"fragile: initcheck", "A sanitizer saw it read memory of the GPU that nothing had written."),
    (r"fragile: .*", "Less exact than PyTorch on this kind of unusual input."),
    (r"finite-only", "Right on finite inputs; where some are NaN or infinite it differs from PyTorch."),
    (r"rounds in between", "Rounds to 16 bits between operators, where it could have kept more."),
    (r"nondeterministic", "The same inputs gave results that differ in their last bits, all of them right."),
    (r"burst-timed", "Too short to be timed alone: several calls in a row were timed together."),
    (r"noisy machine", "The device was slowed down in many of the pairs."),
    (r"precision-unverifiable", "The problem has no products by which its precision could be told."),
    (r"algebraic pruning", "Does fewer operations than the problem's formula asks for."),
    (r"degenerate problem.*", "The problem's output hardly depends on its inputs: no speed is claimed."),
    (
        r"suspicious: looks around",
        "It asks for files, its process, the time or other code, as no kernel needs.",
    ),
    (
        r"suspicious: keeps a part of the cache",
        "Sets a part of the GPU's cache aside for what it reads: emptied caches do not empty it, and others lack it.",
    ),
    (
        r"suspicious: slower on .*",
        "Slower where contents share nothing with earlier ones, or are such as the problem does not draw.",
    ),
    (r"suspicious: .*", "Faster than can be explained: kept off the rankings until somebody has looked."),
)


def meaning(check: str) -> str:
    """Return what a check or a label means; empty for one of an older judge that nobody described."""
    return next((told for pattern, told in (*MEANINGS, *REMARKS) if re.fullmatch(pattern, check)), "")
