"""The HTTP service: searches of many clients on one scorer (extra `serve`)."""
