"""The machine that compiled programs run on: its codes, the images it loads, its engines.

``codes`` names the numbers, ``image`` what a compiled program is, ``costs`` the cycles of each
operation. ``native`` is the machine in C++, ``reference`` the same in JAX, cycle by cycle.
"""
