"""HTTP on one port: health, metrics, REST, the console, and what other gateways put there.

Starlette and uvicorn's protocol are imported, in a worker, when the first client comes. Routes are
found by `House.routes`.
"""
