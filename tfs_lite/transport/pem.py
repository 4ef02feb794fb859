"""Keys and certificates in PEM form: whether TLS can use them, found out before a server listens or a client connects.

gRPC refuses bad ones without saying why, so they are tried with Python's own TLS first. A private key is never put
into a file that has a name.
"""

from __future__ import annotations

import os
import re
import ssl
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_BEGIN_CERTIFICATE = re.compile(rb"-----BEGIN (X509 |TRUSTED )?CERTIFICATE-----")
_BEGIN_KEY = re.compile(rb"-----BEGIN ([A-Z0-9]+ )*PRIVATE KEY-----")
_BEGIN = b"-----BEGIN "
_ENCRYPTED = b"ENCRYPTED"
_MISMATCHES = ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH", "NO_CERTIFICATE_ASSIGNED")
_ANY_STRENGTH = "ALL:@SECLEVEL=0"
"""Weak keys are the operator's choice; only unusable ones are refused."""
_NO_CHECK_TIME = 0x200000
"""OpenSSL's X509_V_FLAG_NO_CHECK_TIME, which Python has no name for."""
_FLIGHTS = 3
"""Turns of client and server in a handshake."""


def certificate_problem(pem: bytes) -> str | None:
    """The fault in one or more certificates; None if there is none."""
    if not _BEGIN_CERTIFICATE.search(pem):
        return f"holds no certificate in PEM form{_hint(pem)}"
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(
            cadata=pem.decode("latin-1").encode("ascii", "replace").decode()
        )
    except (ssl.SSLError, ValueError):
        return "holds a damaged certificate"
    return None


def key_problem(key: bytes, certificates: bytes) -> str | None:
    """The fault in a private key or in how it fits the good ``certificates``; None if there is none.

    The text never repeats any of the key.
    """
    if not _BEGIN_KEY.search(key):
        return f"holds no private key in PEM form{_hint(key)}"
    if _ENCRYPTED in key:
        return "is encrypted; gRPC takes keys without a pass phrase only"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_ciphers(_ANY_STRENGTH)
    try:
        load_pair(context, key, certificates)
    except ssl.SSLError as error:
        if error.reason in _MISMATCHES:
            return "does not belong to the first certificate"
        return "is damaged, or of a kind that is not known"
    except OSError:
        return None  # a system without /dev/fd: the first connection tells
    return None


def validity(key: bytes, certificates: bytes) -> tuple[float, float] | None:
    """The first and the last moment at which the first certificate, which belongs to the key, is valid, in seconds
    since 1970. None where TLS does not tell.

    A client and a server shake hands in memory, because Python's TLS shows a certificate only to its peer.
    """
    client, server = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    client.check_hostname = False
    client.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN | _NO_CHECK_TIME
    sent, received = ssl.MemoryBIO(), ssl.MemoryBIO()
    try:
        for context in (client, server):
            context.set_ciphers(_ANY_STRENGTH)
        load_pair(server, key, certificates)
        client.load_verify_locations(cadata=certificates.decode("ascii", "replace"))
        ends = (client.wrap_bio(received, sent), server.wrap_bio(sent, received, server_side=True))
        for end in ends * _FLIGHTS:
            with suppress(ssl.SSLWantReadError):
                end.do_handshake()
        shown = ends[0].getpeercert() or {}
        return ssl.cert_time_to_seconds(str(shown["notBefore"])), ssl.cert_time_to_seconds(str(shown["notAfter"]))
    except (OSError, ValueError, KeyError):
        return None


def load_pair(context: ssl.SSLContext, key: bytes, certificates: bytes) -> None:
    """Gives a server its key and certificates. ssl.SSLError if they cannot be used; OSError on a system where memory
    has no path to be read from."""
    with _nameless(certificates) as certificates_path, _nameless(key) as key_path:
        context.load_cert_chain(certificates_path, key_path, password=lambda: b"")


def _hint(pem: bytes) -> str:
    """A hint at the most likely mistake."""
    return "" if _BEGIN in pem else "; the text itself is wanted here, not the name of a file"


@contextmanager
def _nameless(content: bytes) -> Iterator[str]:
    """A path to read ``content`` from: memory, or where that is not to be had a file that no directory lists."""
    with os.fdopen(os.memfd_create("pem"), "w+b") if sys.platform == "linux" else tempfile.TemporaryFile() as file:
        file.write(content)
        file.seek(0)
        yield f"/dev/fd/{file.fileno()}"
