"""Public fakes, for this project's tests and for those of whoever writes loaders, sources or managers.

Time that moves when told, executors that run what they are told, loaders that fail on demand and watch over their
own contract. With them the whole lifecycle runs in virtual time, without threads, disks or torch.
"""
