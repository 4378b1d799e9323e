"""`reachmesh-inspect`: a mesh as one who looks in from outside sees it. Joins as a silent observer and leaves no trace.

Data path: `cli` (exit codes) -> `commands` (one function each) -> `session` (the observer) -> `output` (JSON or text).
"""
