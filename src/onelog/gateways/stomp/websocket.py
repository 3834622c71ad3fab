"""STOMP over WebSocket, on the HTTP port: at `/stomp`, and at `/ws`, where RabbitMQ has it.

Clients in browsers send texts, and get texts, unless a frame has a body that is none.
"""

from collections.abc import Mapping, MutableMapping
from typing import Any

from starlette.routing import BaseRoute, WebSocketRoute
from starlette.websockets import WebSocket

from onelog.gateways import GatewayContext

SUBPROTOCOLS = ("v12.stomp", "v11.stomp", "v10.stomp")


class TextSocket:
    """A WebSocket whose texts are bytes to those who use it, and the other way round."""

    def __init__(self, websocket: WebSocket) -> None:
        self._websocket = websocket
        self._speaks_text = False
        self.close = websocket.close

    @property
    def scope(self) -> MutableMapping[str, Any]:
        return self._websocket.scope

    async def receive(self) -> Mapping[str, Any]:
        """The next message, or the end."""
        message = await self._websocket.receive()
        text = message.get("text")
        if text is None:
            return message
        self._speaks_text = True
        return {"type": message["type"], "bytes": text.encode("utf-8", "surrogatepass")}

    async def send_bytes(self, data: bytes) -> None:
        """Send a message, of the kind that the client sends."""
        if self._speaks_text:
            try:
                text = data.decode()
            except UnicodeDecodeError:
                pass
            else:
                await self._websocket.send_text(text)
                return
        await self._websocket.send_bytes(data)


def routes(context: GatewayContext) -> list[BaseRoute]:
    """Where browsers connect to."""

    async def connect(websocket: WebSocket) -> None:
        assert context.serve_websocket is not None
        offered = websocket.scope.get("subprotocols", ())
        chosen = next((each for each in SUBPROTOCOLS if each in offered), None)
        await websocket.accept(subprotocol=chosen)
        await context.serve_websocket(TextSocket(websocket), context.make_session["stomp"])

    return [WebSocketRoute("/stomp", connect), WebSocketRoute("/ws", connect)]
