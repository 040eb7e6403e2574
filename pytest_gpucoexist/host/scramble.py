"""Replace a value by one of the same form: digits stay digits, hexadecimal stays hexadecimal, prefixes stay prefixes.

Each character is turned by an amount that depends on a secret and on the characters before it, and never by zero. So
equal values become equal, values that share their first characters share the first characters of what they become (a
mask with the beginning of a UUID still means the same GPU), and no character stays what it was. Without the secret,
which is thrown away, nothing can be turned back.
"""

from __future__ import annotations

import hashlib
import string

__all__ = ["Scrambler"]

_HEX = "0123456789abcdef"


class Scrambler:
    """Scramble with a secret."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._known: dict[tuple[str, bool], str] = {}

    def text(self, value: str, *, hexadecimal: bool = False) -> str:
        """Scramble letters and digits; everything else stays. Upper and lower case of one value become the same."""
        known = self._known.get((value, hexadecimal))
        if known is None:
            known = self._known[value, hexadecimal] = self._scramble(value, hexadecimal)
        return known

    def number(self, value: int) -> int:
        """Scramble a number of 64 bits as its 16 hexadecimal digits; 0, which means none, stays."""
        return int(self.text(f"{value:016x}", hexadecimal=True), 16) if value else 0

    def tag(self, value: str) -> str:
        """Return six characters that stand for a value."""
        return hashlib.blake2b(value.encode("utf-8", "surrogateescape"), key=self._secret, digest_size=3).hexdigest()

    def _scramble(self, value: str, hexadecimal: bool) -> str:
        before = ""
        out: list[str] = []
        for character in value:
            lower = character.lower()
            alphabet = _alphabet(lower, hexadecimal)
            if alphabet is None:
                out.append(character)
                continue
            digest = hashlib.blake2b(f"{hexadecimal}{before}".encode(), key=self._secret, digest_size=2).digest()
            turn = 1 + int.from_bytes(digest, "big") % (len(alphabet) - 1)
            turned = alphabet[(alphabet.index(lower) + turn) % len(alphabet)]
            out.append(turned.upper() if character.isupper() else turned)
            before += lower
        return "".join(out)


def _alphabet(character: str, hexadecimal: bool) -> str | None:
    if hexadecimal:
        return _HEX if character in _HEX else None
    if character in string.digits:
        return string.digits
    return string.ascii_lowercase if character in string.ascii_lowercase else None
