"""The TLS settings: usable keys and certificates only, and no message that holds any of the key."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import trustme
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.support.errors import refusal
from tfs_lite.config.server_files import SSLConfig, parse_ssl_config, read_ssl_config
from tfs_lite.core.status import ServingError, StatusCode

AUTHORITY = trustme.CA()
CA = AUTHORITY.cert_pem.bytes().decode()


def issued(authority: trustme.CA = AUTHORITY) -> tuple[str, str]:
    pair = authority.issue_cert("localhost")
    return pair.private_key_pem.bytes().decode(), pair.cert_chain_pems[0].bytes().decode()


KEY, CERT = issued()
OTHER_KEY, OTHER_CERT = issued()
PIECES = [
    piece
    for line in KEY.splitlines()[1:-1]
    for at in range(len(line) - 7)
    if (piece := line[at : at + 8]) not in CERT.replace("\n", "")
]
"""Every run of eight characters of the key itself that is not in its certificate too, as the name of the curve is."""
ENCRYPTED = f"-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\n{KEY.splitlines()[1]}\n"
BROKEN_KEY = KEY.replace(KEY.splitlines()[2], "")
BROKEN_CERT = CERT.replace(CERT.splitlines()[2], "")


def text_of(**fields: str | bool) -> str:
    """Text format: JSON's escapes of a text are also those of protobuf's."""
    return "\n".join(f"{name}: {json.dumps(value)}" for name, value in fields.items())


def error_of(text: str, name: str = "tls.pbtxt") -> str:
    message = refusal(parse_ssl_config, text, name)
    assert not any(piece in message for piece in PIECES)
    return message


def test_both_syntaxes_say_the_same() -> None:
    fields: dict[str, str | bool] = {"server_key": KEY, "server_cert": CERT, "custom_ca": CA, "client_verify": True}
    config = parse_ssl_config(text_of(**fields), "tls.pbtxt")
    assert config.server_key.get_secret_value() == KEY
    assert (config.server_cert, config.custom_ca, config.client_verify) == (CERT, CA, True)
    assert parse_ssl_config(yaml.safe_dump(fields), "tls.yaml") == config


def test_adjacent_strings_are_one_text() -> None:
    lines = "".join(f"{json.dumps(line)}\n" for line in KEY.splitlines(keepends=True))
    config = parse_ssl_config(f"server_key: {lines}\nserver_cert: {json.dumps(CERT)}", "tls.pbtxt")
    assert (config.server_key.get_secret_value(), config.client_verify) == (KEY, False)


def test_the_chain_may_hold_the_authorities_between() -> None:
    between = AUTHORITY.create_child_ca()
    pair = between.issue_cert("localhost")
    chain = "".join(blob.bytes().decode() for blob in pair.cert_chain_pems)
    assert chain.count("BEGIN") == 2
    config = parse_ssl_config(text_of(server_key=pair.private_key_pem.bytes().decode(), server_cert=chain), "t")
    assert config.server_cert == chain


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "tls.pbtxt:1:1: server_key: is required; tls.pbtxt:1:1: server_cert: is required"),
        ({"server_cert": CERT}, "tls.pbtxt:1:1: server_key: is required"),
        ({"server_key": KEY, "server_cert": ""}, "tls.pbtxt:2:1: server_cert: is required"),
        (
            {"server_key": "/etc/tls/server.key", "server_cert": CERT},
            "tls.pbtxt:1:1: server_key: holds no private key in PEM form; the text itself is wanted here, "
            "not the name of a file",
        ),
        ({"server_key": CERT, "server_cert": CERT}, "tls.pbtxt:1:1: server_key: holds no private key in PEM form"),
        ({"server_key": KEY, "server_cert": KEY}, "tls.pbtxt:2:1: server_cert: holds no certificate in PEM form"),
        ({"server_key": ENCRYPTED, "server_cert": CERT}, "tls.pbtxt:1:1: server_key: is encrypted; "),
        ({"server_key": BROKEN_KEY, "server_cert": CERT}, "tls.pbtxt:1:1: server_key: is damaged"),
        (
            {"server_key": KEY, "server_cert": OTHER_CERT},
            "tls.pbtxt:1:1: server_key: does not belong to the first certificate",
        ),
        (
            {"server_key": KEY, "server_cert": CA + CERT},
            "tls.pbtxt:1:1: server_key: does not belong to the first certificate",
        ),
        ({"server_key": KEY, "server_cert": BROKEN_CERT}, "tls.pbtxt:2:1: server_cert: holds a damaged certificate"),
        (
            {"server_key": KEY, "server_cert": CERT + BROKEN_CERT},
            "tls.pbtxt:2:1: server_cert: holds a damaged certificate",
        ),
        (
            {"server_key": KEY, "server_cert": CERT, "custom_ca": "ca.pem"},
            "tls.pbtxt:3:1: custom_ca: holds no certificate in PEM form; the text itself is wanted here, "
            "not the name of a file",
        ),
        (
            {"server_key": KEY, "server_cert": CERT, "client_verify": True},
            "tls.pbtxt:3:1: client_verify: needs custom_ca",
        ),
    ],
)
def test_a_mistake_names_file_place_and_field(fields: dict[str, str | bool], message: str) -> None:
    assert error_of(text_of(**fields)).startswith(message)


@pytest.mark.parametrize(
    ("text", "name", "message"),
    [
        (KEY, "tls.pbtxt", r"tls\.pbtxt:1:1: "),
        (KEY, "tls.yaml", r"tls\.yaml:1:1: Input should be a valid dictionary"),
        (f"server_key: {KEY}", "tls.pbtxt", r"tls\.pbtxt:1:13: "),
        (f'server_key: "{KEY}"', "tls.pbtxt", r"tls\.pbtxt:1:13: "),
        (json.dumps(KEY)[:-1], "tls.pbtxt", r"tls\.pbtxt:1:1: "),
        (f"server_key: {json.dumps(KEY)[:-1]}", "tls.pbtxt", r"tls\.pbtxt:1:13: String missing ending quote"),
        (f"server_key: {json.dumps(KEY)[:-1]}", "tls.yaml", r"tls\.yaml:1:\d+: "),
        (f"server_key: {[KEY]}", "tls.yaml", r"tls\.yaml:1:1: server_key: Input should be a valid string"),
        (f"? {json.dumps(KEY)}\n: {{}}", "tls.yaml", r".*tls\.yaml:1:3: .*: unknown field"),
        (f"? {json.dumps(KEY)}\n:", "tls.yaml", r"tls\.yaml:1:3: .*has no value"),
        (
            f"server_key: {json.dumps(KEY)} server_kex: 1",
            "tls.pbtxt",
            r"tls\.pbtxt:1:\d+: unknown field \"server_kex\"",
        ),
        (f"server_key: !{KEY.splitlines()[1]} x", "tls.yaml", r"tls\.yaml:1:13: could not determine"),
        (f"server_key: *{KEY.splitlines()[1].translate({43: None, 47: None})}", "tls.yaml", r"tls\.yaml:1:13: aliases"),
    ],
)
def test_a_mistake_in_the_syntax_shows_no_key(text: str, name: str, message: str) -> None:
    assert re.match(message, error_of(text, name), re.DOTALL)


WHOLE = {
    "tls.pbtxt": text_of(server_key=KEY, server_cert=CERT),
    "tls.yaml": yaml.safe_dump({"server_key": KEY, "server_cert": CERT}),
    "a": text_of(server_key=KEY, server_cert=CERT),
}


@given(st.sampled_from(sorted(WHOLE)), st.data())
def test_no_damage_to_the_file_brings_a_key_into_a_message(name: str, data: st.DataObject) -> None:
    text = WHOLE[name]
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(text)))
        text = text[:at] + data.draw(st.sampled_from(['"', "\n", ":", " ", "{", "\\", "\0", ""])) + text[at + 1 :]
    try:
        parse_ssl_config(text, name)
    except ServingError as error:
        assert error.code is StatusCode.INVALID_ARGUMENT  # noqa: PT017
        assert not any(piece in str(error) for piece in PIECES)  # noqa: PT017


def test_settings_do_not_print_the_key() -> None:
    config = parse_ssl_config(WHOLE["tls.pbtxt"], "tls.pbtxt")
    assert not any(piece in f"{config!r} {config} {config.model_dump()}" for piece in PIECES)
    with pytest.raises(ValidationError) as raised:
        SSLConfig.model_validate({"server_key": [KEY], "server_cert": CERT})
    assert not any(piece in str(raised.value) for piece in PIECES)


def test_a_file_is_named_as_the_operator_named_it(tmp_path: Path) -> None:
    (tmp_path / "Server1-Settings.pbtxt").write_text("server_kei: 1")
    with pytest.raises(ServingError, match=r"^Server1-Settings\.pbtxt:1:1: unknown field \"server_kei\""):
        read_ssl_config("Server1-Settings.pbtxt", tmp_path)
    with pytest.raises(ServingError, match=r"^nothing\.pbtxt: there is no such file") as raised:
        read_ssl_config("nothing.pbtxt", tmp_path)
    assert raised.value.code is StatusCode.NOT_FOUND
