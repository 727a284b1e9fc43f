"""The way in: jobs over HTTP, what became of every sample, the Python client and the command line.

The gateway holds no state of its own: jobs live in the bucket `jobs`, everything else is read from the streams.
"""
