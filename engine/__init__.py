"""The built-in CPU engine: a small language model behind SGLang's HTTP API."""
