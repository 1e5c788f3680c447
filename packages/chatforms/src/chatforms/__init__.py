"""How a model's chat template ends turns, thinks and spells calls of tools (README.md).

Nothing is imported here: ``chatforms.messages``, ``errors`` and ``spellings`` need the standard
library alone.
"""
