"""Anthropic's Messages: bodies to chat requests, answers as messages, errors in its own form."""
