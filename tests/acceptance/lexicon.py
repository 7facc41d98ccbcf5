"""The words of the models whose names end in `-words`: each is one token, and four bytes with the space behind it.

So a token of theirs is as long as one of ordinary text, which is what the sizes of Ramjet's blocks are made for.
"""

from itertools import product

LEXICON = ["".join(letters) + " " for letters in product("bdfgklmn", "aeio", "lmnprstv")]
