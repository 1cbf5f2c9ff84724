"""Text to vectors: the built-in model, or any sentence-transformers model by name or path.

Comes in: texts (see `describe`). Goes out: float32 rows of length one, so that a dot product is the cosine.
The built-in model is a static embedding (a vector for each token, averaged) that loads in milliseconds without
torch. Knows nothing of problems or archives.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from rag_kernels.eval.errors import RagKernelsError

BUILTIN = Path(__file__).parent / "model"

Matrix = NDArray[np.float32]


class Embedder(Protocol):
    """Turns texts into vectors.

    `name` changes whenever the vectors would: the index is filled again when it does. `dim` is the length of a vector.
    """

    @property
    def name(self) -> str: ...

    @property
    def dim(self) -> int: ...

    def embed(self, texts: Sequence[str]) -> Matrix:
        """Return one row of length one for each text, as float32 of the shape (texts, dim).

        A text without known tokens is all zeros.
        """
        ...


class EmbedderError(RagKernelsError):
    """The embedding model cannot be loaded; the message says what to do."""


@dataclass(frozen=True, slots=True)
class StaticEmbedder:
    """A `StaticEmbedding` in the format of sentence-transformers, computed with numpy."""

    name: str
    tokenizer: Any  # tokenizers.Tokenizer
    weights: Matrix

    @classmethod
    def load(cls, folder: Path) -> "StaticEmbedder":
        """Load the model of a folder.

        Raises EmbedderError when its files cannot be read.
        """
        from safetensors.numpy import load
        from tokenizers import Tokenizer

        try:
            raw = (folder / "model.safetensors").read_bytes()
            tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        except Exception as error:  # tokenizers raises bare Exception for a missing or damaged file
            raise EmbedderError(
                f"The embedding model in {folder} cannot be read ({error}). Reinstall rag-kernels, or make the model "
                "again with `python -m rag_kernels.ingest.description.train_embedder`."
            ) from error
        tokenizer.no_padding()
        weights = load(raw)["embedding.weight"].astype(np.float32, copy=False)
        return cls(f"static-{hashlib.blake2b(raw, digest_size=6).hexdigest()}", tokenizer, weights)

    @property
    def dim(self) -> int:
        return int(self.weights.shape[1])

    def embed(self, texts: Sequence[str]) -> Matrix:
        rows = np.zeros((len(texts), self.dim), dtype=np.float32)
        for row, encoding in zip(rows, self.tokenizer.encode_batch(list(texts), add_special_tokens=False), strict=True):
            if encoding.ids:
                row[:] = self.weights[encoding.ids].mean(axis=0)
        return _unit(rows)


@dataclass(frozen=True, slots=True)
class TransformerEmbedder:
    """Any other model of sentence-transformers."""

    name: str
    model: Any  # sentence_transformers.SentenceTransformer

    @classmethod
    def load(cls, name: str) -> "TransformerEmbedder":
        """Load a model by name or path.

        Raises EmbedderError when it cannot be loaded.
        """
        from sentence_transformers import SentenceTransformer

        try:
            return cls(name, SentenceTransformer(name))
        except Exception as error:  # a network, file or format fault, each with its own type
            raise EmbedderError(
                f"The embedding model {name!r} cannot be loaded ({error}). Give the path of a sentence-transformers "
                "folder, a name that can be downloaded from here, or `builtin`."
            ) from error

    @property
    def dim(self) -> int:
        return int(self.embed(["kernel"]).shape[1])

    def embed(self, texts: Sequence[str]) -> Matrix:
        return _unit(np.asarray(self.model.encode(list(texts), show_progress_bar=False), dtype=np.float32))


def load_embedder(setting: str = "builtin") -> Embedder:
    """Return the embedder of a setting: `builtin`, or the name or path of a sentence-transformers model.

    Raises EmbedderError when the model cannot be loaded.
    """
    return StaticEmbedder.load(BUILTIN) if setting == "builtin" else TransformerEmbedder.load(setting)


def _unit(rows: Matrix) -> Matrix:
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return (rows / np.where(norms > 0, norms, 1)).astype(np.float32)
