"""OpenAI's and Anthropic's shapes, to and from GenerateRequest and TokenEvent. Knows no socket and no backend."""
