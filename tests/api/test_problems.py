"""A refusal names the nearest right thing."""

from typing import Any

import pytest

from standby.api.problems import cut
from standby.core.model import EventKind
from tests.api.house import House

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("path", "detail"),
    [
        ("/work-orders?state=faild", "state: there is no state 'faild'; did you mean failed?"),
        ("/work-orders?limit=201", "limit: 200 at most"),
        ("/work-orders?limit=0", "limit: 1 at least"),
        ("/work-orders?stat=failed", "stat: unknown parameter; did you mean state?"),
        ("/work-orders?labels=a=b", "labels: unknown parameter; did you mean label?"),
        ("/events?kind=order.fialed", "kind: there is no kind 'order.fialed'; did you mean order.failed?"),
        ("/events?since=1", "since: unknown parameter; known are after, kind, limit, newest, subject"),
        ("/events?limit=1001", "limit: 1000 at most"),
        ("/slots?pol=a", "pol: unknown parameter; did you mean pool?"),
    ],
)
async def test_a_query_is_told_what_was_probably_meant(home: House, path: str, detail: str) -> None:
    answer = await home.get(path)
    assert (answer.status_code, answer.json()["detail"]) == (422, detail)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"run_timeout": 5}, "run_timeout: unknown field; did you mean run_timeout_s?"),
        ({"retries": 5}, "retries: unknown field; did you mean retry.retries?"),
        ({"max_retries": 5}, "max_retries: unknown field; did you mean retry.retries?"),
        ({"retry": {"base": 5}}, "retry.base: unknown field; did you mean base_s?"),
        ({"retry": {"retry_on": ["exti"]}}, "retry.retry_on.0: there is no reason 'exti'; did you mean exit?"),
        ({"priority": 10**7}, "priority: 1000000 at most"),
    ],
)
async def test_an_order_is_told_what_was_probably_meant(home: House, body: Any, said: str) -> None:
    answer = await home.post("/work-orders", {"command": ["true"], **body})
    assert (answer.status_code, answer.json()["detail"]) == (422, said)
    (verdict,) = (await home.post("/work-orders/bulk", {"orders": [{"command": ["true"], **body}]})).json()["verdicts"]
    assert verdict["problem"]["detail"] == said


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"set": {"slotsmax": 5}}, "set.slotsmax: unknown setting; did you mean slots_max?"),
        ({"slots_max": 5}, "slots_max: unknown field; did you mean set.slots_max?"),
        ({"unset": ["slotsmax"]}, "unset.0: there is no setting 'slotsmax'; did you mean slots_max?"),
    ],
)
async def test_a_setting_is_told_what_was_probably_meant(home: House, body: Any, said: str) -> None:
    answer = await home.http.patch("/api/v1/pools/default", json=body)
    assert (answer.status_code, answer.json()["detail"]) == (422, said)


async def test_a_filter_is_told_what_was_probably_meant(home: House) -> None:
    answer = await home.post("/work-orders/cancel", {"filter": {"state": ["runing"], "lables": {}}})
    assert answer.json()["detail"] == (
        "filter.state.0: there is no state 'runing'; did you mean running?; "
        "filter.lables: unknown field; did you mean labels?"
    )


async def test_where_nothing_is_near_the_fields_of_that_level_are_named(home: House) -> None:
    said = (await home.post("/work-orders", {"command": ["true"], "xyzzy": 1})).json()["detail"]
    known = said.removeprefix("xyzzy: unknown field; known are ").split(", ")
    assert {"command", "retry"} <= set(known)
    assert not {"retries", "base_s"} & set(known), "these are in retry"


async def test_a_value_that_is_near_nothing_is_not_repeated_because_it_may_be_a_secret(home: House) -> None:
    answer = await home.get("/work-orders?state=xyzzy-plugh")
    assert "xyzzy" not in answer.text
    assert answer.json()["detail"].startswith("state: there is no such state; known are cancelled, completed, ")
    kinds = (await home.get("/events?kind=xyzzy-plugh")).json()["detail"]
    assert kinds.endswith(max(EventKind)), "no text is cut within a word, or where all of it has room"


def test_a_text_that_is_too_long_is_cut_between_words() -> None:
    assert cut("one two three", 13) == "one two three"
    assert cut("one two three", 12) == "one two …"
    assert cut("x" * 20, 5) == "xxxxx …"
