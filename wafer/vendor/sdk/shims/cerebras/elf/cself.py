"""The files of a compiled program, of SDK 0.4 to 0.8."""

from wafer.vendor.sdk.elf_runner import ELFLoader, ELFMemory

__all__ = ["ELFLoader", "ELFMemory"]
