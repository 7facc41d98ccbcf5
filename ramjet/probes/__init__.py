"""The seed's experiments against a live replica: what it can resume, what it keeps, which of its pools is the limit.

An edge like the others: it knows the core, what engines say, and libraries, and none of the other edges. Each probe is a plan, which says
what to send next by what has come back, and a judge, which says what it meant; both are pure. `client` does the sending.
"""
