"""What the option `tls` means.

`False` speaks plainly. `True` encrypts and asks for no proof of identity: it takes the self-signed
certificate that a broker makes for itself when it was given none, as RocketMQ's clients do. That
keeps listeners on the wire out, but not somebody who poses as the broker. A context of one's own
verifies whatever it says:

    context = ssl.create_default_context(cafile="our-ca.pem")
    producer = Producer("orders-app", tls=context)

Name servers and brokers serve encrypted and plain clients on the same ports.
"""

import ssl

from onelog.net.tls import client_context


def tls_context(tls: bool | ssl.SSLContext) -> ssl.SSLContext | None:
    """The context that connections are made with; None for plain ones."""
    if isinstance(tls, ssl.SSLContext):
        return tls
    if not isinstance(tls, bool):
        raise TypeError(f"tls must be True, False or an ssl.SSLContext, not {tls!r}")
    return client_context() if tls else None
