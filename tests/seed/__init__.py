"""The controlled experiments of the post that Ramjet grew from (the README names it), run in virtual time."""
