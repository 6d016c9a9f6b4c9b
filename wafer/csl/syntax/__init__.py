"""The text of a program: places and messages, words, the tree, the grammar, names, layout.

What a program means is not known here.
"""
