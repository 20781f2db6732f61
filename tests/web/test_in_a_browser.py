"""The page in a real browser, before a real server: what a person does and sees."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.house import House, house, until

from .browser import Page, browser, find_browser

ASKS = "document.querySelector('#key-form')?.hidden === false"
ROWS = "[...document.querySelectorAll('#orders tr')].map(row => row.innerText)"
DRAWN = """
    drawn = (frames) => new Promise((done) => requestAnimationFrame(() => done(frames < 2 || drawn(frames - 1))));
"""
"""Waits for frames."""
COUNT_ANSWERS = f"""{DRAWN}
    answers = 0;
    fetch = ((ask) => async (...all) => {{ const answer = await ask(...all); answers += 1; return answer; }})(fetch);
"""
"""Counts what the page was answered."""
HOLD_ANSWERS = f"""{DRAWN}
    held = [];
    fetch = ((ask) => async (path, ...all) => {{
      const answer = await ask(path, ...all);
      if (path.endsWith("/work-orders?limit=50")) await new Promise((go) => held.push(go));
      return answer;
    }})(fetch);
"""
"""Keeps the answers with orders of all states until they are let go."""


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    """A browser with an empty page; `.ci/run` installs one and lets no test be skipped."""
    program = find_browser()
    if program is None:
        pytest.skip("needs Chromium (Debian: apt install chromium)")
    with browser(program, tmp_path / "browser") as found:
        yield found


@pytest.fixture
def home(tmp_path: Path) -> Iterator[House]:
    house = House(tmp_path / "house", toml="[pools.default]\nslots_max = 1\n").start()
    yield house
    house.close()


def enter(page: Page, home: House, path: str = "") -> None:
    """Open a page and use the key."""
    page.open(home.url + path)
    page.until(ASKS, "it asks for a key")
    page.fill("#key-form input", home.key)
    page.press("#key-form button")
    page.until("document.querySelector('#key-form').hidden", "the key was taken")


@pytest.mark.parametrize("path", ["", "/docs"])
def test_a_wrong_key_is_said_to_be_wrong(page: Page, home: House, path: str) -> None:
    page.open(home.url + path)
    page.until(ASKS, "it asks for a key")
    page.fill("#key-form input", "sb_wrong")
    page.press("#key-form button")
    page.until("document.querySelector('#key-form .error').innerText", "the error is shown")


@pytest.mark.parametrize("path", ["", "/docs"])
def test_a_link_with_the_key_is_followed_where_the_page_is_open_already(page: Page, home: House, path: str) -> None:
    page.open(home.url + path)
    page.until(ASKS, "it asks for a key")
    page.open(f"{home.url}{path}#key={home.key}")
    page.until("document.querySelector('#key-form').hidden", "the key was taken")
    assert home.key not in page.run("location.href")


def test_an_order_is_submitted_seen_running_to_its_end_and_read(page: Page, home: House) -> None:
    enter(page, home)
    page.press("#new")
    page.fill("#form textarea", "echo hello from the page")
    page.press("#form button")
    page.until(f"{ROWS}.some(row => row.includes('completed'))", "the order is completed")
    page.until("document.querySelector('#detail').innerText.includes('hello from the page')", "its output is shown")


def test_an_order_that_waits_says_why(page: Page, home: House) -> None:
    home.submit(script="while [ ! -e ../../../go ]; do sleep 0.1; done")
    waits = home.submit(script="true")
    enter(page, home)
    page.until(f"{ROWS}.some(row => row.includes('pending'))", "one waits")
    page.press(f"#orders a[href*='{waits}']")
    page.until("document.querySelector('#detail').innerText.includes('slot')", "it names the gate")
    assert waits in page.text("#detail")
    (home.state / "hosts" / "local" / "go").touch()


def test_a_click_counts_although_something_happens_while_the_button_is_down(page: Page, home: House) -> None:
    order = home.submit("true")
    home.ended(order)
    enter(page, home)
    link = f"#orders a[href*='{order}']"
    page.until(f"document.querySelector({json.dumps(link)}) !== null", "it is listed")
    page.until("document.querySelector('#connection').className === 'live'", "it is live")
    page.run(COUNT_ANSWERS)
    place = page.hold(link)
    home.submit("true")
    page.until("answers >= 5 && drawn(2)", "what happened was read, and there was time to draw it")
    page.let_go(*place)
    page.until(f"location.hash === '#order={order}'", "the order was opened")
    page.until(f"{ROWS}.length === 2", "what happened meanwhile is shown")


def test_how_right_the_estimates_were_is_shown_with_their_pool(page: Page, home: House) -> None:
    enter(page, home)
    home.ended(home.submit("true"))
    home.ended(until(lambda: _estimated(home), "a wait is estimated"))
    page.until(f"{ROWS}.filter(row => row.includes('completed')).length >= 2", "the first of them have started")
    assert "estimated" not in page.text("#places")
    for _ in range(10):
        home.ended(until(lambda: _estimated(home), "a wait is estimated"))
    told = "[...document.querySelectorAll('#places small')].find(each => each.innerText.includes('estimated'))"
    shown = f"/^waits are usually estimated within [0-9.]+ (ms|s|min)$/.test({told}?.innerText)"
    page.until(shown, "it is shown when more of them have")
    assert "half started at most" in page.run(f"{told}.title")


def test_what_runs_take_is_shown_by_the_label_that_tells_it(page: Page, home: House) -> None:
    kinds = [("quick", ["true"]), ("slow", ["sleep", "0.6"])]
    orders = [{"labels": {"kind": kind}, "command": command} for kind, command in kinds for _ in range(10)]
    for each in home.call("POST", "/work-orders/bulk", {"orders": orders}).json()["verdicts"]:
        home.ended(each["order"]["id"])
    enter(page, home)
    shown = "/runs by kind: quick [0-9.]+ m?s, slow [0-9.]+ m?s/.test(document.querySelector('#places').innerText)"
    page.until(shown, "both kinds are told apart")


def _estimated(home: House) -> str | None:
    """An order that was told how long it will wait."""
    taken = home.call("POST", "/work-orders", {"command": ["true"]}).json()
    order_id: str = taken["id"]
    return order_id if taken["estimated_wait_ms"] is not None else None


def test_projects_that_hold_their_orders_back_are_shown(page: Page, home: House) -> None:
    places = "document.querySelector('#places').innerText"
    holder = home.submit(script="while [ ! -e ../../../go ]; do sleep 0.1; done")
    home.in_state(holder, "running")
    home.call("PATCH", "/projects/default", {"set": {"running_max": 1}})
    home.submit("true")
    for project in ("night", "free"):
        home.call("POST", "/work-orders", {"command": ["true"], "project": project})
    home.call("POST", "/projects/night/drain", {"reason": "audit"})
    enter(page, home)
    page.until(f"{places}.includes('at its limit: 1 of 1 open runs, 1 waiting')", "the one at its limit is shown")
    page.until(f"/draining by admin for [0-9]+ s: audit, 1 waiting/.test({places})", "so is the one that drains")
    assert "project free" not in page.text("#places")
    page.press("[aria-label='resume project night']")
    page.until(f"!{places}.includes('audit')", "it is open again")
    (home.state / "hosts" / "local" / "go").touch()


def test_an_order_that_waits_links_to_who_holds_its_slot_and_says_when_it_starts(page: Page, home: House) -> None:
    for _ in range(2):
        assert home.ended(home.submit("true"))["state"] == "completed"
    holder = home.submit(script="while [ ! -e ../../../go ]; do sleep 0.1; done")
    home.in_state(holder, "running")
    waiting = home.submit("true")
    enter(page, home, f"/#order={waiting}")
    gate = "document.querySelector('#detail .gate')"
    page.until(f"{gate}?.querySelector('a')?.hash === '#order={holder}'", "who holds the slot is linked")
    page.until(f"/It starts in about .* a poor guess/.test({gate}.innerText)", "when it starts is said")


def test_a_full_host_says_so_on_its_card(page: Page, tmp_path: Path) -> None:
    reading = tmp_path / "reading.json"
    reading.write_text('{"memory_total_mb": 100, "memory_available_mb": 4}')
    toml = f'[hosts.stage]\ndriver = "scripted"\nreading_file = "{reading}"\n[pools.default]\nslots_max = 1\n'
    with house(tmp_path / "full", toml=toml) as home:
        home.start()
        enter(page, home)
        says = "takes nothing new: 96% of the memory is used (limit 90%), critical for"
        page.until(f"document.querySelector('#places').innerText.includes('{says}')", "the host's card tells it")


def test_the_api_is_described_on_a_page_of_its_own(page: Page, home: House) -> None:
    enter(page, home, "/docs")
    page.until("document.body.innerText.includes('/api/v1/work-orders')", "the routes are listed")


def test_a_schedule_is_listed_and_run_now(page: Page, home: House) -> None:
    body = {"name": "hello", "cron": "0 0 1 1 *", "order": {"script": "echo hello from a schedule"}}
    assert home.call("POST", "/schedules", body).status_code == 201
    enter(page, home)
    page.until("document.querySelector('#schedules').innerText.includes('hello')", "it is listed")
    page.press("#schedules button[aria-label='run now schedule hello']")
    page.until(f"{ROWS}.some(row => row.includes('completed'))", "its order is completed")
    page.until("document.querySelector('#schedule-rows a[href*=order]') !== null", "its last tick leads to the order")
    page.press("#schedules button[aria-label='pause schedule hello']")
    page.until("document.querySelector('#schedules').innerText.includes('paused by admin')", "it says who paused it")


def test_on_a_small_screen_a_schedule_still_says_when_it_ticks_or_who_paused_it(page: Page, home: House) -> None:
    order = {"command": ["backup", "--to=" + "x" * 500]}
    for name in ("nightly", "paused"):
        assert home.call("POST", "/schedules", {"name": name, "cron": "0 0 1 1 *", "order": order}).status_code == 201
    home.call("POST", "/schedules/paused/pause", {"reason": "audit"})
    page.width(800)
    enter(page, home)
    page.until("document.querySelectorAll('#schedule-rows tr').length === 2", "both are listed")
    assert "paused by admin" in page.text("#schedules")
    assert page.run("document.querySelector('#schedule-rows time') !== null")
    assert page.run(
        "document.querySelector('#schedules').scrollWidth <= document.querySelector('#schedules').clientWidth"
    )


def test_nothing_is_said_of_orders_before_any_were_asked_for(page: Page, home: House) -> None:
    page.open(home.url)
    page.until(ASKS, "it asks for a key")
    page.run("new Promise((seen) => { onhashchange = () => seen(); location.hash = 'elsewhere'; })")
    assert not page.run("document.querySelector('#list').checkVisibility()")


def test_no_order_can_be_written_before_a_key_is_given(page: Page, home: House) -> None:
    page.open(home.url)
    page.until(ASKS, "it asks for a key")
    assert page.run("document.querySelector('#new').disabled")
    assert page.run("document.querySelector('#new').title") == "needs a key first"
    page.run("document.activeElement.blur()")
    page.run("document.body.dispatchEvent(new KeyboardEvent('keydown', {key: 'n', bubbles: true}))")
    assert page.run("document.querySelector('#form').hidden")
    page.fill("#key-form input", home.key)
    page.press("#key-form button")
    page.until("!document.querySelector('#new').disabled", "it is offered now")
    page.press("#new")
    assert not page.run("document.querySelector('#form').hidden")


def test_an_ended_order_is_run_again_once_however_often_that_is_pressed_and_opened(page: Page, home: House) -> None:
    order = home.submit("true")
    home.ended(order)
    enter(page, home, f"/#order={order}")
    again = "[...document.querySelectorAll('#detail button')].find(each => each.innerText === 'Run again')"
    page.until(f"{again} !== undefined", "it is offered")
    assert "Cancel" not in page.text("#detail .head")
    page.run(f"asked = 0; confirm = () => {{ asked += 1; return asked > 1; }}; {again}.click()")
    assert page.run("asked") == 1
    assert len(home.get("/work-orders")["orders"]) == 1
    page.run(f"{again}.click(); {again}.click()")
    page.until(f"location.hash.startsWith('#order=') && location.hash !== '#order={order}'", "the new one is opened")
    page.until(f"document.querySelector('#detail dl')?.innerText.includes({json.dumps(order)})", "it names the old one")
    assert len(home.get("/work-orders")["orders"]) == 2


def test_an_exit_is_told_with_its_code_wherever_it_is_told(page: Page, home: House) -> None:
    exits, done = home.submit(script="exit 3"), home.submit("true")
    for order in (exits, done):
        home.ended(order)
    enter(page, home, f"/#order={exits}")
    page.until(f"{ROWS}.some(row => row.includes('exit 3'))", "the list tells the code")
    timeline = "document.querySelector('#detail .timeline')?.innerText"
    page.until(f"{timeline}?.includes('failed (exit 3)')", "so does what happened")
    page.run(f"location.hash = 'order={done}'")
    page.until(f"{timeline}?.includes('completed')", "an order that went well is shown")
    assert "exit" not in page.text("#detail .timeline")


def test_a_late_answer_does_not_fill_the_list_with_orders_of_other_states(page: Page, home: House) -> None:
    home.ended(home.submit("true"))
    enter(page, home)
    page.until(f"{ROWS}.length === 1", "it is listed")
    page.run(HOLD_ANSWERS)
    page.press("#chips .all")
    page.until("held.length >= 1", "all orders are asked for, and the answer is late")
    page.press("#chips .failed")
    page.until("!document.querySelector('#empty').hidden", "none failed")
    page.run("held.forEach((go) => go()); drawn(5)")
    assert page.run(ROWS) == []


def test_whoever_pauses_a_pool_by_keyboard_can_resume_it_by_the_same_key(page: Page, home: House) -> None:
    enter(page, home)
    page.until("document.querySelector('#places button') !== null", "there is a button")
    page.run("document.querySelector('[aria-label=\"pause pool default\"]').focus(); document.activeElement.click()")
    page.until("document.querySelector('[aria-label=\"resume pool default\"]') !== null", "it is paused")
    assert page.run("document.activeElement.getAttribute('aria-label')") == "resume pool default"


def test_the_end_of_a_log_that_still_grows_leads_back(page: Page, home: House) -> None:
    order = home.submit(script="seq 5001; while [ ! -e ../../../go ]; do sleep 0.1; done")
    enter(page, home, f"/#order={order}")
    bar = "document.querySelector('#detail .bar')"
    seen = [f"{bar}?.innerText.includes('lines {lines}')" for lines in ("2 to 5001", "1 to 4999", "5000 to 5001")]
    page.until(seen[0], "the last lines are shown")
    page.run(f"{bar}.querySelectorAll('button')[0].click()")
    for number in (1, 2):
        page.until(seen[number], "the next lines are shown")
        page.run(f"[...{bar}.querySelectorAll('button')].find((each) => each.innerText === 'Next lines').click()")
    page.until(f"{bar}.innerText.includes('no more lines')", "there are no more")
    page.run(f"[...{bar}.querySelectorAll('button')].find((each) => each.innerText === 'Newest lines').click()")
    page.until(seen[0], "the last lines are shown again")
    (home.state / "hosts" / "local" / "go").touch()


def test_a_run_that_wrote_nothing_is_said_to_have_written_nothing(page: Page, home: House) -> None:
    order = home.submit("true")
    home.ended(order)
    enter(page, home, f"/#order={order}")
    page.until("document.querySelector('#detail .log')?.innerText.includes('it wrote nothing')", "it says so")


def test_a_shape_is_shown_that_a_route_leads_to_although_others_are_looked_for(page: Page, home: House) -> None:
    enter(page, home, "/docs")
    page.until("document.querySelector('#routes details') !== null", "the routes are listed")
    page.fill("#find", "/work-orders/bulk")
    page.run("document.querySelector('#routes details:not([hidden]) a[href=\"#shape-BulkBody\"]').click()")
    page.until("document.querySelector('#shape-BulkBody').checkVisibility()", "the shape is shown")


@pytest.mark.parametrize("path", ["", "/docs"])
def test_nothing_is_wider_than_a_small_screen(page: Page, tmp_path: Path, path: str) -> None:
    page.width(380)
    with house(tmp_path / "wide", toml=f"[pools.{'x' * 63}]\nslots_max = 1\n") as home:
        home.start()
        enter(page, home, path)
        page.until("document.querySelector('#places article, #routes details') !== null", "it is drawn")
        page.run("document.querySelector('#new')?.click()")
        assert page.run("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


def test_one_is_not_told_as_many(page: Page, home: House) -> None:
    order = home.submit(script="while [ ! -e ../../../go ]; do sleep 0.1; done", retry={"retries": 1})
    home.in_state(order, "running")
    # not before: a new leader lets a whole gap of its start rate pass, here a minute
    home.call("PATCH", "/pools/default", {"set": {"running_max": 1, "starts_per_minute": 1}})
    home.submit("true")
    enter(page, home, f"/#order={order}")
    limits = "at most 1 open run, at most 1 start a minute"
    page.until(f"document.querySelector('#places').innerText.includes('{limits}')", "the limits are shown")
    page.until("document.querySelector('#detail').innerText.includes('1, 1 retry left')", "so are the retries")
    page.until(f"{ROWS}.some(row => row.includes('pool default has 1 open run and may have 1'))", "so is the gate")
    (home.state / "hosts" / "local" / "go").touch()


def test_lengths_under_a_second_are_told_in_ms_as_by_the_command_line(page: Page, home: House) -> None:
    page.open(home.url)
    page.until(ASKS, "it asks for a key")
    told = page.run("import('/static/parts.js').then(({lasts}) => [0, 0.4, 180, 999.6, 1000, 125000].map(lasts))")
    assert told == ["0 s", "0 s", "180 ms", "999 ms", "1 s", "2 min"]


def test_how_long_something_lasts_is_told_anew_although_nothing_happens(page: Page, home: House) -> None:
    home.ended(home.submit("true", project="night"))
    home.call("POST", "/projects/night/pause", {"reason": "audit"})
    home.submit("true", project="night")
    enter(page, home)
    said = "(selector) => document.querySelector(selector)?.innerText.match(/paused by admin for [0-9]+ s/)?.[0]"
    for where in ("#places", "#orders"):
        first = page.until(f"({said})('{where}')", "since when it is paused is said")
        page.until(f"({said})('{where}') !== {json.dumps(first)}", "it is longer ago")


def test_an_order_of_the_page_goes_to_the_default_pool_unless_another_is_chosen(page: Page, tmp_path: Path) -> None:
    toml = "[pools.agents]\nslots_max = 1\n[pools.default]\nslots_max = 1\n"
    with house(tmp_path / "two", toml=toml) as home:
        home.start()
        enter(page, home)
        page.until("document.querySelectorAll('#places article').length === 3", "the pools are known")
        page.press("#new")
        page.fill("#form textarea", "true")
        page.press("#form button")
        page.until(f"{ROWS}.length === 1", "it was taken in")
        assert home.get("/work-orders")["orders"][0]["pool"] == "default"


def test_what_is_selected_in_an_order_stays_so_while_others_come(page: Page, home: House) -> None:
    order = home.submit("true")
    home.ended(order)
    enter(page, home, f"/#order={order}")
    page.until("document.querySelector('#detail dd') !== null", "the order is shown")
    for part in ("#detail .id", "#detail .timeline", "#detail dl"):
        before = page.run(f"{ROWS}.length")
        page.run(f"getSelection().selectAllChildren(document.querySelector('{part}'))")
        selected = page.run("getSelection().toString()")
        page.run(COUNT_ANSWERS)
        home.ended(home.submit("true"))
        page.until(f"{ROWS}.length > {before} && answers >= 8 && drawn(5)", "the list and the order were drawn anew")
        assert selected
        assert page.run("getSelection().toString()") == selected


def test_who_holds_a_slot_keeps_the_focus_while_others_come(page: Page, home: House) -> None:
    holder = home.submit(script="while [ ! -e ../../../go ]; do sleep 0.1; done")
    home.in_state(holder, "running")
    waiting = home.submit("true")
    enter(page, home, f"/#order={waiting}")
    link = f"document.querySelector('#detail .gate a[href*=\"{holder}\"]')"
    page.until(f"{link} !== null", "who holds the slot is linked")
    page.run(f"{link}.focus()")
    page.run(COUNT_ANSWERS)
    home.submit("true")
    page.until(f"{ROWS}.length === 3 && answers >= 8 && drawn(5)", "the list and the order were drawn anew")
    assert page.run(f"document.activeElement === {link}")
    (home.state / "hosts" / "local" / "go").touch()


def test_a_run_is_not_said_to_have_ended_as_the_one_before_it(page: Page, home: House) -> None:
    script = '[ "$STANDBY_ATTEMPT" != 1 ] || exit 6; while [ ! -e ../../../go ]; do sleep 0.1; done; exit 7'
    order = home.submit(script=script, retry={"retries": 1, "retry_on": ["exit"], "base_s": 0.1})
    until(lambda: home.order(order)["attempt"] == 2, "it runs again")
    home.in_state(order, "running")
    enter(page, home, f"/#order={order}")
    page.until("document.querySelector('#detail').innerText.includes('run 1 ended: exit 6')", "how run 1 ended is said")
    assert "exit" not in page.text("#orders small")
    assert "exit code" not in page.text("#detail dl")
    (home.state / "hosts" / "local" / "go").touch()
    page.until(f"{ROWS}.some(row => row.includes('exit 7'))", "how it ended is said")
    page.until("document.querySelector('#detail dl').innerText.includes('exit code')", "also among the facts")


def test_runs_that_ended_alike_are_told_once_with_their_cause(page: Page, home: House) -> None:
    script = '[ "$STANDBY_ATTEMPT" = 3 ] && exit 7; exit 6'
    order = home.submit(script=script, retry={"retries": 2, "retry_on": ["exit"], "base_s": 0.1})
    lost = home.submit("no-such-command", retry={"retries": 0})
    home.ended(order)
    home.ended(lost)
    enter(page, home, f"/#order={order}")
    runs = "[...document.querySelectorAll('#detail .runs li')].map(each => each.innerText)"
    page.until(f"{runs}.length === 2", "how they ended is told")
    assert page.run(runs) == ["runs 1 to 2 ended: exit 6", "run 3 ended: exit 7"]
    page.run(f"location.hash = 'order={lost}'")
    page.until(f"{runs}.length === 1", "so is how the other one did")
    assert page.run(runs) == ["run 1 ended: start_failed: no such command: no-such-command"]
