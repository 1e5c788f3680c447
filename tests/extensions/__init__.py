"""Extensions as a user writes them: outside of the package."""
