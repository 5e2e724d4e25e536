"""Our own engine: from requests to tokens, one step at a time. Knows no tenant, HTTP or money."""
