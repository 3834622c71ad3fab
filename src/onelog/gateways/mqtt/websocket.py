"""MQTT through WebSockets, at `/mqtt` of the HTTP port: the same sessions on another connection."""

from starlette.routing import BaseRoute, WebSocketRoute
from starlette.websockets import WebSocket

from onelog.gateways import GatewayContext

PATH = "/mqtt"
SUBPROTOCOLS = ("mqtt", "mqttv3.1")
"""What clients ask for; version 3.1 has a name of its own."""


def routes(context: GatewayContext) -> list[BaseRoute]:
    """The place where clients connect."""
    serve, make_session = context.serve_websocket, context.make_session["mqtt"]
    assert serve is not None

    async def connect(websocket: WebSocket) -> None:
        offered = [each for each in websocket.scope["subprotocols"] if each in SUBPROTOCOLS]
        await websocket.accept(subprotocol=offered[0] if offered else None)
        await serve(websocket, make_session)

    return [WebSocketRoute(PATH, connect)]
