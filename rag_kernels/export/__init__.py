"""A kernel as a file: `formats` names the formats, and each has a file of its own. `runtime` is what modules import."""
