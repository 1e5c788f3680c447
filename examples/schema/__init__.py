"""Qwen2.5-Coder-0.5B and a schema that it is not shown."""
