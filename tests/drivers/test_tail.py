"""Reading output files: nothing is lost, nothing comes twice."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from standby.drivers.contract import LogPiece, Seen
from standby.drivers.tail import LINE_MAX, READ_MAX, tail

from .rigs import ProcessRig, place, script, start_of, until, wait_for


def read_all(folder: Path, cursor: str = "") -> tuple[list[tuple[str, str]], str]:
    """Everything up to the close, piece by piece."""
    lines: list[tuple[str, str]] = []
    for _ in range(1000):
        piece = tail(folder, "r", cursor, over=True, now=5)
        lines += [(line.stream, line.text) for line in piece.lines]
        cursor = piece.cursor
        if piece.closed:
            return lines, cursor
    raise AssertionError("never closed")


def texts(piece: LogPiece) -> list[str]:
    return [line.text for line in piece.lines]


def test_only_whole_lines_are_given_while_it_runs(tmp_path: Path) -> None:
    (tmp_path / "stdout").write_bytes(b"one\ntw")
    piece = tail(tmp_path, "r", "", over=False, now=5)
    assert (texts(piece), piece.cursor, piece.closed) == (["one"], "4,0", False)
    (tmp_path / "stdout").write_bytes(b"one\ntwo\nthree")
    piece = tail(tmp_path, "r", piece.cursor, over=False, now=5)
    assert (texts(piece), piece.cursor) == (["two"], "8,0")
    piece = tail(tmp_path, "r", piece.cursor, over=True, now=5)
    assert (texts(piece), piece.closed) == (["three"], True)


def test_a_run_without_files_is_closed_when_it_is_over(tmp_path: Path) -> None:
    assert not tail(tmp_path, "r", "", over=False, now=5).closed
    assert tail(tmp_path, "r", "", over=True, now=5).closed


def test_an_overlong_line_is_split_between_letters(tmp_path: Path) -> None:
    line = "x" + "ü" * LINE_MAX
    (tmp_path / "stdout").write_text(line + "\nend\n")
    lines, _ = read_all(tmp_path)
    assert "".join(text for _, text in lines[:-1]) == line
    assert all(len(text.encode()) <= LINE_MAX for _, text in lines)
    assert lines[-1] == ("stdout", "end")


def test_bytes_that_are_no_text_are_replaced(tmp_path: Path) -> None:
    (tmp_path / "stderr").write_bytes(b"a\xffb\n")
    assert read_all(tmp_path)[0] == [("stderr", "a\ufffdb")]


def test_one_call_is_bounded_and_neither_stream_starves(tmp_path: Path) -> None:
    (tmp_path / "stdout").write_bytes(b"line\n" * READ_MAX)
    (tmp_path / "stderr").write_bytes(b"error\n")
    piece = tail(tmp_path, "r", "", over=True, now=5)
    assert sum(len(line.text) + 1 for line in piece.lines) <= READ_MAX + 6
    assert piece.lines[-1].text == "error"
    assert not piece.closed


@given(st.lists(st.text(st.characters(exclude_characters="\n", codec="utf-8")), min_size=1), st.integers(0, 500))
def test_reading_in_two_steps_gives_what_reading_at_once_gives(
    tmp_path_factory: pytest.TempPathFactory, wanted: list[str], cut: int
) -> None:
    folder = tmp_path_factory.mktemp("run")
    data = "".join(line + "\n" for line in wanted).encode()
    (folder / "stdout").write_bytes(data[:cut])
    first = tail(folder, "r", "", over=False, now=5)
    (folder / "stdout").write_bytes(data)
    rest, _ = read_all(folder, first.cursor)
    assert texts(first) + [text for _, text in rest] == wanted


@pytest.mark.anyio
async def test_output_of_a_real_run_is_resumed_by_another_server_and_keeper(keeper: ProcessRig) -> None:
    slot, go = await place(keeper.driver), keeper.directory / "go"
    text = f"echo one; echo two >&2; until [ -e {go} ]; do sleep 0.02; done; printf 'three\\nfour'"
    await keeper.driver.start(slot, start_of(slot, "o", script(text)))
    await until(lambda: (keeper.directory / "runs/o-1/stderr").read_bytes() != b"")
    (first,) = await keeper.driver.logs({"o-1": ""})
    assert ([(line.stream, line.text) for line in first.lines], first.closed) == (
        [("stdout", "one"), ("stderr", "two")],
        False,
    )
    await keeper.driver.close()
    await keeper.kill_keeper()
    server = keeper.another_driver()
    go.touch()
    await wait_for(keeper, server, slot, "o-1", Seen.STOPPED)
    (rest,) = await server.logs({"o-1": first.cursor})
    assert (texts(rest), rest.closed) == (["three", "four"], True)
