"""Engines that run a PE program: cycle by cycle, by lanes, by planes, native."""
