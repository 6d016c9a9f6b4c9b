"""The machine for compiled CSL in C++, called through ctypes by :mod:`wafer.machine.engine`."""
