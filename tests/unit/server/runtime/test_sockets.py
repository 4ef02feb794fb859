from __future__ import annotations

import asyncio
import socket

from tfs_lite.server.runtime.sockets import listen


def test_accepted_connections_send_small_answers_at_once() -> None:
    async def main() -> int:
        found: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connection = writer.get_extra_info("socket")
            found.set_result(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        sock = listen("127.0.0.1", 0, "--rest_api_port")
        async with await asyncio.start_server(accept, sock=sock):
            _, writer = await asyncio.open_connection(*sock.getsockname())
            nodelay = await found
            writer.close()
            await writer.wait_closed()
        return nodelay

    assert asyncio.run(main())
