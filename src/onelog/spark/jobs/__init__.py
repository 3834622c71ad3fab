"""Jobs on topics, ready to run: `onelog job NAME`, or a function to call.

Each module is one job. `link` is always the options of the data source that say how a cluster is
reached (`nameserver`, `accessKey` and so on), and `spark` any session, local or remote.
"""
