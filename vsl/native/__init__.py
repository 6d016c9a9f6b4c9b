"""The native CPU library of this package, and how every package loads its own."""
