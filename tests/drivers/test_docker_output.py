"""The output of containers: each line once, with its stream and time, whoever reads it and from where."""

import anyio
import pytest

from standby.drivers.contract import LogLine, LogPiece, Seen
from standby.drivers.docker import DockerDriver
from standby.drivers.docker.output import LINE_MAX, Reader

from .docker_rig import DockerRig, beside, lines, output, run
from .rigs import now_ms, place, script, start_of, wait_for

pytestmark = [pytest.mark.anyio, pytest.mark.docker]


def entry(stream: int, at: str, text: str) -> bytes:
    """As the engine sends it."""
    body = f"2026-01-01T00:00:{at}Z {text}".encode()
    return bytes([stream, 0, 0, 0]) + len(body).to_bytes(4, "big") + body


def texts(lines: list[LogLine]) -> list[str]:
    return [line.text for line in lines]


async def test_lines_have_their_stream_and_their_time(tier: DockerRig) -> None:
    before = now_ms()
    await run(tier, script("echo out; echo err >&2"))
    found = await lines(tier.driver)
    assert {(line.stream, line.text) for line in found} == {("stdout", "out"), ("stderr", "err")}
    assert all(before - 1 <= line.at <= now_ms() for line in found)


async def test_a_live_run_is_followed(tier: DockerRig) -> None:
    slot = await place(tier.driver)
    waits = script("echo one; while [ ! -e /tmp/go ]; do sleep 0.05; done; echo two")
    await tier.driver.start(slot, start_of(slot, "o", waits))
    (_, cursor) = await _until_read(tier, "", ["one"])
    beside(tier, tier.containers()[0]["Id"], "/bin/touch", "/tmp/go")
    await _until_read(tier, cursor, ["two"])


async def _until_read(rig: DockerRig, cursor: str, wanted: list[str]) -> tuple[list[str], str]:
    found: list[str] = []
    with anyio.fail_after(20):
        while found != wanted:
            (piece,) = await rig.driver.logs({"o-1": cursor})
            found += texts(list(piece.lines))
            cursor = piece.cursor
            await anyio.sleep(0.01)
    return found, cursor


async def test_readers_that_change_in_the_middle_lose_and_double_nothing(tier: DockerRig) -> None:
    many = 2_500
    slot = await place(tier.driver)
    halfway = f"[ $i -ne {many // 2} ] || while [ ! -e /tmp/go ]; do sleep 0.05; done"
    loop = f"i=0; while [ $i -lt {many} ]; do {halfway}; echo $i; echo $i >&2; i=$((i+1)); done"
    await tier.driver.start(slot, start_of(slot, "o", script(loop)))
    found: list[LogLine] = []
    cursor, closed = "", False
    with anyio.fail_after(60):
        while not closed:
            reader = tier.another_driver()  # each one begins where the one before it ended
            piece = await _until_more(reader, cursor)
            await reader.close()
            if not found:
                beside(tier, tier.containers()[0]["Id"], "/bin/touch", "/tmp/go")
            found += piece.lines
            cursor, closed = piece.cursor, piece.closed
    for stream in ("stdout", "stderr"):
        assert [int(line.text) for line in found if line.stream == stream] == list(range(many))


async def _until_more(reader: DockerDriver, cursor: str) -> LogPiece:
    while True:
        (piece,) = await reader.logs({"o-1": cursor})
        if piece.lines or piece.closed:
            return piece
        cursor = piece.cursor
        await anyio.sleep(0.001)


async def test_long_lines_and_a_last_line_without_its_end_are_whole(tier: DockerRig) -> None:
    await run(tier, script("head -c 40000 /dev/zero | sed 's/./x/g' | tr '\\0' x; echo; printf end"))
    first, last = await output(tier)
    assert (len(first), last) == (40_000, "end")


async def test_what_a_live_container_says_beside_its_runs_is_not_theirs(running: DockerRig) -> None:
    slot = await place(running.driver)
    beside(running, slot.incarnation, "/bin/sh", "-c", "echo noise >/proc/1/fd/1")
    await running.driver.start(slot, start_of(slot, "o", script("echo mine")))
    await wait_for(running, running.driver, slot, "o-1")
    beside(running, slot.incarnation, "/bin/sh", "-c", "echo more noise >/proc/1/fd/2")
    assert await output(running) == ["mine"]


async def test_the_last_words_of_a_killed_exec_are_kept(running: DockerRig) -> None:
    slot = await place(running.driver)
    assert slot.incarnation is not None
    await running.driver.start(slot, start_of(slot, "o", script("echo begun; sleep 600")))
    await wait_for(running, running.driver, slot, "o-1", Seen.READY)
    await running.wait(lambda: _said(running, "begun"))
    await running.driver.stop(slot, "o-1", slot.incarnation, force=True, epoch=1)
    await wait_for(running, running.driver, slot, "o-1")
    assert await output(running) == ["begun"]


async def _said(rig: DockerRig, text: str) -> bool:
    with rig.engine.client() as client:
        said = client.get(f"/containers/{rig.containers()[0]['Id']}/logs", params={"stdout": 1})
        return text in said.text


def test_entries_of_one_moment_are_counted() -> None:
    reader = Reader("", "o-1", shared=False)
    data = [entry(1, "01.000000001", f"{number}\n") for number in range(4)]
    assert texts(list(reader.feed(b"".join(data[:2])))) == ["0", "1"]
    again = Reader(reader.cursor, "o-1", shared=False)
    assert texts(list(again.feed(b"".join(data)))) == ["2", "3"]


def test_a_line_of_the_other_stream_may_come_late() -> None:
    reader = Reader("", "o-1", shared=False)
    assert texts(list(reader.feed(entry(2, "02.000000005", "young\n")))) == ["young"]
    again = Reader(reader.cursor, "o-1", shared=False)
    assert float(again.since) < 1767225602.0
    late = entry(2, "02.000000005", "young\n") + entry(1, "02.000000004", "old\n")
    assert texts(list(again.feed(late))) == ["old"]


def test_pieces_of_a_line_are_put_together_and_counted_when_it_is_whole() -> None:
    reader = Reader("", "o-1", shared=False)
    half = entry(1, "01.000000001", "a" * 10)
    assert list(reader.feed(half[:5])) == list(reader.feed(half[5:])) == []
    assert reader.cursor == ""
    other = entry(2, "01.000000002", "between\n")
    assert texts(list(reader.feed(other + entry(1, "01.000000003", "b\n")))) == ["between", "a" * 10 + "b"]


def test_a_line_without_end_comes_in_parts() -> None:
    reader = Reader("", "o-1", shared=False)
    parts = [entry(1, f"01.00000000{number}", "x" * 16_384) for number in range(5)]
    found = list(reader.feed(b"".join(parts)))
    assert [len(line.text) for line in found] == [LINE_MAX]
    again = Reader(reader.cursor, "o-1", shared=False)
    assert [len(line.text) for line in [*again.feed(b"".join(parts)), *again.last()]] == [16_384]
