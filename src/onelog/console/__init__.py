"""Pages for administrators at `/`, over HTTP."""
