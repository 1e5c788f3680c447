"""Variants of PAINT and other papers' methods, each an algorithm of one file (README.md)."""
