"""Env values at rest: sealed with a key that is not in the database."""

import hashlib
import hmac
import os
from collections.abc import Mapping
from pathlib import Path

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from standby.core.errors import StandbyError

_NONCE = 12


class SealBroken(StandbyError):
    """Sealed values cannot be opened: the key is not the one they were sealed with."""


class Seal:
    """Seals and opens the env of one order; the order's id is bound in, so that no value can be moved to another."""

    def __init__(self, key: bytes) -> None:
        if len(key) != 32:
            raise StandbyError("the seal key must be 32 bytes (64 hexadecimal digits)")
        self._cipher = AESGCM(key)
        self._key = key
        self._tokens = hashlib.blake2b(key=hmac.digest(key, b"tokens of workers", "sha256"), digest_size=32)
        self._runs = self._tokens.copy()
        self._runs.update(b"run\0")

    def close(self, order_id: str, env: Mapping[str, str]) -> bytes | None:
        """The sealed values, or null for none."""
        if not env:
            return None
        nonce = os.urandom(_NONCE)
        return nonce + self._cipher.encrypt(nonce, msgspec.json.encode(env), order_id.encode())

    def fingerprint(self, data: bytes) -> str:
        """What tells two bodies apart without telling anything about them: they may hold secrets."""
        return hmac.digest(self._key, data, "sha256").hex()

    def slot_token(self, slot: str, generation: int) -> str:
        """What a worker in this generation of a slot shows when it boots. Tokens are derived, never stored."""
        return f"slot.{slot}.{self._mac('slot', slot, str(generation))}"

    def boot_token(self, slot: str, generation: int, nonce: str) -> str:
        """What one life of a worker shows from then on."""
        return f"boot.{slot}.{nonce}.{self._mac('boot', slot, str(generation), nonce)}"

    def run_token(self, run_id: str) -> str:
        """What a run that was started for its order shows."""
        made = self._runs.copy()  # every start has one: what `_mac("run", run_id)` says, begun already
        made.update(run_id.encode())
        return f"run.{run_id}.{made.hexdigest()}"

    def _mac(self, *parts: str) -> str:
        made = self._tokens.copy()  # with its key set up already this is a fifth of an HMAC
        made.update("\0".join(parts).encode())
        return made.hexdigest()

    def open(self, order_id: str, sealed: bytes | None) -> dict[str, str]:
        """The values, or nothing when there were none."""
        if sealed is None:
            return {}
        try:
            text = self._cipher.decrypt(sealed[:_NONCE], sealed[_NONCE:], order_id.encode())
        except InvalidTag:
            raise SealBroken(
                f"the env of order {order_id} cannot be opened: the seal key is not the one it was sealed with"
            ) from None
        return msgspec.json.decode(text, type=dict[str, str])


def load_key(given: str | None, state_dir: Path) -> bytes:
    """The key from the setting, or from the state directory, where it is made at the first start."""
    if given is not None:
        try:
            return bytes.fromhex(given)
        except ValueError:
            raise StandbyError("STANDBY_SEAL_KEY must be 64 hexadecimal digits") from None
    path = state_dir / "seal.key"
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return bytes.fromhex(path.read_text().strip())
    with os.fdopen(file, "w") as out:
        key = os.urandom(32)
        out.write(key.hex() + "\n")
    return key
