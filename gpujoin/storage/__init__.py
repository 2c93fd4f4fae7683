"""Files of the local file system, of object stores and of HDFS: opens them, and tells whether they have changed."""
