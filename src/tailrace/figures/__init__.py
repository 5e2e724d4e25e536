"""Numbers of many requests, and how they are drawn: quantiles, charts. Owns no measurement."""
