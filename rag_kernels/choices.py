"""The words that an option may be given as, listed once for `Options`, the flags and the environment.

Imports nothing, so that the command line can show its help at once.
"""

from typing import Literal

RetrievalMode = Literal["off", "random", "bm25", "dense", "hybrid", "hybrid+cards"]
DeviceChoice = Literal["auto", "cpu", "cuda"]
Precision = Literal["strict", "tf32", "any"]
LeaveOut = Literal["nothing", "problem", "family"]
ReasoningEffort = Literal["none", "minimal", "low", "medium", "high"]
