"""Rules of the house that can be read from the source."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from standby.core.model import EventKind

ROOT = Path(__file__).parents[1]
SRC = ROOT / "src" / "standby"
TESTS = ROOT / "tests"
FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 400
LONGER = {"core/model.py": 520, "core/lifecycle.py": 435, "config/model.py": 420, "store/contract.py": 410}
"""Every noun on one page, every change, every setting, and everything a store promises."""
BANNED = re.compile(r"(Manager|Service|Helper|Util|Utils|Handler)$|^(manager|service|helper|util|utils|handler)s?$")
CORE_MAY_IMPORT = {
    "collections",
    "collections.abc",
    "bisect",
    "datetime",
    "enum",
    "functools",
    "heapq",
    "itertools",
    "math",
    "operator",
    "typing",
    "msgspec",
    "msgspec.structs",
    "hashlib",
    "msgspec.json",
}
POLLS = re.compile(r"_?(until|wait|poll|eventually)")
"""Functions of tests that ask again and again, until a condition holds or a deadline passes."""
SETTLED_TOGETHER = {
    # `finish` decides among four ends of a run; two of them have another way there, without a run
    EventKind.ORDER_FAILED: {"finish", "expire"},
    EventKind.ORDER_CANCELLED: {"finish", "cancel"},
    EventKind.SLOT_CREATING: {"create", "recreate"},
}
NAMED_ON_PURPOSE = {".ci/run": "description="}
"""Where a file beside the project is looked for that a newcomer does not have, and how that line begins."""
NOT_OURS = {".git", ".venv", ".venvs", ".standby", "dist", "build", "results", ".hypothesis", "mutants"}
CACHES = re.compile(r"__pycache__|\..*_cache$")


def python_files(*folders: Path) -> list[Path]:
    return sorted(path for folder in folders for path in folder.rglob("*.py") if ".venvs" not in path.parts)


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def functions(module: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(module) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def calls(node: ast.AST, name: str) -> list[ast.Call]:
    found = [each for each in ast.walk(node) if isinstance(each, ast.Call)]
    return [call for call in found if ast.unparse(call.func).rpartition(".")[2] == name]


def text_files() -> Iterator[Path]:
    """Everything that may be committed."""
    folders = [ROOT]
    while folders:
        for path in folders.pop().iterdir():
            if path.name in NOT_OURS or CACHES.search(path.name) or path.is_symlink():
                continue
            if path.is_dir():
                folders.append(path)
            elif path.suffix not in {".png", ".ico", ".pyc", ".woff2"}:
                yield path


def shown(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_no_function_is_longer_than_the_hard_stop() -> None:
    lengths = {
        f"{shown(path)}:{node.name}": (node.end_lineno or 0) - node.lineno + 1
        for path in python_files(SRC, TESTS, ROOT / "tools", ROOT / "bench")
        for node in functions(tree(path))
    }
    assert {name: lines for name, lines in lengths.items() if lines > FUNCTION_LINES_MAX} == {}


def test_no_source_file_is_too_long() -> None:
    lengths = {path.relative_to(SRC).as_posix(): len(path.read_text().splitlines()) for path in python_files(SRC)}
    assert {name: lines for name, lines in lengths.items() if lines > LONGER.get(name, FILE_LINES_MAX)} == {}


def test_nothing_is_called_after_a_layer() -> None:
    classes = [
        f"{shown(path)}:{node.name}"
        for path in python_files(SRC, TESTS)
        for node in ast.walk(tree(path))
        if isinstance(node, ast.ClassDef) and BANNED.search(node.name)
    ]
    assert classes + [shown(path) for path in python_files(SRC, TESTS) if BANNED.search(path.stem)] == []


def test_every_module_says_what_it_is_for() -> None:
    silent = [
        shown(path)
        for path in python_files(SRC)
        if path.name != "__init__.py" and ast.get_docstring(tree(path)) is None
    ]
    assert silent == []


def test_the_core_imports_nothing_but_itself_and_pure_modules() -> None:
    foreign = set()
    for path in python_files(SRC / "core"):
        for node in ast.walk(tree(path)):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            foreign |= {name for name in names if name not in CORE_MAY_IMPORT and not name.startswith("standby.core")}
    assert foreign == set()


def test_the_core_is_not_async() -> None:
    waiting = [shown(path) for path in python_files(SRC / "core") if re.search(r"\b(async|await)\b", path.read_text())]
    assert waiting == []


def test_the_core_asks_for_no_time() -> None:
    clock = re.compile(r"\.(now|today|utcnow|monotonic|time|time_ns)\(")
    asking = [shown(path) for path in python_files(SRC / "core") if clock.search(path.read_text())]
    assert asking == []


def test_no_test_sleeps_to_wait() -> None:
    sleepers = []
    for path in python_files(TESTS):
        module = tree(path)
        polls = [node for node in functions(module) if POLLS.match(node.name)]
        allowed = [call for node in polls for call in calls(node, "sleep")]
        waiting = [call for call in calls(module, "sleep") if call not in allowed and _waits(call)]
        sleepers += [f"{shown(path)}:{call.lineno}" for call in waiting]
    assert sleepers == []


def _waits(call: ast.Call) -> bool:
    """`sleep(0)` only lets others go first."""
    return not (call.args and isinstance(call.args[0], ast.Constant) and call.args[0].value == 0)


@pytest.mark.parametrize("kind", EventKind)
def test_every_event_is_produced_by_exactly_one_change(kind: EventKind) -> None:
    makers = {
        node.name
        for path in python_files(SRC / "core")
        for node in functions(tree(path))
        if any(isinstance(each, ast.Attribute) and ast.unparse(each) == f"K.{kind.name}" for each in ast.walk(node))
    }
    assert makers == SETTLED_TOGETHER.get(kind, makers)
    assert len(makers) == len(SETTLED_TOGETHER.get(kind, {"one"})), makers


def test_no_file_names_this_machine_or_a_registry() -> None:
    private = re.compile("/(work|root)/|/home/" + r"[a-z]|\.\./shared|pypi\." + "org|files\\.python" + "hosted")
    named = [
        f"{shown(path)}:{number}"
        for path in text_files()
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1)
        if private.search(line) and not line.startswith(NAMED_ON_PURPOSE.get(shown(path), line + "?"))
    ]
    assert named == []


def test_nothing_is_left_to_be_done_later() -> None:
    later = re.compile(r"\b(TO" + "DO|FIX" + r"ME|XX" + r"X)\b")
    found = [shown(path) for path in text_files() if later.search(path.read_text(encoding="utf-8", errors="replace"))]
    assert found == []
