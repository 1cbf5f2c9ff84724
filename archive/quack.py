"""Quack, DuckDB's client-server protocol: addresses of archive servers, the token, and the extension that speaks it.

Comes in: an address as a user writes it, or a DuckDB connection. Goes out: an `Address`, or the same connection with
the extension loaded: from the packages `duckdb-extension-*` where they are installed, else as DuckDB installs it.
"""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from rag_kernels.archive.records import ArchiveError

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

PORT = 9494
SCHEMES = ("quack", "quack+http")  # the second: plain HTTP also to another machine
TOKEN = "RAG_KERNELS_ARCHIVE_TOKEN"
OPEN_TOKEN = "open to this machine"  # the protocol wants one always; on the loopback address it may be no secret
EXTENSIONS = ("httpfs", "quack")


@dataclass(frozen=True, slots=True)
class Address:
    """Hold where an archive server listens. Other machines are spoken to by HTTPS unless `plain`."""

    host: str
    port: int = PORT
    plain: bool = False

    @property
    def uri(self) -> str:
        """Return the address as the extension writes it."""
        return f"quack:{self._host}:{self.port}"

    @property
    def loopback(self) -> bool:
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    @property
    def chroma_port(self) -> int:
        """Return the port of Chroma's server, the next one."""
        return self.port + 1

    @property
    def _host(self) -> str:
        return f"[{self.host}]" if ":" in self.host else self.host

    def __str__(self) -> str:
        return f"quack{'+http' if self.plain else ''}://{self._host}:{self.port}"


def is_address(location: str) -> bool:
    return location.startswith(tuple(f"{scheme}:" for scheme in SCHEMES))


def parse(location: str) -> Address:
    """Read `quack://host:port`; without a port it is 9494. Raises ArchiveError for anything else."""
    try:
        parts = urlsplit(location)
        host, port = parts.hostname, parts.port or PORT
    except ValueError as error:
        raise ArchiveError(f"{location!r} is no address of an archive server ({error}).") from error
    if parts.username is not None:
        raise ArchiveError(f"A token does not belong into the address of an archive server: put it into {TOKEN}.")
    if parts.scheme not in SCHEMES or not host or parts.path.strip("/") or parts.query or parts.fragment:
        raise ArchiveError(f"{location!r} is no address of an archive server: write quack://HOST or quack://HOST:PORT.")
    return Address(host, port, plain=parts.scheme == "quack+http")


def token_from_environment() -> str:
    """Return the token that clients and server share; empty when there is none."""
    return os.environ.get(TOKEN, "")


def load(con: DuckDBPyConnection) -> None:
    """Load the protocol's extension into a connection; raises ArchiveError when DuckDB cannot get it."""
    import duckdb

    for name in EXTENSIONS:
        file = packaged(name, duckdb.__version__)
        try:
            if file is None:
                con.install_extension(name)
            con.load_extension(name if file is None else str(file))
        except duckdb.Error as error:
            raise ArchiveError(
                f"DuckDB {duckdb.__version__} cannot load its extension {name!r}, which shared archives need: "
                f"`pip install 'rag-kernels[shared]'` brings it and the DuckDB that it goes with; DuckDB 2.0 and later "
                "fetch it by themselves, from a network. "
                f"({first_line(error)})"
            ) from error


def packaged(name: str, version: str) -> Path | None:
    """Return the file of an extension for this version of DuckDB, if its package is installed."""
    found = importlib.util.find_spec(f"duckdb_extension_{name}")
    folders = found.submodule_search_locations if found else None
    for folder in folders or ():
        file = Path(folder) / "extensions" / f"v{version}" / f"{name}.duckdb_extension"
        if file.is_file():
            return file
    return None


def first_line(error: Exception) -> str:
    """Return an error's text without the statement that it quotes: that may hold the token."""
    return str(error).split("\n", 1)[0]
