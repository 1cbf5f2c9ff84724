"""Content ids: a short tagged hash of a canonical text. The same content has the same id everywhere.

Comes in: a tag and strings. Goes out: an id such as `k_1f0c...`. Knows nothing of what it names.
"""

import hashlib

DIGEST_CHARS = 20  # 80 bits: a collision among a billion kernels has odds of about one in a million


def content_id(tag: str, *parts: str) -> str:
    """Return `<tag>_<hash>` of the parts; the length of each part is hashed too, so parts cannot run together."""
    digest = hashlib.blake2b(tag.encode(), digest_size=32)
    for part in parts:
        data = part.encode()
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return f"{tag}_{digest.hexdigest()[:DIGEST_CHARS]}"
