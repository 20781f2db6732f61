"""What nobody should send: requests that are read and refused, and bytes that are hardly HTTP."""

import json
import random
from collections.abc import Iterator
from typing import Any, NamedTuple

SECRET = "xyzzy-secret-"
ORDERS = "/api/v1/work-orders"
READ = ("", "/why", "/runs", "/events", "/logs")


class Hostile(NamedTuple):
    """Bytes for a connection; a readable one must be answered with a problem, on a connection that stays."""

    sent: bytes
    readable: bool


def requests(key: str, count: int, seed: int) -> Iterator[Hostile]:
    """So many malformed requests, the same ones for the same seed."""
    chance = random.Random(seed)
    for number in range(count):
        secret = f"{SECRET}{number:05}"
        if number % 8 == 7:
            yield Hostile(chance.choice(_broken(key, secret, chance)), False)
        else:
            yield Hostile(_refused(key, secret, chance), True)


def request(method: str, target: str, key: str | None, body: bytes = b"", **headers: str) -> bytes:
    """A request that can be read."""
    named = {"Host": "x", "Content-Length": str(len(body)), **{k.replace("_", "-"): v for k, v in headers.items()}}
    if key is not None:
        named["Authorization"] = f"Bearer {key}"
    head = "".join(f"{name}: {value}\r\n" for name, value in named.items())
    return f"{method} {target} HTTP/1.1\r\n{head}\r\n".encode("latin-1") + body


def _refused(key: str, secret: str, chance: random.Random) -> bytes:
    good = {"command": ["true"], "env": {"TOKEN": secret}}
    plain = json.dumps(good).encode()
    odd = chance.choice(["x" * 300, "%00", "..%2f..", "%ff%fe", "-1", "a'%20OR%20'1", "0" * 26, "%F0%9F%92%A9"])
    match chance.randrange(10):
        case 0:
            return request("POST", ORDERS, key, chance.choice(_texts(plain, chance)), Content_Type="application/json")
        case 1 | 2:
            body = json.dumps(_spoilt(good, chance)).encode()
            return request("POST", ORDERS, key, body, Content_Type="application/json", Idempotency_Key=secret[-9:])
        case 3:
            kind = chance.choice(["text/plain", "application/xml", "multipart/form-data; boundary=x", "", "json", "é"])
            return request("POST", ORDERS, key, plain, Content_Type=kind)
        case 4:
            name = chance.choice(["", "é", "k" * 256, "a\tb"])
            return request("POST", ORDERS, key, plain, Content_Type="application/json", Idempotency_Key=name)
        case 5:
            wrong = chance.choice([None, "", "sb_" + secret, key[:-1], key + "x", "é" * 20, f"{key} {key}"])
            return request("POST", ORDERS, wrong, plain, Content_Type="application/json")
        case 6:
            method = chance.choice(["DELETE", "PUT", "PATCH", "TRACE", "OPTIONS", "PROPFIND"])
            return request(method, ORDERS, key, plain, Content_Type="application/json")
        case 7:
            return request("GET", f"{ORDERS}/{odd}{chance.choice(READ)}", key)
        case 8:
            return request("GET", f"{chance.choice(_queries(odd))}", key)
        case _:
            body = chance.choice(_bulks(plain, chance))
            verb = chance.choice(["bulk", "cancel", "purge", "rerun"])
            return request("POST", f"{ORDERS}/{verb}", key, body, Content_Type="application/json")


def _texts(plain: bytes, chance: random.Random) -> list[bytes]:
    """Bodies that are no JSON, or none that can be meant."""
    cut = chance.randrange(1, len(plain))
    return [
        *(b"", b" ", b"null", b"[]", b"1e999", b"NaN", b'"', b"{", b"\xff\xfe", b"\0", plain[:cut], plain + b"}"),
        *(b"[" * 50_000, b'{"a":' * 50_000, b'{"payload":' + b"[" * 5_000 + b"]" * 5_000 + b',"command":["true"]}'),
        plain.replace(b"true", b"\xc3\x28"),
        plain.replace(b'"true"', b'"\\u0000"'),
        plain.replace(b'"true"', b'"\\ud800"'),
        plain[:-1] + b',"priority":' + b"9" * 5_000 + b"}",
        plain[:-1] + b',"payload":NaN}',
    ]


def _spoilt(good: dict[str, Any], chance: random.Random) -> Any:
    """A good order with one thing wrong."""
    odd = chance.choice([-1, 1.5, 10**30, "", "x\0", "x" * 400, [], {}, [None], True, {"a": {"b": 1}}, "\u202e"])
    field = chance.choice(["pool", "project", "dedupe_key", "labels", "retry", "not_before", "rerun_of"])
    wrong: dict[str, Any] = {
        "pool": odd if odd != "" else "nowhere",
        "project": odd,
        "dedupe_key": odd if not isinstance(odd, str) or "\0" in odd or not 0 < len(odd) < 256 else 1,
        "labels": odd if odd != {} else {"": "x"},
        "retry": odd if odd != {} else {"retries": -1},
        "not_before": odd if odd != "" else "yesterday",
        "rerun_of": odd,
    }
    ways: list[Any] = [
        {**good, field: wrong[field]},
        {**good, "unknown": 1},
        {**good, "script": "true"},
        {**good, "command": []},
        {**good, "command": ["true\0"]},
        {**good, "env": {"1 bad": good["env"]["TOKEN"]}},
        {**good, "env": good["env"]["TOKEN"]},
        {**good, "env": {"TOKEN": [good["env"]["TOKEN"]]}},
        {**good, "memory_mb": 2**60},
        {"env": good["env"]},
        [good],
    ]
    return chance.choice(ways)


def _queries(odd: str) -> list[str]:
    return [
        f"{ORDERS}?cursor={odd}x",
        f"{ORDERS}?limit=0",
        f"{ORDERS}?limit={'9' * 5_000}",
        f"{ORDERS}?state=sleeping",
        f"{ORDERS}?label={odd}",
        f"/api/v1/events?after={odd}x",
        f"/api/v1/events/stream?after={odd}x",
        "/api/v1/events?kind=nothing",
        f"/api/v1/pools/{odd}",
        f"/api/v1/{odd}",
        f"/{odd}",
    ]


def _bulks(plain: bytes, chance: random.Random) -> list[bytes]:
    wrong = json.dumps(_spoilt(json.loads(plain), chance)).encode()
    return [
        b"{}",
        b'{"filter":{}}',
        b'{"orders":[]}',
        b'{"orders":[' + plain + b"," + wrong + b'],"together":true}',
        b'{"orders":{"a":' + plain + b"}}",
        b'{"filter":{"ids":"' + plain[:3] + b'"}}',
        b'{"filter":{"pool":"default"},"cursor":"x"}',
        b'{"orders":[' + b"1," * 2_000 + b"1]}",
    ]


def _broken(key: str, secret: str, chance: random.Random) -> list[bytes]:
    """Bytes that no HTTP library sends."""
    body = json.dumps({"command": ["true"], "env": {"TOKEN": secret}}).encode()
    whole = request("POST", ORDERS, key, body, Content_Type="application/json")
    head, _, _ = whole.partition(b"\r\n\r\n")
    long = head.replace(b"Content-Length: ", b"Content-Length: 9")
    free = head.replace(f"Content-Length: {len(body)}\r\n".encode(), b"")
    return [
        *(
            b"\0" * 100,
            b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03",
            b"GET\r\n\r\n",
            b"\r\n" * 1_000,
            chance.randbytes(300),
        ),
        *(chance.randbytes(300), whole[: chance.randrange(1, len(whole))], head, long + b"\r\n\r\n" + body),
        *(b"GET / HTTP/9.9\r\n\r\n", b"GET / HTTP/1.1\r\nHost x\r\n\r\n", b"GET  / /  HTTP/1.1\r\n\r\n"),
        *(
            b"CONNECT x:1 HTTP/1.1\r\n\r\n",
            b"GET http://[ HTTP/1.1\r\nHost: x\r\n\r\n",
            b"GET /\xff\xfe HTTP/1.1\r\n\r\n",
        ),
        free + b"\r\nContent-Length: -1\r\n\r\n" + body,
        free + b"\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n" + body,
        free + b"\r\nContent-Length: " + b"9" * 40 + b"\r\n\r\n" + body,
        free + b"\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n" + body,
        free + b"\r\nTransfer-Encoding: chunked\r\n\r\n" + f"{len(body) + 9:x}".encode() + b"\r\n" + body,
        head + b"\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        head + b"\r\nX: \0\r\n\r\n" + body,
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n",
        free + b"\r\nX: " + b"a" * 300_000,
        free + (b"\r\nX" * 30_000),
    ]
