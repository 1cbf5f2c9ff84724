"""The format `kernelbench`: a ModelNew for KernelBench's evaluator that imports torch alone.

Comes in: an attempt and a path. Goes out: a file with the problem's `Model`, the kernel, built by torch's own loader,
and a `ModelNew` that runs it; calls that were not verified run the `Model`'s forward, with one warning that says why.
Its parameters take no gradients, since evaluators time forward passes outside of `torch.no_grad()`.
"""

from __future__ import annotations

import textwrap
from pathlib import Path

from rag_kernels.archive.records import Attempt
from rag_kernels.export.forms.module_file import compiled_of, summary
from rag_kernels.export.package import WITH_COMPOSED, TextFile
from rag_kernels.export.plain.calls import call_text, text_of

CONTENTS = Path(__file__).parents[1] / "serving" / "contents.py"
TEXT = '''\
# {summary}

{problem}

import torch  # noqa: E402, F811

# ---- the kernel ----

{call}


def rk_looks():  # what the module holds, before it is asked without data
{contents}
    return Contents


rk_contents = rk_looks()


class ModelNew(Model):
    RK_PLACES = {places}  # of the kernel's arguments: numbers of inputs, and attributes of the module

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.requires_grad_(False)  # evaluators time forward passes outside of torch.no_grad()
        self.rk_same = self.rk_arguments(*args, **kwargs) == self.rk_arguments(*get_init_inputs())
        self.rk_settings, self.rk_warned, self.rk_results = self.rk_found(), set(), None

    def forward(self, *args, **kwargs):
        try:
            return self.rk_arranged(rk_kernel(self.rk_values(args, kwargs)))
        except RkNotVerified as reason:
            if str(reason) not in self.rk_warned:
                import warnings

                self.rk_warned.add(str(reason))
                warnings.warn(f"The kernel is not used: {{reason}}", stacklevel=2)
            return super().forward(*args, **kwargs)

    def rk_arguments(self, *args, **kwargs):
        """Constructor arguments by name."""
        import inspect

        bound = inspect.signature(Model.__init__).bind(self, *args, **kwargs)
        bound.apply_defaults()
        return repr(list(bound.arguments.items())[1:])

    def rk_arranged(self, made):
        """The kernel's tensors as the module arranges its results."""
        (leaves, tree), tensors = self.rk_results, iter([made] if isinstance(made, torch.Tensor) else made)
        return torch.utils._pytree.tree_unflatten(
            [next(tensors) if leaf is None else leaf[0] for leaf in leaves], tree
        )

    def rk_asked(self, args):
        """How the module arranges its results, which it tells once, without data; what it sets is set back."""
        from torch._subclasses.fake_tensor import FakeTensorMode
        from torch.utils import _pytree as pytree

        contents = rk_contents([("", self)])
        try:
            with FakeTensorMode(allow_non_fake_inputs=True) as mode:
                results = super().forward(*pytree.tree_map_only(torch.Tensor, mode.from_tensor, args))
            sets = contents.changed()
        except Exception as error:
            raise RkNotVerified(f"how the module arranges its results is not known ({{error}}).") from error
        finally:
            contents.set_back()
        if sets:
            self.rk_same = False
            raise RkNotVerified("the module sets attributes when it is called, and a kernel sets nothing.")
        leaves, tree = pytree.tree_flatten(results)
        self.rk_results = [None if isinstance(leaf, torch.Tensor) else (leaf,) for leaf in leaves], tree

    def rk_found(self):
        """Plain attributes of the module and its parts, which its forward may read."""
        plain = (bool, int, float, complex, str, bytes, type(None), tuple)
        return [
            (path, name, repr(value))
            for path, part in self.named_modules()
            for name, value in sorted(vars(part).items())
            if isinstance(value, plain) and not name.startswith(("_", "rk_"))
        ]

    def rk_at(self, path):
        found = self
        for part in path.split("."):
            found = found[int(part)] if isinstance(found, (list, tuple)) else getattr(found, part)
        return found

    def rk_values(self, args, kwargs):
        """The kernel's arguments, for a call that it was verified for."""
        if not self.rk_same or self.rk_found() != self.rk_settings:
            raise RkNotVerified("the module has other settings than it was verified with.")
        if kwargs or torch.is_autocast_enabled({device!r}):
            raise RkNotVerified("inputs by keyword, or autocast.")
        inputs = [value for value in torch.utils._pytree.tree_leaves(args) if value is not None]
        if len(inputs) != {inputs}:
            raise RkNotVerified(f"it got {{len(inputs)}} inputs, and was verified with {inputs}.")
        values = [inputs[place] if isinstance(place, int) else self.rk_at(place) for place in self.RK_PLACES]
        if torch.is_grad_enabled() and any(isinstance(v, torch.Tensor) and v.requires_grad for v in values):
            raise RkNotVerified("gradients are wanted; use torch.no_grad().")
        if self.rk_results is None:
            self.rk_asked(args)
        return values
'''


def kernelbench_text(attempt: Attempt) -> str:
    """Return the text of the file; raises ProblemError for a kernel that cannot be one."""
    arguments = compiled_of(attempt).served.arguments
    places = [int(a.path) if a.role in ("input", "scalar") else a.path for a in arguments]
    taken = sorted(place for place in places if isinstance(place, int))
    return TEXT.format(
        summary=summary(attempt),
        problem=attempt.problem.problem.source.rstrip(),
        call=call_text(attempt),
        contents=textwrap.indent(text_of(CONTENTS), "    "),
        places=[taken.index(place) if isinstance(place, int) else place for place in places],
        inputs=len(taken),
        device=attempt.candidate.backend,
    )


PACKAGE = TextFile(
    text=kernelbench_text, suffix=".py", comment="#", loaded_by="KernelBench's evaluator", tiers=WITH_COMPOSED
)
