"""Ask the broker of this container how it is, on its HTTP port: probe.py /healthz, or /readyz.

From inside, because a broker without users answers nobody else. Exit code 0 if it says yes.
"""

import os
import ssl
import sys
from http.client import HTTPConnection, HTTPException, HTTPSConnection

SECONDS = 4
"""Shorter than whoever runs this waits for it."""


def is_well(path: str, port: int) -> bool:
    """Whether it answers with 200, in plain text or, where `tls.mode` is enforcing, with TLS."""
    # It is this container's own port: there is nobody to be mistaken for.
    anybody = ssl._create_unverified_context()
    for connection in (
        HTTPConnection("127.0.0.1", port, timeout=SECONDS),
        HTTPSConnection("127.0.0.1", port, timeout=SECONDS, context=anybody),
    ):
        try:
            connection.request("GET", path)
            return connection.getresponse().status == 200
        except (OSError, HTTPException):
            continue
        finally:
            connection.close()
    return False


if __name__ == "__main__":
    sys.exit(not is_well(sys.argv[1], int(os.environ.get("ONELOG_HTTP_PORT", "15672"))))
