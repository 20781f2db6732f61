"""Tokens are derived from the seal key: the same each time, and each good for one thing only."""

from standby.seal import Seal


def test_a_token_is_the_same_each_time_and_differs_by_slot_generation_nonce_run_and_key() -> None:
    seal, other = Seal(b"k" * 32), Seal(b"o" * 32)
    tokens = [
        seal.slot_token("s-1", 1),
        seal.slot_token("s-1", 2),
        seal.slot_token("s-2", 1),
        seal.boot_token("s-1", 1, "nonce-1"),
        seal.boot_token("s-1", 2, "nonce-1"),
        seal.boot_token("s-1", 1, "nonce-2"),
        seal.run_token("order-1"),
        seal.run_token("order-2"),
        other.slot_token("s-1", 1),
    ]

    assert len({token.rpartition(".")[2] for token in tokens}) == len(tokens)
    assert seal.slot_token("s-1", 1) == tokens[0]
    assert tokens[0].startswith("slot.s-1.")
    assert tokens[3].startswith("boot.s-1.nonce-1.")
