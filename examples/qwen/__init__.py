"""Qwen2.5-Coder-0.5B on GSM8K and MBPP."""
