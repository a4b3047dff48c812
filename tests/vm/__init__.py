"""Scenarios in a virtual machine with emulated NICs: `make test-vm`."""
