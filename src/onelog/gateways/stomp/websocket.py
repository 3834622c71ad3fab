"""STOMP over WebSocket, on the HTTP port: at `/stomp`, and at `/ws`, where RabbitMQ has it."""

from starlette.routing import BaseRoute, WebSocketRoute
from starlette.websockets import WebSocket

from onelog.gateways import House

SUBPROTOCOLS = ("v12.stomp", "v11.stomp", "v10.stomp")


def routes(house: House) -> list[BaseRoute]:
    """Where browsers connect to."""

    async def connect(websocket: WebSocket) -> None:
        assert house.serve_websocket is not None
        offered = websocket.scope.get("subprotocols", ())
        chosen = next((each for each in SUBPROTOCOLS if each in offered), None)
        await websocket.accept(subprotocol=chosen)
        await house.serve_websocket(websocket, house.make_session["stomp"])

    return [WebSocketRoute("/stomp", connect), WebSocketRoute("/ws", connect)]
