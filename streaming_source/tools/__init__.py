"""Tools around the library, none of which it imports: the command line, audits, pages, advice, the kit for tests.

What users import of them has its names in `streaming_source`, and its packages `auditing` and `testing`.
"""
