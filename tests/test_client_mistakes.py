"""What a caller gets wrong is said in the words that were written, before anything is sent."""

from pathlib import Path
from typing import Any

import pytest

import standby
from standby import AsyncClient, Client, ConfigError, ServerRefused, ServerUnreachable, StandbyError
from standby.cli.main import run
from standby.core.settings import NEVER_RETRIED, RETRIED_BY_DEFAULT, Reason
from tests.played import URL, Played, ok, order_view

pytestmark = pytest.mark.anyio


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No server is found from here."""
    for name in ("STANDBY_URL", "STANDBY_KEY", "STANDBY_STATE_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("nowhere")
@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_an_address_that_is_none_is_named_as_python_has_it(kind: type[Client] | type[AsyncClient]) -> None:
    with pytest.raises(ConfigError, match=r"^url=: '127\.0\.0\.1:8377' is not an address; write one like http://"):
        kind(url="127.0.0.1:8377")
    with pytest.raises(ConfigError, match=r"^key=: this is not a key"):
        kind(url=URL, key="sb_é")
    with pytest.raises(ServerUnreachable, match=r"name it with url= or STANDBY_URL$"):
        kind()


@pytest.mark.usefixtures("nowhere")
def test_the_command_line_names_its_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["orders", "list", "--url", "127.0.0.1:8377"]) == 2
    assert run(["orders", "list", "--url", URL, "--key", "sb_é"]) == 2
    assert run(["orders", "list"]) == 3
    address, key, nobody = capsys.readouterr().err.splitlines()
    assert address.startswith("standby: --url: '127.0.0.1:8377' is not an address")
    assert key.startswith("standby: --key: this is not a key")
    assert nobody.endswith("name it with --url or STANDBY_URL")


def test_whatever_a_caller_must_catch_has_its_name_in_the_package() -> None:
    assert {ConfigError, ServerRefused, ServerUnreachable} <= set(StandbyError.__subclasses__())
    for name in standby.__all__:
        assert getattr(standby, name) is not None


async def test_a_command_in_one_text_is_refused_before_it_is_sent() -> None:
    server = Played(ok(order_view(), 201))
    line: Any = "echo hi"
    words = r"""^command: give a list like \["echo", "hi"\], or \["sh", "-c", "echo hi \| wc"\] for a line """
    with server.client() as client:
        with pytest.raises(TypeError, match=words):
            client.submit(command=line)
        with pytest.raises(TypeError, match=words):
            client.submit(command=b"echo hi")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=words):
            client.add_schedule("nightly", "0 3 * * *", {"command": line})
        with pytest.raises(TypeError, match=words):
            client.change_schedule("nightly", order={"command": line})
    async with server.later() as later:
        with pytest.raises(TypeError, match=words):
            await later.submit(command=line)
    assert not server.asked


def test_what_json_cannot_say_is_refused_by_its_name() -> None:
    server = Played(ok(order_view(), 201))
    with server.client() as client:
        with pytest.raises(TypeError, match=r"^payload: Object of type \w+ is not JSON serializable$"):
            client.submit(command=["true"], payload={"file": Path()})
        with pytest.raises(ValueError, match=r"^payload: Out of range float"):
            client.submit(command=["true"], payload=float("nan"))
    assert server.asked == []


async def test_what_is_no_id_is_refused_before_it_is_sent() -> None:
    server = Played(ok(order_view()))
    none: Any = None
    number: Any = 7
    with server.client() as client:
        order: Any = client.order("x")
        for ask in (client.order, client.wait, client.cancel, client.runs, client.pool):
            with pytest.raises(TypeError, match=r"^an id or a name is a str, not NoneType$"):
                ask(none)
        with pytest.raises(TypeError, match=r"not int$"):
            client.host(number)
        with pytest.raises(TypeError, match=r"not Order: give its id$"):
            client.wait(order)
        with pytest.raises(ConfigError, match="an id or a name cannot be empty"):
            client.order("")
        with pytest.raises(TypeError, match="not NoneType"):
            next(client.logs(none, follow=True))
    async with server.later() as later:
        with pytest.raises(TypeError, match="not NoneType"):
            await later.order(none)
    assert len(server.asked) == 1


def test_a_refusal_of_many_names_the_first_of_them() -> None:
    def refused(*messages: str, detail: str = "4 of 9 cannot be taken in, so none was") -> str:
        errors = [{"field": f"orders.{index}", "message": text} for index, text in enumerate(messages)]
        body = {"code": "refused_together", "detail": detail, "what_to_do": "correct the named orders"}
        with Played(ok({**body, "errors": errors}, 422)).client() as client, pytest.raises(ServerRefused) as error:
            client.submit_many([{"command": ["true"]}], together=True)
        assert len(error.value.problem["errors"]) == len(messages)
        return str(error.value)

    said = refused("a", "b", "c", "d")
    assert said == (
        "4 of 9 cannot be taken in, so none was (orders.0: a; orders.1: b; orders.2: c; and 1 more); "
        "correct the named orders"
    )
    assert refused("a") == "4 of 9 cannot be taken in, so none was (orders.0: a); correct the named orders"
    assert refused("cannot be read", detail="orders.0: cannot be read").count("cannot be read") == 1
    assert refused(detail="none") == "none; correct the named orders"


def test_what_a_stranger_answers_as_errors_is_passed_over() -> None:
    for errors in ("text", [1, {"field": 2}, None], {"a": 1}, None):
        body = {"detail": "no", "errors": errors}
        with Played(ok(body, 400)).client() as client, pytest.raises(ServerRefused, match=r"^no$"):
            client.order("x")


def test_every_reason_is_told_and_whether_it_is_tried_again() -> None:
    text = (Path(__file__).parents[1] / "docs" / "clients.md").read_text(encoding="utf-8")
    table = text.split("| `reason` | what happened | tried again |\n|---|---|---|\n")[1].split("\n\n")[0]
    cells = [[cell.strip("`| ") for cell in line.split(" | ")] for line in table.splitlines()]
    told = {reason: again.split(";")[0] for reason, _, again in cells}
    assert set(told) == set(Reason)
    assert {reason for reason, again in told.items() if again == "yes"} == RETRIED_BY_DEFAULT
    assert {reason for reason, again in told.items() if again == "never"} == NEVER_RETRIED
