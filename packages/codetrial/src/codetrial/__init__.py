"""Programs run against tests, apart from them and kept from the machine (README.md).

Nothing is imported here: every process of the sandbox imports this package.
"""
