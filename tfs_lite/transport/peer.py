"""Who is at the other end of a connection, as far as the system and TLS can tell.

A :class:`Peer` is made once for each connection, and all requests of the connection share it.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

UNIX = "unix"
"""The address of every peer of a UNIX socket."""
ROOT = 0
_CREDENTIALS = struct.Struct("3i")
_CERTIFICATE_NAMES = ("URI", "DNS")
"""Kinds of names that count, as OpenSSL calls them."""


@dataclass(frozen=True, slots=True)
class Peer:
    """``address`` is an IP address without port, ``unix`` for a UNIX socket, and empty if it is not known.
    ``loopback``: the connection comes from this machine's loopback interface. ``same_user``: it comes over a UNIX
    socket from a process of the server's user or of root. ``names`` are the URIs and DNS names in the certificate of a
    client that the server has verified.
    """

    address: str = ""
    loopback: bool = False
    same_user: bool = False
    names: frozenset[str] = frozenset()


UNKNOWN = Peer()


def peer_of(transport: asyncio.BaseTransport) -> Peer:
    """The peer of an accepted connection, when it has been made. A client that has gone already is unknown."""
    names = _names(transport.get_extra_info("peercert"))
    connected = transport.get_extra_info("socket")
    if connected is not None and connected.family == socket.AF_UNIX:
        return Peer(UNIX, same_user=is_same_user(_user_of(connected)), names=names)
    address = transport.get_extra_info("peername")
    return peer_at(str(address[0]), names) if isinstance(address, tuple) else UNKNOWN


def peer_at(address: str, names: frozenset[str] = frozenset()) -> Peer:
    """The peer at an IP address."""
    return Peer(address, loopback=_is_loopback(address), names=names)


def is_same_user(user: int | None) -> bool:
    """Whether a process of this user may do what the server may do anyway. None: the user is not known."""
    return user is not None and user in (ROOT, os.geteuid())


def _names(certificate: Mapping[str, Any] | None) -> frozenset[str]:
    """The names in a certificate as ``ssl.SSLSocket.getpeercert`` returns it; the certificate is empty where none was
    verified."""
    found = (certificate or {}).get("subjectAltName", ())
    return frozenset(value for kind, value in found if kind in _CERTIFICATE_NAMES)


def _user_of(connected: Any) -> int | None:
    """The user of the process that made the connection; None where the system cannot tell."""
    try:
        size = _CREDENTIALS.size
        _, user, _ = _CREDENTIALS.unpack(connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    except (AttributeError, OSError, struct.error):
        return None
    return int(user)


def _is_loopback(address: str) -> bool:
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return False
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return (mapped or found).is_loopback
