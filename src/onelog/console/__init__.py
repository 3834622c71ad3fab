"""What administrators see and do over HTTP: REST at `/v1`, and pages for people at `/`."""
