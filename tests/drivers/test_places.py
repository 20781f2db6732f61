"""Directories that serve again: only ever one that is as good as new."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from standby.drivers.keeper.places import Places


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of a keeper, which works with relative paths."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir(0o700)
    return tmp_path


def link_elsewhere(run: Path) -> None:
    """The run's directory is another one now, with files that are named like ours."""
    run.rename(run.with_name("moved"))
    run.symlink_to("victim")


def work_is_a_file(run: Path) -> None:
    (run / "work").rmdir()
    (run / "work").touch()


def work_is_a_link(run: Path) -> None:
    (run / "work").rmdir()
    (run / "work").symlink_to("/tmp")


TRICKS: dict[str, Callable[[Path], object]] = {
    "a file left in work": lambda run: (run / "work/left").touch(),
    "a hidden file left": lambda run: (run / ".left").touch(),
    "work open to all": lambda run: (run / "work").chmod(0o777),
    "all of it open to all": lambda run: run.chmod(0o755),
    "special bits": lambda run: (run / "work").chmod(0o5700),
    "work is a file": work_is_a_file,
    "work is a link": work_is_a_link,
    "work is gone": lambda run: (run / "work").rmdir(),
    "an output file is a directory": lambda run: (run / "stdout").mkdir(),
    "a link to elsewhere": link_elsewhere,
}


@pytest.mark.parametrize("trick", TRICKS)
def test_a_directory_that_was_changed_does_not_serve_again(home: Path, trick: str) -> None:
    places = Places()
    places.make("victim")
    (home / "runs/victim/stdout").write_text("precious")
    places.make("o-1")
    TRICKS[trick](home / "runs/o-1")
    places.clear("o-1")
    assert os.listdir("spare") == []
    assert not os.path.lexists("runs/o-1")
    assert (home / "runs/victim/stdout").read_text() == "precious"


@pytest.mark.parametrize("trick", [name for name in TRICKS if "link to" not in name])
def test_a_spare_that_is_not_clean_is_never_handed_out(home: Path, trick: str) -> None:
    before = Places()
    before.make("o-1")
    before.clear("o-1")
    (spare,) = (home / "spare").iterdir()
    TRICKS[trick](spare)
    Places().make("o-2")
    assert_as_new(home / "runs/o-2")
    assert os.listdir("spare") == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("part", ["", "work"])
def test_a_directory_that_belongs_to_another_user_does_not_serve_again(home: Path, part: str) -> None:
    places = Places()
    places.make("o-1")
    os.chown(home / "runs/o-1" / part, 65534, 65534)
    places.clear("o-1")
    assert os.listdir("spare") == []


def test_a_link_among_the_spares_is_never_handed_out(home: Path) -> None:
    (home / "spare").mkdir()
    (home / "else/work").mkdir(parents=True)
    (home / "spare/link").symlink_to(home / "else")
    Places().make("o-1")
    assert_as_new(home / "runs/o-1")


def test_a_directory_left_by_a_keeper_that_died_while_making_it_is_in_nobodys_way(home: Path) -> None:
    places = Places()
    places.make("tidy")
    places.clear("tidy")
    (home / "runs/half").mkdir()
    places.clear("half")
    assert len(os.listdir("spare")) == 1
    assert os.listdir("runs") == []


@pytest.mark.parametrize("damage", ["missing", "file"])
def test_without_a_place_for_spares_every_directory_is_made_anew(home: Path, damage: str) -> None:
    places = Places()
    (home / "spare").rmdir()
    if damage == "file":
        (home / "spare").touch()
        places = Places()
    for name in ("a", "b"):
        places.make(name)
        assert_as_new(home / "runs" / name)
        places.clear(name)
    assert os.listdir("runs") == []


def assert_as_new(run: Path) -> None:
    assert run.is_dir()
    assert not run.is_symlink()
    assert os.listdir(run) == ["work"]
    assert os.listdir(run / "work") == []
    assert {run.stat().st_mode & 0o7777, (run / "work").stat().st_mode & 0o7777} == {0o700}
