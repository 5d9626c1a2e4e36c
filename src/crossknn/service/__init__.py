"""The HTTP service: many clients search with one scorer (extra `serve`)."""
