"""The settings of the command line: environment variables `RAG_KERNELS_*` and their defaults.

Comes in: the environment. Goes out: a `Settings`; flags override it. For Python callers that name no
place, `open_archive` and `eval.places` read RAG_KERNELS_ARCHIVE, RAG_KERNELS_ARCHIVE_TOKEN and RAG_KERNELS_CACHE too.
"""

from __future__ import annotations

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

from rag_kernels.choices import DeviceChoice, RetrievalMode


class Settings(BaseSettings):
    """Read the environment; every field is a variable: `model` is `RAG_KERNELS_MODEL`."""

    model_config = SettingsConfigDict(env_prefix="RAG_KERNELS_", env_ignore_empty=True, extra="ignore")

    model: str = Field("", description="Model names for litellm, separated by commas; empty: the offline writer")
    api_base: str = Field("", description="Address of an OpenAI-compatible server")
    archive: str = Field(
        "", description="Folder, quack://HOST:PORT, or :memory:; empty: ~/.local/share/rag-kernels/archive"
    )
    archive_token: SecretStr = Field(SecretStr(""), description="The secret of an archive server and its clients")
    device: DeviceChoice = Field("auto", description="auto: CUDA where there is a GPU")
    effort: int = Field(2, ge=1, le=9, description="One dial: rounds, width of a round and exemplars grow with it")
    retrieval: RetrievalMode = Field("hybrid", description="Retrieval mode")
    embedder: str = Field("builtin", description="The model in the package, or a sentence-transformers model")
    cache: str = Field("", description="Folder for builds and baselines; empty: ~/.cache/rag-kernels")
