"""How the judge's requests to its two workers, and their replies, become JSON and are read again.

A worker is opened with its first message; every later one is a member of `ReferenceRequest` (`to_reference.py`) or
`CandidateRequest` (`to_candidate.py`), and the child matches them all. They travel as JSON by `eval.codec`; file
descriptors go beside them. A candidate's worker may send anything: its replies are read as the one class that was asked
for, with the number of the request. Where something fails comes a `Failed` (`eval.process.channel`). Knows nothing of
processes, sockets and torch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeVar, cast, get_args

from rag_kernels.eval import codec
from rag_kernels.eval.buffers.call_content import Splice
from rag_kernels.eval.buffers.shared_arena import ArenaLayout
from rag_kernels.eval.errors import Internal
from rag_kernels.eval.messages.to_both import Unsupported
from rag_kernels.eval.messages.to_candidate import (
    Binding,
    CandidateCode,
    CandidateReply,
    CandidateRequest,
    GivenTensor,
    Held,
    InContent,
    ModuleCall,
    OpenCandidate,
)
from rag_kernels.eval.messages.to_reference import OpenReference, ReferenceRequest
from rag_kernels.eval.records import TensorSpec

T = TypeVar("T")


class UnknownRequest(Internal):
    """A worker was sent what it has no answer for; the message is a sentence."""


def _names(*kinds: type) -> dict[str, type]:
    return {kind.__name__: kind for kind in kinds}


_REFERENCE, _CANDIDATE = _names(*get_args(ReferenceRequest)), _names(*get_args(CandidateRequest))
_CANDIDATE_PARTS = _names(Binding, InContent, Unsupported, Held, CandidateCode, ArenaLayout, TensorSpec, Splice)
_CALL_PARTS = _names(ModuleCall, GivenTensor) | _CANDIDATE_PARTS
_PARTS: dict[str, Mapping[str, type]] = {
    "the reference worker": {**codec.RECORDS, **_names(ArenaLayout, Splice, OpenReference), **_REFERENCE},
    "a candidate's worker": {**_CANDIDATE_PARTS, **_names(OpenCandidate), **_CANDIDATE},
}


def reference_opening(message: Any) -> OpenReference:
    """Read the first message to the reference worker."""
    return cast(OpenReference, _request(message, "the reference worker", {"OpenReference"}))


def opens_reference(message: Any) -> bool:
    """Return whether it is such a message: a worker that is done with one problem may be given another."""
    return isinstance(message, dict) and message.get("_") == OpenReference.__name__


def reference_request(message: Any) -> ReferenceRequest:
    """Read any other message to it."""
    return cast(ReferenceRequest, _request(message, "the reference worker", _REFERENCE))


def candidate_opening(message: Any) -> OpenCandidate:
    """Read the first message to a candidate's worker; its number is 0."""
    message.pop("number", None)
    return cast(OpenCandidate, _request(message, "a candidate's worker", {"OpenCandidate"}))


def candidate_request(message: Any) -> tuple[int, CandidateRequest]:
    """Read any later message to it, with its number."""
    number = message.pop("number", 0)
    return number, cast(CandidateRequest, _request(message, "a candidate's worker", _CANDIDATE))


def module_call(text: str) -> ModuleCall:
    """Read a call that `codec.dumps` has written."""
    return cast(ModuleCall, codec.decode(json.loads(text), _CALL_PARTS))


def _request(message: Any, whose: str, known: Mapping[str, type] | set[str]) -> Any:
    name = message.get("_")
    if name not in known:
        raise UnknownRequest(
            f"`{name}` is no request to {whose}: the judge and its workers are of different versions, so start it again"
        )
    return codec.decode(message, _PARTS[whose])


def numbered(message: OpenCandidate | CandidateRequest | CandidateReply, number: int) -> dict[str, Any]:
    """Return it as it goes to a candidate's worker and back: with the number of the request."""
    encoded: dict[str, Any] = codec.encode(message)
    encoded["number"] = number
    return encoded


def reply_to(number: int, kind: type[T], reply: Any) -> T:
    """Read a candidate's answer to this request; raises `codec.Malformed` where it is another one's or none at all."""
    if not isinstance(reply, dict) or reply.pop("number", None) != number:
        raise codec.Malformed("another number than the request's")
    return codec.decode_as(kind, reply)
