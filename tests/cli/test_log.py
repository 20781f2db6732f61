"""What the server says to its operator."""

import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from standby import log


@pytest.fixture
def out() -> Iterator[io.StringIO]:
    text = io.StringIO()
    log.set_up("instance-1", out=text)
    yield text
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()


def test_records_are_json_lines_with_the_instance_when_nobody_watches(out: io.StringIO) -> None:
    structlog.get_logger().info("leads_host", host="local")
    record = json.loads(out.getvalue())
    assert (record["event"], record["host"], record["instance"]) == ("leads_host", "local", "instance-1")


def test_fields_named_like_secrets_and_local_variables_never_reach_the_log(out: io.StringIO) -> None:
    hidden = "hunter2"
    try:
        raise RuntimeError("broken")
    except RuntimeError as error:
        structlog.get_logger().error("failed", exc_info=error, env={"A": hidden}, token=hidden, key=hidden)
    assert "broken" in out.getvalue()
    assert hidden not in out.getvalue()


def test_errors_of_the_http_server_go_the_same_way_and_requests_are_not_logged(out: io.StringIO) -> None:
    logging.getLogger("uvicorn.error").error("it broke")
    logging.getLogger("uvicorn.access").info("GET /?key=hunter2")
    (line,) = out.getvalue().splitlines()
    assert json.loads(line)["event"] == "it broke"
