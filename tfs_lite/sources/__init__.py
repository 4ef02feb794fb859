"""Sources of versions: they look at storage and emit aspired lists of version directories.

    file_system_source, source_config   the source that the server uses, and its values
    remote_sources          those of URLs: one for each place, whose lists get paths of this machine, and leases
    object_disk, object_listing, object_cache   a storage as a disk: its listings, and what of it is in the cache
    look_queue              looks one after the other, each with a bound in time
    look                    one look at one base path; its report says which version waits, and for what
    version_scan            pure: which directories are versions, and which of them a policy wants
    completeness            pure: whether a version is all there
    inspector, structure    the evidence for that: manifest, digests, times, the ends of archives
    repository              the models of a whole directory
    watch, watch_points     events that shorten the wait between polls
    base_config             what a model's config says about its files
    explicit                the source of the mode explicit, which looks at no disk
    disk                    storage, passed in

``serving/model_states`` shows users what a version waits for.
"""
