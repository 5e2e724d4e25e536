"""Single requests that go on without their connection: background responses, and what could not be served in time."""
