"""Time, disks, loaders and managers that a test moves, and the checkers of what the lifecycle promises."""
