"""The virtual machine that the scenarios of this folder run in."""
