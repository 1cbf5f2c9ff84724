"""A problem in another dtype: its module and its floating inputs converted, everything else as it was."""

from __future__ import annotations

from pathlib import Path

CONVERTED = """

_init, _get_inputs = Model.__init__, get_inputs


def _converted(self, *args, **kwargs):
    _init(self, *args, **kwargs)
    self.to(torch.{0})


Model.__init__ = _converted


def get_inputs():
    return [x.to(torch.{0}) if torch.is_tensor(x) and x.is_floating_point() else x for x in _get_inputs()]
"""


def converted(problem: Path, dtype: str, folder: Path) -> Path:
    """Write the problem's file in this dtype into the folder, under its own name."""
    path = folder / problem.name
    path.write_text(problem.read_text() + CONVERTED.format(dtype))
    return path
