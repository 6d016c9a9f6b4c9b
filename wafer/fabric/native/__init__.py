"""The timing plane in C++, called through ctypes by :mod:`wafer.fabric.planes`."""
