"""Seeds of the HTTP side: bodies in JSON and msgpack, packed bodies, whole requests."""

from __future__ import annotations

import gzip
from typing import Any

import ormsgpack


def rest_json() -> dict[str, bytes]:
    return {
        "row": b'p{"instances": [[1, 2.5, -3e2]]}',
        "columns": b'p{"signature_name": "float", "inputs": {"x": [1, 2]}}',
        "value": b'v{"signature_name": "string", "inputs": ["a", {"b64": "/w=="}]}',
        "objects": b'p{"signature_name": "two", "instances": [{"a": 1, "b": "x"}, {"b": {"b64": "eA"}, "a": 2}]}',
        "defaults": b'v{"signature_name": "defaults", "instances": [{"x": 1}, {"x": 2}]}',
        "all-defaults": b'p{"signature_name": "all_defaults", "instances": [{}, {}, {}]}',
        "open": b'p{"signature_name": "open", "instances": [[[true]], [[false]]]}',
        "shapes": b'p{"signature_name": "shapes", "inputs": {"x": [[[1, 2]]], "k": [[0.5], [NaN]]}}',
        "scalar": b'p{"signature_name": "scalar", "inputs": 7}',
        "range": b'p{"signature_name": "int8", "instances": [127, 128]}',
        "uint64": b'p{"signature_name": "uint64", "instances": [18446744073709551615]}',
        "complex": b'p{"signature_name": "complex64", "inputs": [1]}',
        "ragged": b'p{"signature_name": "open", "instances": [[1, 2], [3]]}',
        "not-finite": b'p{"signature_name": "half", "instances": [Infinity, -Inf, 1e308]}',
        "both": b'p{"instances": [1], "inputs": [1]}',
        "classify": b'c{"signature_name": "classify", "examples": [{"x": 1.5, "name": "a"}, {"x": [2.5]}]}',
        "context": b'c{"signature_name": "classify", "context": {"name": {"b64": "/w"}}, "examples": [{"x": 1}]}',
        "regress": b'r{"signature_name": "regress", "examples": [{"x": 1.5}, {"x": 2}]}',
        "serialized": b'r{"signature_name": "serialized", "examples": [{"x": [1, true]}, {"y": "z"}]}',
        "large": b'v{"signature_name": "float", "instances": [1.5, ' + b"\x02\x05\xff" + b"\x02\xff\x14" + b"2]}",
    }


def rest_msgpack() -> dict[str, bytes]:
    def body(tree: Any) -> bytes:
        return b"p" + ormsgpack.packb(tree)

    return {
        "row": body({"instances": [[1, 2.5, -300]]}),
        "binary": body({"signature_name": "string", "inputs": [b"\xff", "text"]}),
        "objects": body({"signature_name": "two", "instances": [{"a": 1, "b": b"x"}, {"b": "y", "a": 2.5}]}),
        "columns": body({"signature_name": "two", "inputs": {"a": [1], "b": [b""]}}),
        "int8": body({"signature_name": "int8", "instances": [127, -128]}),
        "uint64": body({"signature_name": "uint64", "instances": [2**64 - 1]}),
        "open": body({"signature_name": "open", "inputs": [[True, None]]}),
        "defaults": body({"signature_name": "defaults", "instances": [{"x": 1}]}),
        "float32": b"p\x82\xaesignature_name\xa5float\xa9instances\x91\xca\x3f\x80\x00\x00",
        "extension": b"p\x81\xa6inputs\x91\xc7\x04\x01abcd",
        "timestamp": b"p\x81\xa6inputs\xd6\xff\x00\x00\x00\x01",
        "huge-array": b"p\x81\xa6inputs\xdd\xff\xff\xff\xff",
        "huge-text": b"p\x81\xa6inputs\xdb\xff\xff\xff\xff",
        "deep": b"p\x81\xa6inputs" + b"\x91" * 200 + b"\x01",
        "twice": b"p\x82\xa6inputs\x01\xa6inputs\x02",
        "integer-name": b"p\x81\x01\x02",
        "classify": b"c" + ormsgpack.packb({"examples": [{"x": 1}]}),
        "not-utf8": b"p\x81\xa6inputs\xa2\xff\xfe",
    }


def rest_gzip() -> dict[str, bytes]:
    row = b'{"instances": [[1, 2.5, -3e2]]}'
    packed = gzip.compress(row, mtime=0)
    return {
        "row": b"p" + packed,
        "members": b"p" + gzip.compress(row[:9], mtime=0) + gzip.compress(row[9:], mtime=0),
        "empty-members": b"p" + gzip.compress(b"", mtime=0) * 9 + packed,
        "stored": b"p" + gzip.compress(row, 0, mtime=0),
        "bomb": b"p" + gzip.compress(b" " * (1 << 20), mtime=0)[:1200],
        "whole-bomb": b"p" + gzip.compress(b" " * 300_000, mtime=0),
        "large": b"v" + gzip.compress(b'{"signature_name": "float", "instances": [' + b"1," * 40_000 + b"1]}", mtime=0),
        "cut": b"p" + packed[:-4],
        "checksum": b"p" + packed[:-8] + bytes(8),
        "trailing": b"p" + packed + b"more",
        "none": b"p" + row,
        "nothing": b"p",
        "name": b"p\x1f\x8b\x08\x08\0\0\0\0\0\xffname\0" + packed[10:],
    }


def http() -> dict[str, bytes]:
    def request(line: str, *headers: str, body: bytes = b"") -> bytes:
        lines = (f"{line} HTTP/1.1", "host: x", *headers, *([f"content-length: {len(body)}"] if body else []), "", "")
        return "\r\n".join(lines).encode() + body

    row = b'{"instances": [[1, 2, 3]]}'
    chunked = b"5\r\n" + row[:5] + b"\r\n15\r\n" + row[5:] + b"\r\n0\r\n\r\n"
    return {
        "predict": request("POST /v1/models/m:predict", "accept-encoding: gzip;q=0.5", body=row),
        "chunked": request("POST /v1/models/m/versions/007:predict", "transfer-encoding: chunked") + chunked,
        "expect": request("POST /v1/models/m:predict", "expect: 100-continue", body=row),
        "msgpack": request("POST /V1/Models/%6d:predict", "accept: text/html, application/msgpack;q=1", body=row),
        "types": request("POST /v1/models/m:predict", "content-type: application/x-msgpack; v=1", body=b"\x80"),
        "classify": request("POST /v1/models/m/labels/stable:classify", body=b'{"examples": [{"x": 1}]}'),
        "regress": request("POST /v1/models/m:regress", "content-encoding: identity, x-gzip", body=b"\x1f\x8b"),
        "status": request("GET /v1/models/m"),
        "list": request("GET /v1/models", "accept-encoding: gzip"),
        "metadata": request("GET /v1/models/m/versions/7/metadata", "accept-encoding: gzip"),
        "query": request("GET /v1/models/m?x=1&y"),
        "version": request("GET /v1/models/m/versions/9223372036854775808"),
        "escapes": request("GET /v1/models/a%2Fb%00%ff%zz+!/labels/%20"),
        "options": request("OPTIONS /v1/models/m", "origin: https://a.example"),
        "head": request("HEAD /readyz"),
        "metrics": request("GET /monitoring/prometheus/metrics", "accept-encoding: gzip"),
        "openapi": request("GET /openapi.json"),
        "other": request("PATCH http://x/v1/models//m?#"),
        "cut": request("POST /v1/models/m:predict", "content-length: 99") + row,
        "encoding": request("POST /v1/models/m:predict", "content-encoding: br", body=row),
    }


def json_body() -> dict[str, bytes]:
    def repeated(text: bytes, last: int, times: int) -> bytes:
        return text + bytes((2, last, times))

    row = repeated(repeated(b"[1.5, 2, ", 3, 4) + b"7]", 25, 0)
    return {
        "tree": b'{"a": [1, -2.5e3, true, null, "\\u00e9\\n"], "b": {"c": [[], {}]}}',
        "words": b"[NaN, Inf, -Infinity, -Inf, Infinity]",
        "integers": b"[9223372036854775808, -9223372036854775809, 18446744073709551616, 1E400]",
        "matrix": b"[" + repeated(b"[1, 2, 3], ", 11, 255) + b"[4, 5, 6]]",
        "floats": b'{"x": [' + repeated(b"1.25, ", 6, 255) + b'NaN], "y": [' + repeated(b"1, ", 3, 255) + b"-1]}",
        "big": b"[" + repeated(b"18446744073709551615, ", 22, 200) + b"1]",
        "objects": b"[" + repeated(b'{"a": 1, "b": [2]}, ', 20, 150) + b'{"a": "x"}]',
        "ragged": b"[" + repeated(b"[1, 2], ", 8, 255) + b"[3]]",
        "string": b'["' + repeated(b"a\\\\", 3, 255) + repeated(b'\\"', 2, 255) + b'"]',
        "names": b"{" + repeated(b'"a": 1, ', 8, 200) + b'"b": 2}',
        "deep": repeated(b"[", 1, 101) + repeated(b"]", 1, 101),
        "nested": b"[" + repeated(b'{"a": [1, {"b": [', 17, 20) + b"2" + repeated(b"]}]}", 4, 20) + b"]",
        "spaces": b" " + repeated(b"\n\t\r ", 4, 255) + b"1",
        "after": b"{} x",
        "mark": b"\xef\xbb\xbf[1]",
        "surrogates": b'["\\ud83d\\ude00", "\\ud83d"]',
        "not-utf8": b'["\xff"]',
        "cut": b'{"a": [1, "b',
        "commas": b"[1,,2,]",
        "rows": b"[" + row + b"]",
    }


def msgpack_tree() -> dict[str, bytes]:
    def repeated(item: bytes, times: int) -> bytes:
        return item + bytes((2, len(item), times - 1))

    row = b"\x93" + 3 * b"\xca\x3f\x80\0\0"
    return {
        "floats": b"\xdc\0\x40" + repeated(b"\xca\x3f\x80\0\0", 64),
        "doubles": b"\x81\xa1x\xdd\0\0\0\x40" + repeated(b"\xcb\x3f\xf0" + bytes(6), 64),
        "matrix": b"\xdc\0\x20" + repeated(row, 32),
        "ragged": b"\xdc\0\x20" + repeated(row, 31) + b"\x92" + row[1:11],
        "other-header": b"\xdc\0\x20" + repeated(row, 31) + b"\xdc\0\x03" + row[1:],
        "widths": b"\xdc\0\x21" + repeated(b"\xca\x3f\x80\0\0", 32) + b"\xcb" + bytes(8),
        "integer": b"\xdc\0\x21" + repeated(b"\xca\x3f\x80\0\0", 32) + b"\x07",
        "cut": b"\xdc\0\x41" + repeated(b"\xca\x3f\x80\0\0", 64),
        "after": b"\x93" + row[1:] + b"\xc0",
        "deep": repeated(b"\x91", 70) + b"\x92\xca\x7f\xc0\0\0\xca\xff\x80\0\0",
        "deeper": repeated(b"\x91", 101) + b"\xca\0\0\0\0",
        "maps": b"\xdc\0\x20" + repeated(b"\x82\xa1a\x93" + row[1:] + b"\xa1b\xc4\1x", 32),
        "twice": b"\x82\xa1a" + row + b"\xa1a\x01",
        "leaves": b"\x9c\xc0\xc2\xc3\xcc\xff\xcd\1\0\xce\0\1\0\0\xcf"
        + b"\xff" * 8
        + b"\xd0\x80\xd1\x80\0\xe0\xa1a\xd9\1b",
        "lengths": b"\x93\xc5\0\1a\xc6\0\0\0\1b\xda\0\1c",
        "extension": b"\x92\xd4\1\0" + row,
        "reserved": b"\x92\xc1" + row,
        "empty": b"\xdc\0\x10" + repeated(b"\x90", 16),
    }
