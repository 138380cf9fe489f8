"""Maps are shown in the order of their keys, at any depth: the library's order differs between processes."""

from __future__ import annotations

import json

from kafkafs.decoding import protobuf
from kafkafs.schemas.registry import PROTOBUF, Registry, Schema

TEXT = """
syntax = "proto3";
import "google/protobuf/struct.proto";
message Outer {
  message Inner { map<string, string> names = 1; }
  string first = 1;
  map<string, Inner> inner = 2;
  repeated Inner list = 3;
  google.protobuf.Struct any = 4;
  map<int32, bool> numbers = 5;
  Outer again = 6;
}
"""


def test_maps_are_in_order() -> None:
    decoder = protobuf.decoder(Schema(1, PROTOBUF, TEXT), Registry())
    names = {f"k{number}": "v" for number in range(9)}
    value = {
        "first": "x",
        "inner": {"b": {"names": names}, "a": {"names": names}},
        "list": [{"names": names}, {}],
        "any": {"z": {"y": 1.0, "x": [{"d": 1.0, "c": 2.0}]}, "a": None},
        "numbers": {"10": True, "9": False, "1": True},
        "again": {"inner": {"c": {"names": names}}},
    }
    shown = decoder.decode(decoder.encode(value))
    assert json.loads(shown) == value

    def order(found: object, path: str = "") -> None:
        if isinstance(found, dict):
            if path.rsplit("/", 1)[-1] in ("names", "inner", "numbers", "z") or path.endswith("/any"):
                assert list(found) == sorted(found), path
            for key, below in found.items():
                order(below, f"{path}/{key}")
        elif isinstance(found, list):
            for below in found:
                order(below, path)

    order(json.loads(shown))
    assert list(json.loads(shown)) == list(value)  # fields in the order of the .proto
