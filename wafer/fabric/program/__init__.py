"""A PE program: its operations, its layout, how it is encoded and checked."""
