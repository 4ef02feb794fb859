"""Models in processes of their own: forked by a fork server, fed through shared memory, started again when they die."""
