"""OpenAI request and answer shapes, to and from GenerateRequest and TokenEvent. Knows no socket and no backend."""
