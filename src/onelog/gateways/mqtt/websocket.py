"""MQTT through WebSockets, at `/mqtt` of the HTTP port: the same sessions on another connection."""

from starlette.routing import BaseRoute, WebSocketRoute
from starlette.websockets import WebSocket

from onelog.gateways import House

PATH = "/mqtt"
SUBPROTOCOLS = ("mqtt", "mqttv3.1")
"""What clients ask for; version 3.1 has a name of its own."""


def routes(house: House) -> list[BaseRoute]:
    """The place where clients connect."""
    serve, make_session = house.serve_websocket, house.make_session["mqtt"]
    assert serve is not None

    async def connect(websocket: WebSocket) -> None:
        asked = [each for each in websocket.scope["subprotocols"] if each in SUBPROTOCOLS]
        await websocket.accept(subprotocol=asked[0] if asked else None)
        await serve(websocket, make_session)

    return [WebSocketRoute(PATH, connect)]
