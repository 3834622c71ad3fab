"""One message as every protocol has it, whoever sent it; and what its body is by a schema."""

import asyncio
import base64
import datetime
import io
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pytest

from tests.console.browser import Watched, browser, needs_chromium
from tests.console.traffic import busy
from tests.gateways.http.live import http, url

PROTOCOLS = ["rocketmq", "kafka", "amqp", "stomp", "mqtt", "http"]
KEYS = {
    "rocketmq": "KEYS",
    "kafka": "key",
    "amqp": "message_id",
    "stomp": "amqp-message-id",
    "mqtt": "user property __key",
    "http": "key",
}
COLOURS = {
    "rocketmq": "colour",
    "kafka": "header colour",
    "amqp": "header colour",
    "stomp": "colour",
    "mqtt": "user property colour",
}


def seen(whole: Any, protocol: str) -> dict[str, Any]:
    """What a client of one protocol is told of a message."""
    (view,) = [each for each in whole["views"] if each["protocol"] == protocol]
    return {each["name"]: each["value"] for each in view["fields"]}


async def test_every_protocol_sees_what_any_other_has_sent(tmp_path: Path) -> None:
    async with busy(tmp_path, 2) as (_, web, _names):
        found: dict[str, Any] = {}
        for topic in ("orders", "jobs"):
            page = await web.get(f"/v1/topics/{topic}/messages", params={"limit": 100})
            for each in page.json()["items"]:
                at = {"offset": each["offset"], "topic": topic}
                whole = (await web.get(f"/v1/messages/{each['id']}", params=at)).json()
                assert whole["message"]["offset"] == each["offset"]
                assert whole["message"]["topic"] == topic
                assert [view["protocol"] for view in whole["views"]] == PROTOCOLS
                for name in ("key", "amqp-message-id", "KEYS"):
                    key = next(
                        (seen(whole, p).get(name) for p in PROTOCOLS if name in seen(whole, p)),
                        None,
                    )
                    if key:
                        found[key] = whole
                if whole["form"] == "mqtt":
                    found["mqtt-1"] = whole
        colours = {
            "rocketmq": "red",
            "kafka": "blue",
            "amqp": "green",
            "stomp": "yellow",
            "mqtt": "black",
            "http": "white",
        }
        for sender, colour in colours.items():
            whole = found[f"{sender}-1"]
            for protocol, name in COLOURS.items():
                assert seen(whole, protocol)[name] == colour, (sender, protocol)
            if sender != "mqtt":
                for protocol, name in KEYS.items():
                    assert seen(whole, protocol)[name] == f"{sender}-1", (sender, protocol)
        forms = {sender: found[f"{sender}-1"]["form"] for sender in colours}
        assert forms == {
            "rocketmq": "rocketmq",
            "kafka": "kafka",
            "amqp": "amqp",
            "stomp": "amqp",
            "mqtt": "mqtt",
            "http": "rocketmq",
        }
        assert seen(found["mqtt-1"], "mqtt")["topic"] == "shop/mqtt"
        assert seen(found["amqp-1"], "amqp")["exchange"] == "shop"
        assert seen(found["amqp-1"], "stomp")["destination"] == "/exchange/shop/order.new"


async def test_a_topic_keeps_what_its_bodies_are(tmp_path: Path) -> None:
    given = {"schema": {"format": "avro", "schema": '"string"', "message": ""}}
    async with http(tmp_path) as (_, web):
        await web.post("/v1/topics", json={"name": "t", "queues": 1})
        assert (await web.get("/v1/topics/t/schema")).json() == {"schema": None}
        assert (await web.put("/v1/topics/t/schema", json=given)).json() == given
    async with http(tmp_path) as (_, web):
        assert (await web.get("/v1/topics/t/schema")).json() == given
        await web.put("/v1/topics/t/schema", json={"schema": None})
        assert (await web.get("/v1/topics/t/schema")).json() == {"schema": None}
        await web.put("/v1/topics/t/schema", json=given)
        await web.delete("/v1/topics/t")
        await web.post("/v1/topics", json={"name": "t", "queues": 1})
        assert (await web.get("/v1/topics/t/schema")).json() == {"schema": None}
        assert (await web.get("/v1/topics/none/schema")).status_code == 404


AVRO: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "price", "type": "double"},
        {"name": "paid", "type": "boolean"},
        {"name": "note", "type": ["null", "string"]},
        {
            "name": "lines",
            "type": {
                "type": "array",
                "items": {
                    "type": "record",
                    "name": "Line",
                    "fields": [
                        {"name": "what", "type": "string"},
                        {"name": "count", "type": "int"},
                    ],
                },
            },
        },
        {"name": "more", "type": {"type": "map", "values": "Line"}},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["new", "old"]}},
        {"name": "hash", "type": {"type": "fixed", "name": "Hash", "size": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {
            "name": "sum",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        },
        {"name": "before", "type": ["null", "Order"]},
    ],
}
ORDER = {
    "id": -(1 << 60),
    "price": 1.5,
    "paid": True,
    "note": "ünï",
    "state": "old",
    "hash": b"\x01\xff",
    "lines": [{"what": "a", "count": 1}, {"what": "b", "count": -2}],
    "more": {"k": {"what": "c", "count": 3}},
    "sum": Decimal("-12.34"),
    "before": None,
    "at": datetime.datetime(2026, 3, 4, 5, 6, 7, 891_234, datetime.UTC),
    "day": datetime.date(1969, 12, 31),
}
PROTO = """
syntax = "proto3";  // orders
package shop.v1;
import "google/protobuf/any.proto";
option java_package = "x";
message Other { string x = 1; }
message Order {
  enum State { NEW = 0; OLD = 1 [deprecated = true]; }
  message Line { string what = 1; sint32 count = 2; }
  reserved 100 to 200;
  int64 id = 1; double price = 2; bool paid = 3; State state = 4;
  repeated Line lines = 5; map<string, Line> more = 6; repeated int32 numbers = 7;
  oneof note { string text = 8; bytes raw = 9; }
  Order before = 10; fixed32 f = 11; sfixed64 g = 12; repeated string words = 13;
  optional .shop.v1.Other other = 14; map<int32, State> states = 15;
}
"""


def avro_body() -> bytes:
    stream = io.BytesIO()
    schema = fastavro.parse_schema(AVRO)
    fastavro.schemaless_writer(stream, schema, {**ORDER, "before": ORDER})
    return stream.getvalue()


def protobuf_body(folder: Path) -> bytes:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    from grpc_tools import protoc  # type: ignore[import-untyped]

    source = PROTO.replace('import "google/protobuf/any.proto";', "")
    (folder / "order.proto").write_text(source)
    made = folder / "order.bin"
    assert protoc.main(["", f"-I{folder}", f"--descriptor_set_out={made}", "order.proto"]) == 0
    pool = descriptor_pool.DescriptorPool()
    for each in descriptor_pb2.FileDescriptorSet.FromString(made.read_bytes()).file:
        pool.Add(each)
    kind: Any = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.v1.Order"))
    order = kind(
        id=-(1 << 60),
        price=1.5,
        paid=True,
        state=1,
        numbers=[1, -2, 300],
        text="ünï",
        f=7,
        g=-8,
        words=["a", "b"],
        other={"x": "y"},
        before={"id": 1},
        states={3: 1},
    )
    order.lines.add(what="a", count=-1)
    order.more["k"].what = "c"
    raw: bytes = order.SerializeToString()
    return raw


@needs_chromium
async def test_bodies_are_decoded_by_their_schema(tmp_path: Path) -> None:
    import json

    avro, protobuf = avro_body(), await asyncio.to_thread(protobuf_body, tmp_path)
    prefix = b"\0\0\0\0\x2a"
    bodies = {
        "plain": (avro, {"format": "avro", "schema": json.dumps(AVRO)}),
        "framed": (prefix + avro, {"format": "avro", "schema": json.dumps(AVRO)}),
        "proto": (protobuf, {"format": "protobuf", "schema": PROTO, "message": "Order"}),
        "proto-framed": (prefix + b"\x02\x02" + protobuf, {"format": "protobuf", "schema": PROTO}),
    }
    async with http(tmp_path / "store") as (server, web), browser() as chromium:
        watched = Watched(await chromium.new_page(), url(server))
        for name, (body, schema) in bodies.items():
            await web.post("/v1/topics", json={"name": name, "queues": 1})
            await web.put(f"/v1/topics/{name}/schema", json={"schema": schema})
            message = {"body": base64.b64encode(body).decode(), "body_encoding": "base64"}
            sent = (await web.post(f"/v1/topics/{name}/messages", json=message)).json()
            await watched.open(f"messages/{sent['id']}")
            text = await watched.page.inner_text("pre.body")
            first, _, rest = text.partition("\n")
            assert (first == "Schema number 42") == ("framed" in name), text
            _check(name, json.loads(rest if "framed" in name else text))
        page = watched.page
        await page.get_by_label("Schema", exact=False).last.fill("message Wrong { bool x = 1; }")
        await page.get_by_role("button", name="Decode").click()
        assert "0x" in await page.inner_text("pre.body")
        await page.get_by_role("button", name="Save for the topic").click()
        await page.get_by_text("Saved.").wait_for()
        kept = (await web.get("/v1/topics/proto-framed/schema")).json()["schema"]
        assert kept["schema"] == "message Wrong { bool x = 1; }"
        assert watched.complaints == []


def _check(name: str, found: Any) -> None:
    assert (found["id"], found["price"], found["paid"]) == (str(-(1 << 60)), 1.5, True)
    assert found["more"]["k"]["what"] == "c"
    if "proto" in name:
        assert (found["state"], found["text"], found["numbers"]) == ("OLD", "ünï", [1, -2, 300])
        assert found["lines"] == [{"what": "a", "count": -1}]
        assert (found["f"], found["g"], found["words"]) == (7, -8, ["a", "b"])
        assert (found["other"], found["before"]) == ({"x": "y"}, {"id": 1})
        assert found["states"] == {"3": "OLD"}
    else:
        assert (found["note"], found["state"], found["hash"]) == ("ünï", "old", "0x01ff")
        assert found["lines"] == ORDER["lines"]
        assert found["at"] == "2026-03-04T05:06:07.891234Z"
        assert (found["day"], found["sum"]) == ("1969-12-31", "-12.34")
        assert found["before"]["before"] is None


HOSTILE = [
    ("avro", '{"type": "array", "items": "null"}', "feffffffffffffffff0100"),
    ("avro", '{"type": "record", "name": "R", "fields": [{"name": "r", "type": "R"}]}', "00"),
    ("avro", "{", "00"),
    ("avro", '"Nothing"', "00"),
    ("avro", '"bytes"', "ffffffffffffffffff01"),
    (
        "avro",
        '{"type":"map","values":{"type":"map","values":"int"}}',
        "0212" + "5f5f70726f746f5f5f" + "02026100" + "00",
    ),
    ("protobuf", "message M { M m = 1; }", "0aff"),
    ("protobuf", "message M { map<string, string> __proto__ = 1; }", "0a060a01611201" + "62"),
    ("protobuf", "message", "00"),
    ("protobuf", "", "00"),
]


@needs_chromium
async def test_no_body_and_no_schema_does_any_harm(tmp_path: Path) -> None:
    async with http(tmp_path) as (server, _), browser() as chromium:
        watched = Watched(await chromium.new_page(), url(server))
        await watched.open("overview")
        for kind, schema, body in HOSTILE:
            said = await watched.page.evaluate(
                """async ([format, schema, body]) => {
                    const { decoded } = await import("/console/schemas.js");
                    const data = Uint8Array.from(body.match(/../g), (each) => parseInt(each, 16));
                    try { decoded(data, { format, schema, message: "" }); return "decoded"; }
                    catch (error) { return `refused ${error.message}`; }
                }""",
                [kind, schema, body],
            )
            assert said.startswith(("refused", "decoded"))
        assert await watched.page.evaluate("({}).a === undefined && ({}).b === undefined")
        assert watched.complaints == []


@pytest.mark.parametrize("bad", [{"format": "xml", "schema": "x"}, {"format": "avro"}, 7])
async def test_a_schema_that_is_none_is_refused(tmp_path: Path, bad: Any) -> None:
    async with http(tmp_path) as (_, web):
        await web.post("/v1/topics", json={"name": "t", "queues": 1})
        assert (await web.put("/v1/topics/t/schema", json={"schema": bad})).status_code == 400
