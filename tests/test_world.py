"""Ids of changes: made many at a time, each given out once."""

from standby.world import Ids


def test_short_ids_never_repeat_and_hold_64_bits_of_chance_each() -> None:
    ids = Ids()
    made = [ids.short() for _ in range(1_000)]

    assert len(set(made)) == len(made)
    assert all(len(bytes.fromhex(each)) == 8 for each in made)


def test_no_byte_of_chance_is_used_for_two_short_ids() -> None:
    asked: list[bytes] = []

    def counted(count: int) -> bytes:
        first = sum(map(len, asked))
        asked.append(b"".join((first // 8 + nth).to_bytes(8, "big") for nth in range(count // 8)))
        return asked[-1]

    ids = Ids(counted)
    made = {ids.short() for _ in range(200)}

    given = b"".join(asked).hex()
    assert len(made) == 200
    assert made <= {given[at : at + 16] for at in range(0, len(given), 16)}
