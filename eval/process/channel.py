"""Messages over a Unix socket: a length, then JSON; file descriptors may ride along.

Comes in: plain JSON values. Goes out: the same on the other side. Nothing is ever unpickled. What a worker answers that
has no result to tell is the same everywhere: `Failed`.
"""

from __future__ import annotations

import array
import json
import os
import select
import socket
import struct
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from rag_kernels.eval import codec
from rag_kernels.eval.errors import Internal

_HEADER = struct.Struct("<I")
MAX_MESSAGE_BYTES = 256 << 20
MAX_FDS = 8
READY = {"ready": True}  # asks whether a worker is, and says so


def readable(stream: Any, timeout_s: float | None) -> bool:
    """Wait until a stream has something to read, or its other end is gone; None waits for ever.

    Unlike `select` it takes file descriptors of any number.
    """
    poll = select.poll()
    poll.register(stream, select.POLLIN)
    return bool(poll.poll(None if timeout_s is None else 1000 * timeout_s))


class ChannelClosed(Internal):
    """The other side is gone."""


@dataclass(frozen=True, slots=True)
class Failed:
    """A worker's answer where there is no result. `text` says why; `alive` that further requests will be answered."""

    kind: Literal["raised", "memory", "not_shared"]
    text: str
    alive: bool


def failure_in(reply: Any) -> Failed | None:
    """Return the failure that an answer tells of, if it is one."""
    if isinstance(reply, dict) and reply.get("_") == "Failed":
        with suppress(codec.Malformed):
            return codec.decode_as(Failed, reply)
    return None


class Channel:
    """One end of a socket pair. Not for use from several threads at once."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def fileno(self) -> int:
        return self._sock.fileno()

    def settimeout(self, seconds: float | None) -> None:
        self._sock.settimeout(seconds)

    def close(self) -> None:
        self._sock.close()

    def send(self, message: Any, fds: Sequence[int] = ()) -> None:
        body = json.dumps(message).encode()
        data = _HEADER.pack(len(body)) + body
        try:
            if fds:
                ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]
                sent = self._sock.sendmsg([data], ancillary)
                data = data[sent:]
            if data:
                self._sock.sendall(data)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise ChannelClosed from error

    def receive(self) -> tuple[Any, list[int]]:
        """Wait for one message. Raises ChannelClosed at end of stream and TimeoutError past the timeout."""
        header, fds = self._receive_exactly(_HEADER.size, with_fds=True)
        try:
            (length,) = _HEADER.unpack(header)
            if length > MAX_MESSAGE_BYTES:
                raise ChannelClosed(f"a message of {length} bytes was announced")
            body, _ = self._receive_exactly(length, with_fds=False)
            return json.loads(body), fds
        except (ChannelClosed, OSError, ValueError, RecursionError) as error:
            for fd in fds:
                os.close(fd)
            if isinstance(error, ValueError | RecursionError):
                raise ChannelClosed("the other side sent something that is not JSON") from error
            raise

    def receive_first(self) -> tuple[Any, list[int]]:
        """Wait for a worker's first message; whether it is ready may be asked before, and is it by then."""
        message, fds = self.receive()
        while message == READY:
            self.send(READY)
            message, fds = self.receive()
        return message, fds

    def spin(self, seconds: float) -> None:
        """Keep awake until there is something to receive, or for so many seconds."""
        end = time.monotonic() + seconds
        while not readable(self._sock, 0) and time.monotonic() < end:
            pass

    def _receive_exactly(self, count: int, *, with_fds: bool) -> tuple[bytes, list[int]]:
        parts: list[bytes] = []
        fds: list[int] = []
        while count:
            try:
                if with_fds:
                    part, new_fds, _, _ = socket.recv_fds(self._sock, count, MAX_FDS)
                    fds += new_fds
                else:
                    part = self._sock.recv(min(count, 1 << 20))
            except OSError as error:  # a timeout too
                for fd in fds:
                    os.close(fd)
                if isinstance(error, ConnectionResetError):
                    raise ChannelClosed from error
                raise
            if not part:
                for fd in fds:
                    os.close(fd)
                raise ChannelClosed
            parts.append(part)
            count -= len(part)
        return b"".join(parts), fds


def pair() -> tuple[socket.socket, socket.socket]:
    """Return a connected pair of stream sockets, closed on exec."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
