"""HTTP only: bodies in, bytes out, statuses and headers. Everything a request means is decided below."""
