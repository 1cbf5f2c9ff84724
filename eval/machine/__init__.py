"""What this host is, who may use the device now, and whether it was slowed down."""
