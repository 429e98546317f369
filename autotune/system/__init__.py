"""What this machine and its container allow; reads /proc, cgroups and the driver, never torch."""
