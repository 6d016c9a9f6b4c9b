"""The machine that compiled CSL runs on: its codes, the images it loads, its engines.

``codes`` names the numbers, ``image`` what a compiled program is.
"""
