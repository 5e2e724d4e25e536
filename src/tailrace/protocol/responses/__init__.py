"""OpenAI's Responses: bodies and stored turns to chat requests, answers as items, and their events."""
