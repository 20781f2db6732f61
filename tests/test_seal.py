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


def test_a_runs_token_is_made_in_a_short_way_that_says_what_the_long_one_says() -> None:
    seal = Seal(b"k" * 32)

    assert [seal.run_token(run) for run in ("order-1", "order-2", "")] == [
        f"run.{run}.{seal._mac('run', run)}" for run in ("order-1", "order-2", "")
    ]
    assert (
        seal.run_token("order-1") == "run.order-1.b2003cdb1e9c1065c557f6d7ae2bab97ef85d24692b1b2af9f902cd3176717ef"
    ), "runs that were started by an earlier version show this one"
