"""The parts of scenarios: namespaces, raw interfaces, packets, and the router itself."""
