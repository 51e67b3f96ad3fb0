"""
Flink's changelog: from `append` to files, and back.

    writer    numbered change sets of one task, and the futures of `persist`; api: its protocol
    upload    schedulers that gather change sets into files, with retries
    registry  who owns a file
    local     copies of files on this host, and the cache of downloads
    reader    verified changes out of handles; storage puts all of it together
"""
