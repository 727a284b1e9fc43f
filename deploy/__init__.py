"""Running Slipstream: the local stack, container images, broker configuration."""
