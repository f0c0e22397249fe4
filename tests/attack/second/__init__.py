"""A second implementation of the key tree, written from `keys.md` alone.

It imports nothing of `turnlog`: what it knows is on that page. It is slow and
plain on purpose (it reads a whole tree to change one page), so that it can be
compared with the page line by line. The tests of this folder let the two
implementations read what the other wrote.
"""
