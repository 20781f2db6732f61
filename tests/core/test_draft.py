"""A new order before it is submitted, and who may send one to a pool."""

from standby.core.draft import draft, foreign
from standby.core.model import Order, OrderState, PoolSettings
from tests.rows import NOW, pool, spec


def test_a_draft_has_its_identity_and_what_limits_ask_about() -> None:
    plain = Order(
        id="order-7",
        project="a",
        pool="big",
        memory_mb=64,
        submitted_at=NOW,
        state=OrderState.PENDING,
        state_since=NOW,
    )
    assert draft("order-7", NOW, "a", "big", 64, spec()) == plain
    full = draft("order-7", NOW, "a", "big", 64, spec(dedupe_key="one", concurrency_key="key", cpus=1.5))
    assert (full.dedupe_live, full.concurrency_key, full.cpus) == ("a:one", "key", 1.5)


def test_only_a_pool_of_one_project_refuses_orders_of_others() -> None:
    own = pool(settings=PoolSettings(project="a"))
    assert foreign(pool(), "b") is foreign(own, "a") is None
    assert foreign(own, "b") == "pool default takes only orders of project a, not of b"
