"""What was read of a pool, as more is read."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from standby.control.ahead import Ahead, Page
from standby.store.contract import Work
from tests.control.stage import Stage
from tests.rows import host, order, spec

_places = st.sets(st.integers(0, 7), min_size=1).map(sorted)


def _works(project: str, ranks: dict[str, int]) -> list[Work]:
    return [Work(order(id=order_id, rank=rank, project=project), spec()) for order_id, rank in ranks.items()]


@given(known=_places, moved=st.integers(0, 4), found=_places, per_lane=st.integers(1, 9))
@example(known=[3, 4], moved=3, found=[5, 6, 7], per_lane=9)
def test_a_lane_has_everybody_who_was_read_or_added_once_in_order_up_to_the_end_of_its_page(
    known: list[int], moved: int, found: list[int], per_lane: int
) -> None:
    before = {f"{place + moved:02}": place for place in known}
    now = {f"{place:02}": place for place in found}
    page = Page(host())
    page.lanes = {"a": _works("a", before), "b": _works("b", before)}
    page.take_in([*_works("a", now), *_works("c", now)], per_lane)
    end = (found[-1], f"{found[-1]:02}") if len(found) >= per_lane else None
    both = sorted((rank, order_id) for order_id, rank in {**before, **now}.items())
    lanes = {project: [(work.order.rank, work.order.id) for work in lane] for project, lane in page.lanes.items()}
    assert lanes["a"] == [place for place in both if end is None or place <= end]
    assert (page.lanes["b"], page.lanes["c"]) == (_works("b", before), _works("c", now))
    assert page.ends == ({} if end is None else {"a": end, "c": end})


@pytest.mark.anyio
async def test_the_last_one_of_a_page_that_is_noted_anew_is_in_its_place_once() -> None:
    stage = Stage()
    await stage.leader()
    ids = [await stage.submit() for _ in range(3)]
    row = await stage.store.host("local")
    assert row is not None
    ahead = Ahead(stage.store)
    (first,) = await ahead.heads("default", 1, row)
    ahead.drop([first.order])  # as with one that begins to wait for a start
    ahead.add(first)
    assert [work.order.id for work in await ahead.heads("default", 3, row)] == ids
    ahead.add(first)  # a hint that comes late
    ahead.drop([first.order])
    assert [work.order.id for work in await ahead.heads("default", 3, row)] == ids[1:]
