"""What the scenarios are made of: namespaces, raw interfaces, packets, and the router itself."""
