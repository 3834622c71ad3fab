"""RocketMQ's remoting protocol: frames, headers, bodies.

`FrameReader` turns received bytes into `Command`s, `encode_response` and `encode_request` turn
answers and requests into buffers. Both header forms, JSON and compact, are read and written.
"""
