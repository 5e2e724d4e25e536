"""Databases of both kinds."""

from tests.databases import names, postgres, url

__all__ = ["names", "postgres", "url"]
