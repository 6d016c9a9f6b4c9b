"""What a program means: types, values, evaluation while compiling, layout, code.

One evaluator serves both times. ``names``, ``operators``, ``coerce`` and ``expressions`` say what
values are; ``statements`` and ``calls`` run them or write them down; ``general``, ``descriptors``,
``operations``, ``maps``, ``tasks`` and ``layout`` are the builtins; ``unit`` collects; ``compile``
puts an image together.
"""
