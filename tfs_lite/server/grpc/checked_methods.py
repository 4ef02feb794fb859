"""A table of methods whose callers are checked before the handlers see their calls."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from tfs_lite.server.access.access import Access
from tfs_lite.server.access.rules import Caller
from tfs_lite.transport.table import CallContext, CallKind, Grant, Method, Scope

if TYPE_CHECKING:
    from tfs_lite.transport.table import BidiHandler, ClientStreamHandler, StreamHandler, UnaryHandler

_ONE_REQUEST = (CallKind.UNARY, CallKind.SERVER_STREAM)


def checked_methods(methods: Iterable[Method], access: Access) -> list[Method]:
    """The same table. Methods whose scope everybody has keep their handlers, so that a check costs them nothing."""
    return [_checked(method, access) if access.checks(method.scope) else method for method in methods]


def _checked(method: Method, access: Access) -> Method:
    check = _MethodCheck(method, access)
    handler: Any = check.one_request if method.kind in _ONE_REQUEST else check.many_requests
    return replace(method, handler=handler, admit=check.admit)


class _MethodCheck:
    """The check of one method's calls. A call that is denied fails before its handler begins, and before a request that
    comes in pieces is kept."""

    def __init__(self, method: Method, access: Access) -> None:
        self._method = method
        self._access = access

    def admit(self, context: CallContext) -> None:
        """Denies callers who are denied whatever they ask."""
        method, access, caller = self._method, self._access, self._access.grpc(context, self._method.path)
        if method.reads is None or Scope.READ not in access.may(caller):
            access.check(method.scope, caller)

    def one_request(self, data: bytes, context: CallContext) -> Awaitable[bytes] | AsyncIterator[bytes]:
        method, access, caller = self._method, self._access, self._access.grpc(context, self._method.path)
        scope = Scope.READ if method.reads is not None and method.reads(data) else method.scope
        if access.checks(scope):
            context.grant = grant = access.check(scope, caller)
            if grant.models is not None:
                access.check_models(scope, caller, grant, self._models(data))
        handler = cast("UnaryHandler | StreamHandler", method.handler)
        return handler(data, context)

    def many_requests(
        self, requests: AsyncIterator[bytes], context: CallContext
    ) -> Awaitable[bytes] | AsyncIterator[bytes]:
        caller = self._access.grpc(context, self._method.path)
        context.grant = grant = self._access.check(self._method.scope, caller)
        handler = cast("ClientStreamHandler | BidiHandler", self._method.handler)
        if grant.models is None:
            return handler(requests, context)
        return handler(_CheckedRequests(requests, lambda data: self._check_models(caller, grant, data)), context)

    def _check_models(self, caller: Caller, grant: Grant, data: bytes) -> None:
        self._access.check_models(self._method.scope, caller, grant, self._models(data))

    def _models(self, data: bytes) -> list[str]:
        return [""] if self._method.models is None else list(self._method.models(data))


class _CheckedRequests:
    """The requests of a stream; the first that names another model ends it with the error of ``check``."""

    def __init__(self, requests: AsyncIterator[bytes], check: Callable[[bytes], None]) -> None:
        self._requests = requests
        self._check = check

    def __aiter__(self) -> _CheckedRequests:
        return self

    async def __anext__(self) -> bytes:
        data = await anext(self._requests)
        self._check(data)
        return data
